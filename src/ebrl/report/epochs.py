"""Which events are late: answers of processes that were replaced since, which control ignores too."""

from __future__ import annotations

from ebrl.scheduling.commands import Command, StartEnvWorker, StartGenerator, StartLearner
from ebrl.scheduling.events import Event


class Epochs:
    """The epoch of every process, as far as it was replaced."""

    def __init__(self) -> None:
        """Nobody was replaced."""
        self._known: dict[tuple[str, int], int] = {}

    def obey(self, command: Command) -> None:
        """Note who is replaced."""
        if isinstance(command, StartEnvWorker | StartGenerator | StartLearner):
            self._known[_process(command)] = command.epoch

    def is_late(self, event: Event) -> bool:
        """Whether an event is an answer of an older epoch."""
        epoch = getattr(event, "epoch", None)
        return epoch is not None and epoch != self._known.get(_process(event), 0)


def _process(message: Event | Command) -> tuple[str, int]:
    """The process that an event or command is about: the learner, if no other is named."""
    for kind in ("shard", "generator"):
        number = getattr(message, kind, None)
        if number is not None:
            return kind, number
    return "learner", 0
