"""What happens to a simulated federation, whatever is done: who is there, and with how much data.

Everything is drawn from streams of the run's seed (`seeding`), round by round, so that those who
simulate clients and those who simulate the whole federation see the same world, after a resume too.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from covertfl.arrays import IntArray
from covertfl.decision.oracle import Oracle, compute_stationary_distribution
from covertfl.runs.participation import Attendance, RecordedRounds, draw_attendance
from covertfl.runs.settings import RunSettings
from covertfl.seeding import Stream, make_generator


def draw_state(
    oracle: Oracle, recorded: RecordedRounds | None, before: int, round_number: int, *, seed: int
) -> int:
    """The oracle state of a round; the first is drawn from the stationary law.

    Parameters
    ----------
    recorded : participation to replay, None to draw it
    before : state of the round before, -1 in the first
    """
    if recorded is not None:
        return int(recorded.states[round_number - 1])
    distribution = (
        compute_stationary_distribution(oracle) if before < 0 else oracle.transition[before]
    )
    draw = make_generator(seed, Stream.ORACLE, round_number).random()
    place = int(np.searchsorted(np.cumsum(distribution), draw, side="right"))
    return min(place, oracle.num_states - 1)


@dataclass(eq=False)
class World:
    """Oracle states and attendance of a run, by round.

    Parameters
    ----------
    settings : of the run
    sizes : (n,) examples of each client
    recorded : participation to replay, None to draw it
    """

    settings: RunSettings
    sizes: IntArray
    recorded: RecordedRounds | None = None
    _path: list[int] = field(default_factory=list, repr=False)

    def state_at(self, round_number: int) -> int:
        """The oracle state of a round; earlier ones are drawn on the way."""
        oracle, seed = self.settings.problem.oracle, self.settings.seed
        while len(self._path) < round_number:
            before = self._path[-1] if self._path else -1
            number = len(self._path) + 1
            self._path.append(draw_state(oracle, self.recorded, before, number, seed=seed))
        return self._path[round_number - 1]

    def attend(self, round_number: int) -> Attendance:
        """Who is there in a round, and with how many batches."""
        return self.draw_clients(self.state_at(round_number), round_number)

    def draw_clients(self, oracle_state: int, round_number: int) -> Attendance:
        """Who answers in a round of an oracle state, and with how many batches."""
        section = self.settings.sections.federation
        count = section.participation[oracle_state]
        if self.recorded is not None:
            count = int(self.recorded.clients[round_number - 1])
        generator = make_generator(self.settings.seed, Stream.PARTICIPATION, round_number)
        return draw_attendance(self.sizes, count, section.batch_size, generator=generator)
