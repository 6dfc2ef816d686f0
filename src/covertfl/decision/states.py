"""What the oracle states of a problem stand for: how the state of a round is read from its data.

`covertfl fit` cuts one column of a participation log into states.  The cuts, and what the rounds of
each state had, are part of the problem file, so that training puts every round into the state that
the problem was fitted with.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from covertfl.arrays import IntArray
from covertfl.errors import InvalidInput

CLIENTS = "clients"


@dataclass(frozen=True)
class OracleStates:
    """The meaning of W oracle states.

    Parameters
    ----------
    column : what is cut, a column of a participation log; a higher value is a better state
    cuts : (W - 1,) finite and increasing; the state of a round is the number of cuts at or below
        its value
    participation : (W,) clients that take part in a round, by state; None if unknown
    examples : (W,) training examples behind the replies of a round, by state; None if unknown
    min_examples : least number of examples of an accepted round; None if a log's column `success`,
        or the run file, decides
    gaps : "skip" if missing rounds and blank cells of a log are skipped; None if they are refused
    """

    column: str
    cuts: tuple[float, ...]
    participation: tuple[int, ...] | None = None
    examples: tuple[float, ...] | None = None
    min_examples: float | None = None
    gaps: str | None = None

    def __post_init__(self) -> None:
        if not self.cuts or not all(map(math.isfinite, self.cuts)):
            raise InvalidInput(f"cuts must be one or more finite numbers, got {list(self.cuts)}")
        if any(after <= before for before, after in itertools.pairwise(self.cuts)):
            raise InvalidInput(f"cuts must increase, got {list(self.cuts)}")
        for name in ("participation", "examples"):
            values = getattr(self, name)
            if values is None:
                continue
            if len(values) != self.num_states:
                raise InvalidInput(
                    f"{name} must have {self.num_states} numbers, one more than cuts, "
                    f"got {len(values)}"
                )
            if not all(math.isfinite(value) and value >= 0 for value in values):
                raise InvalidInput(f"{name} must be finite and at least 0, got {list(values)}")
        least = self.min_examples
        if least is not None and not (math.isfinite(least) and least > 0.0):
            raise InvalidInput(f"min_examples must be a finite number above 0, got {least:g}")
        if self.gaps not in (None, "skip"):
            raise InvalidInput(f"gaps must be skip, or absent, got {self.gaps!r:.40}")
        if self.participation is not None:
            self.check_participation(self.participation)

    @property
    def num_states(self) -> int:
        """Number of oracle states W."""
        return len(self.cuts) + 1

    @property
    def by_clients(self) -> bool:
        """Whether the number of clients that take part determines the state."""
        return self.column == CLIENTS

    def classify(self, values: npt.ArrayLike) -> IntArray:
        """Return the oracle state of each value of the column, in 0 .. W - 1."""
        return np.searchsorted(self.cuts, np.asarray(values), side="right").astype(np.int64)

    def check_participation(self, participation: Sequence[int]) -> None:
        """Raise `InvalidInput` if a number of clients by state falls into another state."""
        if not self.by_clients:
            return
        for state, (clients, found) in enumerate(
            zip(participation, self.classify(participation), strict=True)
        ):
            if found != state:
                raise InvalidInput(
                    f"participation[{state}] must be a number of clients of oracle state {state}, "
                    f"got {clients}, which the cuts {list(self.cuts)} put into state {found}"
                )

    def to_dict(self) -> dict[str, Any]:
        """Return the section [states] of a problem file."""
        content = {key: value for key, value in vars(self).items() if value is not None}
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in content.items()
        }
