"""The steps of a stack of jobs: which rows of which job each batch holds.

A step takes one batch of every job that is in the stack.  Batches that are short are padded with an
example of zeros, whose loss has no weight; a slot without a job has such examples alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from covertfl.kernels.cnn.memory import DeviceExamples, Send
from covertfl.kernels.dropout import derive_dropout_keys
from covertfl.kernels.job import LocalJob, LocalOptimizer
from covertfl.kernels.weights import Float32Array

# Largest numbers of jobs and images in a step, which bound its memory.
_STACKED_JOBS, _STACKED_IMAGES = 512, 20_480
# Number of steps whose rows and keys are prepared together.
_TABLE_STEPS = 64


@dataclass(frozen=True, eq=False)
class Stretch:
    """Steps of a job, from its step `first` on, in one slot at the times `start` up to `stop`."""

    job: LocalJob
    slot: int
    start: int
    stop: int
    first: int = 0


@dataclass(frozen=True, eq=False)
class Step:
    """One step of the jobs that have it, on the device."""

    number: int  # from 0
    rows: torch.Tensor  # (J, B) of the examples on the device; padding: the zero image's
    shares: torch.Tensor  # (J, B) weight of each example's loss; 0 for padding
    keys: torch.Tensor  # (J, 2) of dropout
    scales: torch.Tensor  # (J, 3) 1 in a job's first step, Adam's rate, and the root it divides by


def count_stacked(batch_size: int) -> int:
    """Return the number of jobs that run together at most."""
    return max(1, min(_STACKED_JOBS, _STACKED_IMAGES // max(batch_size, 1)))


def count_steps(job: LocalJob) -> int:
    """Return the number of steps of a job."""
    return -(-len(job.rows) // job.batch_size)


def list_steps(
    stretches: Sequence[Stretch],
    data: DeviceExamples,
    width: int,
    optimizer: LocalOptimizer,
    send: Send,
) -> Iterator[Step]:
    """Yield the steps of stretches, which are in the order of their starts.

    `width` is the number of rows of a batch.
    """
    num_steps = max((stretch.stop for stretch in stretches), default=0)
    active: list[Stretch] = []
    following = iter(stretches)
    upcoming = next(following, None)
    for begin in range(0, num_steps, _TABLE_STEPS):
        end = min(begin + _TABLE_STEPS, num_steps)
        active = [stretch for stretch in active if stretch.stop > begin]
        while upcoming is not None and upcoming.start < end:
            active.append(upcoming)
            upcoming = next(following, None)
        jobs, *arrays = _tabulate(active, range(begin, end), data, width, optimizer)
        table = [send(array) for array in arrays]
        for place, count in enumerate(jobs.tolist()):
            yield Step(begin + place, *(array[place, :count] for array in table))


def _tabulate(
    stretches: Sequence[Stretch],
    times: range,
    data: DeviceExamples,
    width: int,
    optimizer: LocalOptimizer,
) -> tuple[npt.NDArray[Any], ...]:
    """Return the numbers of slots in use, and (steps, slots, ...) rows, shares, keys and scales."""
    shape = (len(times), max(stretch.slot for stretch in stretches) + 1)
    jobs = np.zeros(len(times), dtype=np.int64)
    rows = np.full((*shape, width), len(data.labels) - 1, dtype=np.int32)
    lengths, over = np.zeros(shape, dtype=np.int64), np.ones(shape, dtype=np.int64)
    numbers, seeds = (np.zeros(shape, dtype=np.uint64) for _ in range(2))
    for stretch in stretches:
        start, stop = max(stretch.start, times.start), min(stretch.stop, times.stop)
        place = slice(start - times.start, stop - times.start), stretch.slot
        first, count = stretch.first + start - stretch.start, stop - start
        some = stretch.job.rows[first * width : (first + count) * width]
        batches = np.full(count * width, len(data.labels) - 1, dtype=np.int32)
        batches[: len(some)] = some + data.starts[stretch.job.examples]
        rows[place] = batches.reshape(count, width)
        lengths[place] = np.minimum(len(some) - width * np.arange(count), width)
        is_whole = stretch.job.work == "gradient"
        over[place] = len(stretch.job.rows) if is_whole else lengths[place]
        numbers[place] = np.arange(first, first + count, dtype=np.uint64)
        seeds[place] = stretch.job.seed
        jobs[place[0]] = np.maximum(jobs[place[0]], stretch.slot + 1)
    shares = ((np.arange(width) < lengths[..., None]) / over[..., None]).astype(np.float32)
    # torch has few operations on unsigned words.
    keys = derive_dropout_keys(seeds, numbers).view(np.int32)
    return jobs, rows, shares, keys, _find_scales(numbers, optimizer)


def _find_scales(numbers: npt.NDArray[np.uint64], optimizer: LocalOptimizer) -> Float32Array:
    """Return the (..., 3) scales of `Step` for numbers of steps."""
    beta1, beta2 = optimizer.betas
    count = numbers.astype(np.float64) + 1.0
    rates = optimizer.lr / (1.0 - beta1**count)
    roots = np.sqrt(1.0 - beta2**count)
    return np.stack([count == 1.0, rates, roots], axis=-1).astype(np.float32)
