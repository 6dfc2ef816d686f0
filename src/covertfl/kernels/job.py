"""A client's work in a round: jobs, and the kernels that carry them out.

A job starts from the weights of a query and goes once over some examples in a given order, in
batches (FedAvg), or takes the gradient of their mean loss (FedSGD).  It is complete in itself: what
comes out depends on the job alone and not on which other jobs are carried out beside it.

Kernels are chosen by model and device (`local_kernels`).  They take any number of jobs at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from covertfl.arrays import IntArray
from covertfl.errors import InvalidInput
from covertfl.kernels.weights import Layout, Vector

Loss = Literal["binary", "multiclass"]
OptimizerName = Literal["sgd", "adam", "adamw"]
Work = Literal["train", "gradient"]
Labels = npt.NDArray[np.float32] | npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Examples:
    """Labelled examples.

    Parameters
    ----------
    features : (n, ...) 32-bit floats, C-contiguous
    labels : (n,) 32-bit floats in [0, 1] for a binary loss, 64-bit class numbers otherwise
    """

    features: npt.NDArray[np.float32]
    labels: Labels

    def __post_init__(self) -> None:
        if len(self.features) != len(self.labels):
            raise InvalidInput(
                f"features and labels must be of one length, "
                f"got {len(self.features)} and {len(self.labels)}"
            )

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class LocalOptimizer:
    """The optimiser of a client; its state begins anew in every job.

    Parameters
    ----------
    name : sgd, adam (PyTorch's Adam) or adamw
    lr : learning rate, positive
    momentum : of sgd
    betas, eps : of adam and adamw
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
    weights : (P,) where it begins; never written to
    examples : what it trains on
    rows : examples in the order they are used, in consecutive batches; the last may be shorter
    batch_size : examples in a batch
    seed : of its dropout masks, 0 .. 2^63 - 1
    work : train gives the weights after one pass; gradient the gradient of the mean loss of all
        rows at `weights`, with dropout as in training
    """

    weights: Vector
    examples: Examples
    rows: IntArray
    batch_size: int
    seed: int
    work: Work = "train"


def check_job_form(job: LocalJob) -> None:
    """Refuse a job that no kernel can carry out, whatever the model."""
    if job.work not in ("train", "gradient"):
        raise InvalidInput(f"work must be train or gradient, got {job.work!r}")
    if job.batch_size < 1:
        raise InvalidInput(f"batch_size must be at least 1, got {job.batch_size}")
    if job.rows.ndim != 1 or not np.issubdtype(job.rows.dtype, np.integer):
        raise InvalidInput(f"rows must be a vector of integers, got shape {job.rows.shape}")


class LocalKernel(Protocol):
    """Carries out jobs for one model, loss and optimiser."""

    layout: Layout

    def run(self, jobs: Sequence[LocalJob]) -> list[Vector]:
        """Weights after each job, or its gradient; the same bits whatever else is in the list."""
        ...

    def predict(
        self, weights: Vector, features: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        """(n, outputs) raw outputs (logits), without dropout."""
        ...
