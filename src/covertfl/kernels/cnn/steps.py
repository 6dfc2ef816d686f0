"""The steps of a stack of jobs: which rows of which job each batch holds.

A step takes one batch of every job that is in the stack.  Batches that are short are padded with an
example of zeros, whose loss has no weight.
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
from covertfl.kernels.job import Float32Array, LocalJob, LocalOptimizer

# Largest numbers of jobs and images in a step, which bound its memory.
_STACKED_JOBS, _STACKED_IMAGES = 512, 20_480
# Number of steps whose rows and keys are prepared together.
_TABLE_STEPS = 64


@dataclass(frozen=True, eq=False)
class Stretch:
    """Some `steps` of a job, from its step `first` on."""

    job: LocalJob
    steps: int
    first: int = 0


@dataclass(frozen=True, eq=False)
class Step:
    """One step of the jobs that have it, on the device."""

    rows: torch.Tensor  # (J, B) of the examples on the device; padding: the zero image's
    shares: torch.Tensor  # (J, B) weight of each example's loss; 0 for padding
    keys: torch.Tensor  # (J, 2) of dropout
    scales: torch.Tensor  # (J, 3) 1 in a job's first step, Adam's rate, and the root it divides by


def count_steps(job: LocalJob) -> int:
    """Return the number of steps of a job."""
    return -(-len(job.rows) // job.batch_size)


def stack_stretches(stretches: Sequence[Stretch], width: int) -> Iterator[dict[int, Stretch]]:
    """Yield stretches that run together, by their numbers, longest first; those without steps none.

    `width` is the number of rows of a batch.
    """
    order = sorted(range(len(stretches)), key=lambda number: -stretches[number].steps)
    order = [number for number in order if stretches[number].steps]
    most = max(1, min(_STACKED_JOBS, _STACKED_IMAGES // max(width, 1)))
    for begin in range(0, len(order), most):
        yield {number: stretches[number] for number in order[begin : begin + most]}


def list_steps(
    stretches: Sequence[Stretch],
    data: DeviceExamples,
    width: int,
    optimizer: LocalOptimizer,
    send: Send,
) -> Iterator[Step]:
    """Yield the steps of stretches, longest first: those that still run come before all others."""
    for begin in range(0, stretches[0].steps, _TABLE_STEPS):
        end = min(begin + _TABLE_STEPS, stretches[0].steps)
        active = [stretch for stretch in stretches if stretch.steps > begin]
        jobs, *arrays = _tabulate(active, range(begin, end), data, width, optimizer)
        table = [send(array) for array in arrays]
        for place, count in enumerate(jobs.tolist()):
            yield Step(*(array[place, :count] for array in table))


def _tabulate(
    stretches: Sequence[Stretch],
    times: range,
    data: DeviceExamples,
    width: int,
    optimizer: LocalOptimizer,
) -> tuple[npt.NDArray[Any], ...]:
    """Return the numbers of stretches that still run, and rows, shares, keys and scales.

    All of these but the first have the shape (steps, stretches, ...).
    """
    shape = (len(times), len(stretches))
    rows = np.full((*shape, width), len(data.labels) - 1, dtype=np.int32)
    lengths, over = np.zeros(shape, dtype=np.int64), np.ones(shape, dtype=np.int64)
    numbers, seeds = (np.zeros(shape, dtype=np.uint64) for _ in range(2))
    for slot, stretch in enumerate(stretches):
        count = min(stretch.steps, times.stop) - times.start
        place, first = (slice(count), slot), stretch.first + times.start
        some = stretch.job.rows[first * width : (first + count) * width]
        batches = np.full(count * width, len(data.labels) - 1, dtype=np.int32)
        batches[: len(some)] = some + data.starts[stretch.job.examples]
        rows[place] = batches.reshape(count, width)
        lengths[place] = np.minimum(len(some) - width * np.arange(count), width)
        is_whole = stretch.job.work == "gradient"
        over[place] = len(stretch.job.rows) if is_whole else lengths[place]
        numbers[place] = np.arange(first, first + count, dtype=np.uint64)
        seeds[place] = stretch.job.seed
    shares = ((np.arange(width) < lengths[..., None]) / over[..., None]).astype(np.float32)
    # torch has few operations on unsigned words.
    keys = derive_dropout_keys(seeds, numbers).view(np.int32)
    running = np.array([sum(stretch.steps > time for stretch in stretches) for time in times])
    return running, rows, shares, keys, _find_scales(numbers, optimizer)


def _find_scales(numbers: npt.NDArray[np.uint64], optimizer: LocalOptimizer) -> Float32Array:
    """Return the (..., 3) scales of `Step` for numbers of steps."""
    beta1, beta2 = optimizer.betas
    count = numbers.astype(np.float64) + 1.0
    rates = optimizer.lr / (1.0 - beta1**count)
    roots = np.sqrt(1.0 - beta2**count)
    return np.stack([count == 1.0, rates, roots], axis=-1).astype(np.float32)
