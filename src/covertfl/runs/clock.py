"""`Clock`: rounds that start at equal intervals, whatever was done between them.

Clients see when a query was made.  On a clock that reveals nothing of the work before it, as long
as the work is done in time.  Clients have a say in that: one that delays its reply until just
before a start learns from a missed one that the work took longer than what was left.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from covertfl.errors import InvalidInput
from covertfl.files.disk import write_atomically
from covertfl.files.text import read_object

CLOCK = "private/clock.json"
# An interval that is found is as many times the first round, in whole seconds, at least one.
ROOM = 2.0
# No client may make it longer than this many seconds, or let more rounds pass without one.
LONGEST, MOST_DISCARDED = 600.0, 3


class Clock:
    """Start times of rounds.

    A round that takes too long skips a start, which is counted.

    Parameters
    ----------
    seconds : between two starts, 0 to start a round when the last has ended; None to find it in the
        first round
    path : file that keeps the interval that was found and the number of missed starts, None to
        keep nothing
    sleep : waits for a number of seconds or less, None for `time.sleep`
    """

    def __init__(
        self,
        seconds: float | None,
        path: Path | None = None,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self._seconds, self._path, self._sleep = seconds, path, sleep or time.sleep
        self._begun: float | None = None
        self._tick = self._missed = self._discarded = 0
        if path is not None and path.exists():
            self._recall(path)

    def wait(self) -> None:
        """Wait until the next start; the first round starts at once."""
        if self._begun is None or self._seconds == 0.0:
            return
        passed = time.monotonic() - self._begun
        if self._seconds is None:
            self._seconds = min(LONGEST, float(max(1, math.ceil(ROOM * passed))))
            self._keep()
        due = self._tick + 1
        self._tick = max(due, math.ceil(passed / self._seconds))
        if self._tick > due:
            self._missed += self._tick - due
            self._keep()
        self._sleep(max(0.0, self._tick * self._seconds - passed))

    def begin(self) -> None:
        """Take the time of the first start, once enough nodes are there for it."""
        if self._begun is None:
            self._begun = time.monotonic()

    def discard(self) -> None:
        """Find the interval in a later round: in this one a node has not replied.

        A node that never replies must not keep rounds off the clock for good.
        """
        if self._seconds is None and self._discarded < MOST_DISCARDED:
            self._begun, self._discarded = None, self._discarded + 1

    def describe(self) -> dict[str, Any]:
        """Return the interval and the number of missed starts, for the summary of the run."""
        if self._seconds == 0.0:
            return {}
        return {"round_seconds": self._seconds, "missed_ticks": self._missed}

    def _keep(self) -> None:
        if self._path is not None:
            write_atomically(self._path, json.dumps(self.describe()) + "\n", mode=0o600)

    def _recall(self, path: Path) -> None:
        content = read_object(path, "the clock of a run")
        missed, seconds = content.get("missed_ticks"), content.get("round_seconds")
        if type(missed) is not int or missed < 0:
            raise InvalidInput(f"{path}: missed_ticks must be a whole number from 0, got {missed}")
        self._missed = missed
        if self._seconds is None:
            if not isinstance(seconds, int | float) or not 0.0 < seconds < math.inf:
                raise InvalidInput(f"{path}: round_seconds must be positive, got {seconds}")
            self._seconds = float(seconds)
