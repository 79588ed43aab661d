"""Programs that run inside a peer's interpreter: the standard library and what that peer brings, nothing else."""

import faulthandler
import os
import signal

from ebrl.host.leftovers import OWNER_VARIABLE as _OWNER_VARIABLE

if os.environ.get(_OWNER_VARIABLE) == str(os.getppid()):  # before anything is imported that may hang
    faulthandler.register(signal.SIGUSR1, all_threads=True)
