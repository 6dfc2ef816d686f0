"""`ExactSum`: the weighted mean of vectors, the same to the last bit in whatever order they come.

Vectors are added one by one and need not be kept, so a sum of any number of them takes the memory
of a few.

Why the order does not matter:

- A term, a count times a 32-bit float, is exact in double precision: 24 bits times at most
  `DIGIT` = 29.  A larger count is added in parts of so many bits.
- Each coordinate is a sum of two doubles, high + low.  A term is added to `high` by Knuth's
  TwoSum, whose error is again a double; the error is added to `low` in the same way, and what is
  then left over, nearly always zero, is added to a number of 512 bits (`_sum.c`).  Nothing is
  rounded away: at any time the three parts add up to the exact sum S of all terms.  All terms, and
  so all errors, are multiples of 2^-149, the smallest 32-bit float, and |S| < 2^128 times the sum
  of the counts.  512 bits in units of 2^-213 hold that for sums of counts below 2^170.
- How S is divided into parts depends on the order.  The mean does not: it is the double nearest to
  S, which is a function of S alone, divided by the sum of the counts and rounded to 32 bits.

The mean of equal numbers x is x: two roundings to double precision change it by less than half a
unit in the last place of a 32-bit float.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from covertfl.kernels import _sum
from covertfl.kernels.job import Vector

# Bits of a count that are multiplied at a time.
DIGIT = 29
# Coordinates that share the memory of their wide numbers, and 64-bit parts of such a number.
CHUNK, LIMBS = 1024, 8
# Vectors that are added together.
TOGETHER = 4


class ExactSum:
    """The sum of vectors of `size` 32-bit floats, each times a count."""

    def __init__(self, size: int) -> None:
        self._high, self._low = np.zeros(size), np.zeros(size)
        self._left = np.empty(CHUNK)
        self._wide: dict[int, npt.NDArray[np.uint64]] = {}
        self._waiting: list[Vector] = []
        self._weights: list[float] = []
        self.total = 0

    def clear(self) -> None:
        """Start again from zero, in the same memory."""
        self._high.fill(0.0)
        self._low.fill(0.0)
        self._wide, self._waiting, self._weights, self.total = {}, [], [], 0

    def add(self, values: Vector, count: int) -> None:
        """Add (size,) finite 32-bit floats that count as often as `count`, a whole number from 1.

        They must not be changed before the mean is taken: the last few vectors wait for each other.

        Raises
        ------
        ValueError
            if the vector has another length
        """
        self.add_parts([values], count)

    def add_parts(self, parts: Sequence[Vector], count: int) -> None:
        """Add a vector as `add` does that comes in parts, which need not be joined."""
        if any(part.ndim != 1 for part in parts):
            raise ValueError("a vector must have one dimension, and so must its parts")
        size = sum(map(len, parts))
        if size != len(self._high):
            raise ValueError(f"a vector must have {len(self._high)} numbers, got {size}")
        held = [np.ascontiguousarray(part, dtype=np.float32) for part in parts if len(part)]
        for weight in _split(int(count)):
            self._waiting += held
            self._weights.append(weight)
        self.total += int(count)
        if len(self._weights) >= TOGETHER:
            self._add_waiting()

    def _add_waiting(self) -> None:
        """Add the vectors that wait, chunk by chunk: the sums of a chunk stay in the cache."""
        size, number = len(self._high), len(self._weights)
        weights, steps, step = np.array(self._weights), -(-size // CHUNK) * number, 0
        while step < steps:
            step = _sum.add(self._waiting, weights, self._high, self._low, self._left, step)
            if step < steps:
                place = step // number * CHUNK
                shape = (min(CHUNK, size - place), LIMBS)
                wide = self._wide.setdefault(place, np.zeros(shape, np.uint64))
                _sum.spill(self._left, wide)
                step += 1
                if len(self._waiting) > number:
                    # Every call looks at all parts, and there may be one for each chunk.
                    self._waiting = [*np.concatenate(self._waiting).reshape(number, size)]
        self._waiting, self._weights = [], []

    def mean(self) -> Vector:
        """Return the (size,) mean, weighted by the counts; zeros in it have no sign.

        Raises
        ------
        ZeroDivisionError
            if nothing was added
        """
        if self.total == 0:
            raise ZeroDivisionError("nothing was added")
        self._add_waiting()
        mean, total = np.empty(len(self._high), dtype=np.float32), float(self.total)
        _sum.divide(self._high, self._low, total, mean)
        for place, wide in self._wide.items():
            chunk = slice(place, place + CHUNK)
            nearest, low = self._high[chunk].copy(), self._low[chunk]
            _sum.settle(wide, nearest, low)
            _sum.divide(nearest, np.zeros_like(low), total, mean[chunk])
        return mean


def _split(count: int) -> Iterator[float]:
    """Yield the parts of a count, of `DIGIT` bits each, that add up to it."""
    if count < 2**DIGIT:
        yield float(count)
        return
    shift = 0
    while count >> shift:
        part = (count >> shift) % 2**DIGIT
        if part:
            yield float(part << shift)
        shift += DIGIT
