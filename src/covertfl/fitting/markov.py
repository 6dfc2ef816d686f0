"""A test of the Markov property: that the state before the last one does not matter.

In a Markov chain of first order the next state k depends on the present state j alone.  Against
second order, Pearson's statistic compares, for each j, the counts n_ijk of (previous i, next k)
with their expectation n_ij. n_.jk / n_.j. if i and k are independent given j (Anderson and Goodman,
1957).  The sum over j is about chi-squared if the chain is of first order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from covertfl.arrays import BoolArray, FloatArray, IntArray

# States are pooled until every expected count reaches this.  Of simulated chains of first order
# with 60 to 1,000 rounds, 4 to 5.5% were then rejected at the 5% level.
LEAST_EXPECTED = 2.0
LEVEL = 0.05


@dataclass(frozen=True)
class MarkovTest:
    """Pearson's test of first order against second order.

    Parameters
    ----------
    statistic : sum of (count - expected)^2 / expected
    degrees : of freedom; 0 if there are too few rounds to test
    p_value : probability of a statistic at least as large in a chain of first order; None if there
        are too few rounds to test
    pooled : whether rare states were pooled with a neighbour
    """

    statistic: float
    degrees: int
    p_value: float | None
    pooled: bool

    @property
    def is_rejected(self) -> bool:
        """Whether the rounds do not look like a Markov chain, at the 5% level."""
        return self.p_value is not None and self.p_value < LEVEL

    @property
    def sentence(self) -> str | None:
        """A sentence for the user, None if nothing speaks against the Markov property."""
        if self.p_value is None or not self.is_rejected:
            return None
        found = "p < 0.0001" if self.p_value < 1e-4 else f"p = {self.p_value:.2g}"
        return (
            "The next state depends on the state before the last one too (chi-squared "
            f"{self.statistic:.1f}, {self.degrees} degrees of freedom, {found}), so the fitted "
            "transition matrix is an approximation, and with it every planned cost and "
            "probability: try other --cuts or more --states, or search on the log itself "
            "with --policy."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of `covertfl fit --json`."""
        return {**vars(self), "rejected": self.is_rejected}


def check_markov(states: IntArray, num_states: int, follows: BoolArray | None = None) -> MarkovTest:
    """Test oracle states for the Markov property.

    Parameters
    ----------
    states : (T,) oracle states, 0 .. W - 1
    follows : (T - 1,) whether a round comes directly after the one before; None if all do
    """
    whole = np.ones(len(states) - 1, dtype=np.bool_) if follows is None else follows
    middle = 1 + np.flatnonzero(whole[:-1] & whole[1:])
    counts = np.zeros((num_states,) * 3)
    np.add.at(counts, (states[middle], states[middle - 1], states[middle + 1]), 1)
    tables = [pool_sparse(table) for table in counts]
    statistic = sum(_compare(table) for table in tables)
    # A state without a round before and after it has an empty table.
    degrees = sum((table.shape[0] - 1) * (table.shape[1] - 1) for table in tables if table.size)
    shapes = [np.count_nonzero(table.sum(axis=1)) for table in counts]
    shapes += [np.count_nonzero(table.sum(axis=0)) for table in counts]
    kept = [table.shape[axis] for axis in (0, 1) for table in tables]
    pooled = any(size > left for size, left in zip(shapes, kept, strict=True))
    if not degrees:
        return MarkovTest(0.0, 0, None, pooled)
    from scipy.special import gammaincc

    p_value = float(gammaincc(degrees / 2.0, statistic / 2.0))
    return MarkovTest(float(statistic), degrees, p_value, pooled)


def pool_sparse(table: FloatArray) -> FloatArray:
    """Return a table of counts without empty rows and columns, and with rare ones pooled.

    While an expected count is too small, the row or column with the fewest counts joins the rarer
    of its neighbours.  Only the margins decide, so that the test keeps its size.
    """
    table = table[table.sum(axis=1) > 0][:, table.sum(axis=0) > 0]
    while table.size and min(table.shape) > 1:
        margins = [table.sum(axis=1), table.sum(axis=0)]
        if margins[0].min() * margins[1].min() / table.sum() >= LEAST_EXPECTED:
            break
        axis = int(margins[1].min() < margins[0].min())
        table = _join(table, axis, int(np.argmin(margins[axis])), margins[axis])
    return table


def _join(table: FloatArray, axis: int, rare: int, margin: FloatArray) -> FloatArray:
    """Return the table with a row (axis 0) or column (1) added to the rarer of its neighbours."""
    beside = [place for place in (rare - 1, rare + 1) if 0 <= place < len(margin)]
    other = min(beside, key=lambda place: float(margin[place]))
    first = min(rare, other)
    joined = np.add.reduceat(
        table, [place for place in range(len(margin)) if place != first + 1], axis=axis
    )
    return np.asarray(joined)


def _compare(table: FloatArray) -> float:
    """Return Pearson's statistic of a table against independence; 0 for an empty table."""
    if not table.size:
        return 0.0
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
    return float(((table - expected) ** 2 / expected).sum())
