"""A client's work in a round: the weights of a model, jobs on them, and the kernels that run them.

A model's weights are one vector of 32-bit floats.  A layout maps its sections to the model's
parameters.

A job starts from the weights of a query and either trains for one pass over some examples in a
given order, in batches (FedAvg), or computes the gradient of their mean loss (FedSGD).  Its result
depends on the job alone and not on the jobs that run at the same time.

A kernel runs any number of jobs at once; `choose` finds the one for a model and a device.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from covertfl.arrays import IntArray
from covertfl.errors import InvalidInput

Float32Array = npt.NDArray[np.float32]
Vector = Float32Array


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a model's parameters, in order, and of what it measures while it trains.

    Parameters
    ----------
    measured : how many of the last arrays are buffers, such as BatchNorm's running statistics:
        training moves them, but not along a gradient
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    measured: int = 0

    @cached_property
    def size(self) -> int:
        """Number of weights of the model."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def trained_names(self) -> tuple[str, ...]:
        """Names of the parameters, without measured arrays."""
        return self.names[: len(self.names) - self.measured]

    @cached_property
    def num_trained(self) -> int:
        """Number of weights that are parameters; they come first in the vector."""
        return sum(math.prod(shape) for shape in self.shapes[: len(self.trained_names)])

    def split(self, vector: Vector) -> dict[str, Vector]:
        """Return the parameters by name, as views of the vector."""
        if vector.shape != (self.size,):
            raise InvalidInput(
                f"weights must be a vector of {self.size} numbers, got shape {vector.shape}"
            )
        parts, start = {}, 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            stop = start + math.prod(shape)
            parts[name] = vector[start:stop].reshape(shape)
            start = stop
        return parts

    def locate(self, name: str) -> slice:
        """Return the place of a parameter in the vector."""
        if name not in self.names:
            raise InvalidInput(f"a parameter must be one of {', '.join(self.names)}, got {name!r}")
        number = self.names.index(name)
        start = sum(math.prod(shape) for shape in self.shapes[:number])
        return slice(start, start + math.prod(self.shapes[number]))

    def join(self, parts: Mapping[str, npt.NDArray[np.floating]]) -> Vector:
        """Return the vector of parameters given by name.

        Raises
        ------
        InvalidInput
            if a name is missing or unknown, or a shape differs
        """
        if set(parts) != set(self.names):
            missing, unknown = set(self.names) - set(parts), set(parts) - set(self.names)
            raise InvalidInput(
                f"weights must have the parameters {', '.join(self.names)}; "
                f"missing: {sorted(missing)}, unknown: {sorted(unknown)}"
            )
        for name, shape in zip(self.names, self.shapes, strict=True):
            if parts[name].shape != shape:
                raise InvalidInput(f"{name} must have shape {shape}, got {parts[name].shape}")
        joined = [np.ravel(parts[name]) for name in self.names]
        return np.concatenate(joined).astype(np.float32)


def name_content(content: bytes) -> str:
    """Return the name of a file of weights: the SHA-256 of its content."""
    return hashlib.sha256(content).hexdigest()


Loss = Literal["binary", "multiclass"]
OptimizerName = Literal["sgd", "adam", "adamw"]
Work = Literal["train", "gradient"]
Labels = Float32Array | npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Examples:
    """Labelled examples.

    Parameters
    ----------
    features : (n, ...) 32-bit floats, C-contiguous
    labels : (n,) 32-bit floats in [0, 1] for a binary loss, 64-bit class numbers otherwise
    """

    features: Float32Array
    labels: Labels

    def __post_init__(self) -> None:
        if len(self.features) != len(self.labels):
            raise InvalidInput(
                f"features and labels must have the same length, "
                f"got {len(self.features)} and {len(self.labels)}"
            )

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class LocalOptimizer:
    """The optimizer of a client; its state starts at zero in every job.

    Parameters
    ----------
    name : sgd, adam (PyTorch's Adam) or adamw
    lr : learning rate, positive
    momentum : for sgd
    betas, eps : for adam and adamw
    weight_decay : added to the gradient (sgd, adam) or decoupled (adamw)
    """

    name: OptimizerName = "adam"
    lr: float = 1e-3
    momentum: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in ("sgd", "adam", "adamw"):
            raise InvalidInput(f"optimizer name must be sgd, adam or adamw, got {self.name!r}")
        if not (np.isfinite(self.lr) and self.lr > 0.0):
            raise InvalidInput(f"lr must be a positive number, got {self.lr:g}")


