"""What every worker process does first. Standard library only."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable

from ebrl.data.messages import RAISED, send_text

_PR_SET_PDEATHSIG = 1


def enter(body: Callable[[socket.socket], None]) -> None:
    """Run ``body`` with the socket to the engine, whose descriptor is the first argument.

    The process dies with its parent, dumps its stack on SIGUSR1 (the engine asks before it kills
    a process that hangs) and on native crashes, and sends the traceback of what ``body`` raises.
    """
    die_with_parent(int(sys.argv[2]))
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock = socket.socket(fileno=int(sys.argv[1]))
    try:
        body(sock)
    except Exception:
        text = traceback.format_exc()
        sys.stderr.write(text)
        sys.stderr.flush()
        try:
            send_text(sock, RAISED, text)
        except OSError:
            pass  # the engine is gone
        _leave(1)
    _leave(0)


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the process ``parent``, which started it, has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _leave(code: int) -> None:
    """Exit without finalizers: native libraries may hang or abort in theirs, and nothing is lost."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
