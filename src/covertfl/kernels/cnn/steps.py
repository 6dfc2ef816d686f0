"""The steps of chains of jobs: which rows of which job each batch holds.

A step takes one batch of every job of a stack that still has one.  Batches that are short are
padded with an example of zeros, whose loss has no weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from covertfl.kernels.cnn.memory import DeviceExamples
from covertfl.kernels.dropout import derive_dropout_keys
from covertfl.kernels.job import LocalJob, LocalOptimizer
from covertfl.kernels.weights import Float32Array

# Largest numbers of jobs and images in a step, which bound its memory.
_STACKED_JOBS, _STACKED_IMAGES = 1024, 40_960
# Number of steps whose rows and keys are prepared together.
_TABLE_STEPS = 64


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of a chain of jobs."""

    rows: npt.NDArray[np.int32]  # (S, B) of the examples on the device; padding: the zero image's
    shares: Float32Array  # (S, B) weight of each example's loss; 0 for padding
    numbers: npt.NDArray[np.uint64]  # (S,) number of the step in its job, from 0
    seeds: npt.NDArray[np.uint64]  # (S,) of the step's job

    def __len__(self) -> int:
        return len(self.numbers)

    def cut(self, most: int) -> list[Steps]:
        """Return pieces of at most `most` steps."""
        parts = (slice(start, start + most) for start in range(0, len(self), most))
        return [
            Steps(self.rows[part], self.shares[part], self.numbers[part], self.seeds[part])
            for part in parts
        ]


@dataclass(frozen=True, eq=False)
class Step:
    """One step of the jobs that have it, on the device."""

    number: int  # from 0
    rows: torch.Tensor  # (J, B) as in `Steps`
    shares: torch.Tensor  # (J, B) as in `Steps`
    keys: torch.Tensor  # (J, 2) of dropout
    scales: torch.Tensor  # (J, 3) 1 in a job's first step, Adam's rate, and the root it divides by


def count_stacked(batch_size: int) -> int:
    """Return the number of jobs that run together."""
    return max(1, min(_STACKED_JOBS, _STACKED_IMAGES // max(batch_size, 1)))


def count_steps(chain: Sequence[LocalJob]) -> int:
    """Return the number of steps of a chain."""
    return sum(-(-len(job.rows) // job.batch_size) for job in chain)


def find_stops(chain: Sequence[LocalJob], stops: Sequence[int]) -> list[int]:
    """Return the number of steps taken after some numbers of jobs."""
    ends = np.cumsum([0, *(count_steps([job]) for job in chain)])
    return [int(ends[stop]) for stop in stops]


def plan_chain(chain: Sequence[LocalJob], data: DeviceExamples, width: int) -> Steps:
    """Return the steps of a chain, with batches of `width` rows."""
    steps = [-(-len(job.rows) // job.batch_size) for job in chain]
    rows = np.full((sum(steps), width), len(data.labels) - 1, dtype=np.int32)
    shares = np.zeros(rows.shape, dtype=np.float32)
    start = 0
    for job, count in zip(chain, steps, strict=True):
        part, length = slice(start, start + count), len(job.rows)
        rows[part].reshape(-1)[:length] = job.rows + data.starts[job.examples]
        shares[part] = _share_out(length, width, job.work == "gradient")
        start += count
    numbers = np.concatenate([np.arange(count, dtype=np.uint64) for count in steps])
    seeds = np.repeat(np.array([job.seed for job in chain], dtype=np.uint64), steps)
    return Steps(rows, shares, numbers, seeds)


def _share_out(length: int, size: int, is_whole: bool) -> Float32Array:
    """Return the (S, B) shares of examples in the mean over their batch, or over all of them."""
    steps = -(-length // max(size, 1))
    real = (np.arange(steps * size) < length).reshape(steps, size)
    over = np.full((steps, 1), length) if is_whole else real.sum(axis=1, keepdims=True)
    return np.asarray(real / over, dtype=np.float32)


def list_steps(
    plans: Sequence[Steps],
    optimizer: LocalOptimizer,
    send: Callable[[npt.NDArray[Any]], torch.Tensor],
) -> Iterator[Step]:
    """Yield the steps of plans in falling order of length; `send` copies an array to the device."""
    lengths = np.array([len(plan) for plan in plans])
    for number in range(int(lengths.max())):
        place = number % _TABLE_STEPS
        if place == 0:
            table = [send(array) for array in _tabulate(plans, number, optimizer)]
        active = int(np.sum(lengths > number))
        yield Step(number, *(array[place, :active] for array in table))


def _tabulate(
    plans: Sequence[Steps], begin: int, optimizer: LocalOptimizer
) -> tuple[npt.NDArray[Any], ...]:
    """Return (steps, jobs, ...) rows, shares, keys and scales of the next steps, zero-padded."""
    parts = [plan for plan in plans if len(plan) > begin]
    steps = min(len(parts[0]) - begin, _TABLE_STEPS)
    rows = np.zeros((steps, len(parts), parts[0].rows.shape[1]), dtype=np.int32)
    shares = np.zeros(rows.shape, dtype=np.float32)
    numbers, seeds = (np.zeros(rows.shape[:2], dtype=np.uint64) for _ in range(2))
    for job, plan in enumerate(parts):
        some = slice(begin, begin + steps)
        count = len(plan.rows[some])
        rows[:count, job], shares[:count, job] = plan.rows[some], plan.shares[some]
        numbers[:count, job], seeds[:count, job] = plan.numbers[some], plan.seeds[some]
    # torch has few operations on unsigned words.
    keys = derive_dropout_keys(seeds, numbers).view(np.int32)
    return rows, shares, keys, _find_scales(numbers, optimizer)


def _find_scales(numbers: npt.NDArray[np.uint64], optimizer: LocalOptimizer) -> Float32Array:
    """Return the (..., 3) scales of `Step` for numbers of steps."""
    beta1, beta2 = optimizer.betas
    count = numbers.astype(np.float64) + 1.0
    rates = optimizer.lr / (1.0 - beta1**count)
    roots = np.sqrt(1.0 - beta2**count)
    return np.stack([count == 1.0, rates, roots], axis=-1).astype(np.float32)