@dataclass(frozen=True, eq=False)
class LocalJob:
    """One client's work in one round.

    Parameters
    ----------
    weights : (P,) initial weights; never written to
    rows : rows of the examples, in the order of use, in consecutive batches; the last may be short
    seed : of its dropout masks, 0 .. 2^63 - 1
    work : train (the result is the weights after one pass) or gradient (the gradient at `weights`
        of the mean loss of all rows, with dropout as in training)
    """

    weights: Vector
    examples: Examples
    rows: IntArray
    batch_size: int
    seed: int
    work: Work = "train"


def check_job_form(job: LocalJob) -> None:
    """Raise InvalidInput if no kernel can run a job, whatever the model."""
    if job.work not in ("train", "gradient"):
        raise InvalidInput(f"work must be train or gradient, got {job.work!r}")
    if job.batch_size < 1:
        raise InvalidInput(f"batch_size must be at least 1, got {job.batch_size}")
    if job.rows.ndim != 1 or not np.issubdtype(job.rows.dtype, np.integer):
        raise InvalidInput(f"rows must be a vector of integers, got shape {job.rows.shape}")


def check_weights(weights: Vector, layout: Layout) -> None:
    """Raise InvalidInput if weights do not fit a model's layout."""
    if weights.shape != (layout.size,) or weights.dtype != np.float32:
        raise InvalidInput(
            f"weights must be a vector of {layout.size} 32-bit floats, "
            f"got shape {weights.shape} of {weights.dtype}"
        )


def check_job(job: LocalJob, layout: Layout, loss: Loss) -> None:
    """Raise InvalidInput if a job does not fit a model's layout and loss."""
    check_weights(job.weights, layout)
    check_job_form(job)
    if len(job.rows) and not 0 <= job.rows.min() <= job.rows.max() < len(job.examples):
        raise InvalidInput(
            f"rows must lie between 0 and {len(job.examples) - 1}, "
            f"got {job.rows.min()} to {job.rows.max()}"
        )
    if job.examples.features.dtype != np.float32:
        raise InvalidInput(f"features must be 32-bit floats, got {job.examples.features.dtype}")
    wanted = np.float32 if loss == "binary" else np.int64
    if job.examples.labels.dtype != wanted:
        raise InvalidInput(
            f"labels of a {loss} loss must be {np.dtype(wanted)}, got {job.examples.labels.dtype}"
        )


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class LocalKernel(Protocol):
    """Runner of jobs for one model, loss and optimizer."""

    layout: Layout

    def run(self, jobs: Sequence[LocalJob]) -> list[Vector]:
        """Return the weights after each job, or its gradient, whatever else is in the list."""
        ...

    def predict(self, weights: Vector, features: Float32Array) -> Float32Array:
        """Return (n, outputs) raw outputs (logits), without dropout."""
        ...


@runtime_checkable
class StackKernel(Protocol):
    """A kernel that predicts with many weights at once, as that of a GPU does."""

    def predict_many(self, weights: Sequence[Vector], features: Float32Array) -> Float32Array:
        """Return the (K, n, outputs) outputs of K weights for the same features."""
        ...


def predict_all(
    kernel: LocalKernel, weights: Sequence[Vector], features: Float32Array
) -> Sequence[Float32Array]:
    """Return the (n, outputs) outputs of each of several weights for the same features."""
    if isinstance(kernel, StackKernel):
        return list(kernel.predict_many(weights, features))
    return [kernel.predict(each, features) for each in weights]
