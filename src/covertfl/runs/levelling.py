"""Level replies: every move of an exchangeable run averages as many replies with as much work.

A round with fewer clients makes a longer, noisier move, and a listener sees from the repeats in
which rounds clients were few.  If moves were averages of all replies, their lengths would say in
which round, and so in which slot, the truth was asked.  So a move averages a fixed number of
replies, drawn from the valid ones.

Where a round is accepted by its data, clients of an accepted round have done the more work the
fewer they are.  Then the draw is repeated, and the one whose work is nearest to a fixed amount
is used.  Otherwise what is averaged has exactly the same distribution in all rounds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from covertfl.arrays import FloatArray, IntArray

# Share of the clients of the smallest round that a move averages.
USED_SHARE = 0.6
# Success probability below which a state's rounds do not count as smallest.
LEAST_SUCCESS = 0.02
CANDIDATES = 200
# Mean of the examples behind a reply, and mean weighted by examples, as shares of a client's data.
# Clients that train on a uniformly random part of their data are near them in every state.
MEAN_SHARE, WEIGHTED_SHARE = 0.58, 0.70


class Level(NamedTuple):
    """What every move averages.

    Parameters
    ----------
    replies : their number
    work : wanted mean of the examples behind them, and mean weighted by examples; None for any
    """

    replies: int
    work: tuple[float, float] | None


def find_level(
    participation: list[int], success: FloatArray, size: float, *, by_data: bool, is_drawn: bool
) -> Level | None:
    """Return what every move of a federation averages, None for all replies.

    All are used if rounds have the same number of clients, whatever the state, and are not accepted
    by their data.

    Parameters
    ----------
    participation, success : (W,) clients and probability of acceptance by oracle state
    size : mean number of a client's examples
    by_data : whether rounds are accepted by their data
    is_drawn : whether clients train on a uniformly random part of their data, or on all of it
    """
    useful = [
        count
        for count, prob in zip(participation, success, strict=True)
        if prob > LEAST_SUCCESS and count > 0
    ]
    if not by_data and len(set(useful)) == 1:
        return None
    replies = max(1, round(USED_SHARE * min(useful, default=1)))
    if not by_data:
        return Level(replies, None)
    shares = (MEAN_SHARE, WEIGHTED_SHARE) if is_drawn else (1.0, 1.0)
    return Level(replies, (shares[0] * size, shares[1] * size))


def choose_level(
    examples: IntArray, level: Level, *, generator: np.random.Generator
) -> IntArray | None:
    """Return which of (k,) replies a move averages, in their order; None if they are too few."""
    if len(examples) < level.replies:
        return None
    if level.work is None:
        return np.sort(generator.permutation(len(examples))[: level.replies])
    keys = generator.random((CANDIDATES, len(examples)))
    drawn = np.argsort(keys, axis=1)[:, : level.replies]
    work = examples[drawn].astype(np.float64)
    mean, wanted = work.mean(axis=1), level.work
    weighted = np.square(work).sum(axis=1) / work.sum(axis=1)
    far = np.abs(mean / wanted[0] - 1.0) + np.abs(weighted / wanted[1] - 1.0)
    return np.sort(drawn[int(np.argmin(far))])
