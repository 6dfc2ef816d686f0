"""Arrays that several eavesdroppers of a run need, computed once."""

from __future__ import annotations

from collections.abc import Callable

from covertfl.kernels.weights import Float32Array, Vector

# What does not fit is computed again.
MOST_BYTES = 2**29


class Memory:
    """Arrays computed from sent weights: a client's replies, and outputs on its data."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int], tuple[Vector, Float32Array]] = {}
        self._bytes = 0

    def recall(
        self, kind: str, round_number: int, weights: Vector, compute: Callable[[], Float32Array]
    ) -> Float32Array:
        """Return what was computed for these weights, in this round, or compute it now.

        The weights are recognised as an object, which is kept: its identity is not used again.
        """
        key = (kind, round_number, id(weights))
        if key in self._known:
            return self._known[key][1]
        result = compute()
        size = weights.nbytes + result.nbytes
        if self._bytes + size <= MOST_BYTES:
            self._known[key] = (weights, result)
            self._bytes += size
        return result
