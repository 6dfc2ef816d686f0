"""Who may change a run between two rounds: the desk of a service, to which requests come."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from covertfl.runs.federation import Federation, RunState


class Intake(Protocol):
    """What comes to a run from outside."""

    def begin(
        self, federation: Federation, state: RunState, *, is_repeated: bool
    ) -> tuple[Federation, RunState] | None:
        """Return the federation and the state that the next round starts from, None to end the run.

        What it returns may depend only on the state and on what it has stored itself: a round that
        was interrupted is begun again.  Whatever it does to the true trajectory it does to all.

        Parameters
        ----------
        federation : of the round before
        is_repeated : whether the round was decided before it was interrupted, so that nothing new
            may come to it
        """
        ...


class RequestDesk(Intake, Protocol):
    """An intake that is told what has become of every round."""

    def end(self, state: RunState) -> None:
        """Take note of the state after a round, which is on the disk."""
        ...


# Opens the desk of a run: its folder, its federation and the state that it starts from.
OpenDesk = Callable[[Path, Federation, RunState], AbstractContextManager[RequestDesk]]
