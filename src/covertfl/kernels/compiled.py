"""What the compiled kernels share: jobs and optimizer as their code reads them, and threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from covertfl.arrays import FloatArray, IntArray
from covertfl.errors import InvalidInput
from covertfl.kernels.job import (
    Float32Array,
    Layout,
    LocalJob,
    LocalOptimizer,
    Loss,
    Vector,
    check_job_form,
    check_weights,
    count_cores,
)

Request = tuple[Vector, Float32Array, npt.NDArray[np.generic], IntArray, Vector, int, int, int]


def list_options(optimizer: LocalOptimizer) -> FloatArray:
    """Return the optimizer as seven numbers; raise InvalidInput if eps is not positive."""
    name = ("sgd", "adam", "adamw").index(optimizer.name)
    if optimizer.name != "sgd" and not optimizer.eps > 0.0:
        raise InvalidInput(f"eps must be positive, got {optimizer.eps:g}")
    numbers = (name, optimizer.lr, optimizer.momentum, *optimizer.betas)
    return np.array((*numbers, optimizer.eps, optimizer.weight_decay), dtype=np.float64)


def count_threads(threads: int | None) -> int:
    """Return a number of threads, at least 1; None stands for one per core."""
    if threads is not None and threads < 1:
        raise InvalidInput(f"threads must be at least 1, got {threads}")
    return threads if threads is not None else count_cores()


def make_request(job: LocalJob, result: Vector, layout: Layout, loss: Loss) -> Request:
    """Return a checked job, whose features fit the model, and the array for its result."""
    labels = job.examples.labels
    wanted = np.float32 if loss == "binary" else np.int64
    check_weights(job.weights, layout)
    if labels.dtype != wanted or labels.ndim != 1:
        raise InvalidInput(
            f"labels of a {loss} loss must be a vector of {np.dtype(wanted)}, "
            f"got shape {labels.shape} of {labels.dtype}"
        )
    check_job_form(job)
    return (
        np.ascontiguousarray(job.weights),
        np.ascontiguousarray(job.examples.features),
        np.ascontiguousarray(labels),
        np.ascontiguousarray(job.rows, dtype=np.int64),
        result,
        int(job.batch_size),
        int(job.seed),
        int(job.work == "gradient"),
    )


def share_work(work: Callable[[], None], threads: int) -> None:
    """Run `work` in some threads; it takes portions until none is left.

    Raises
    ------
    InvalidInput
        with the message of a ValueError of the compiled code
    """
    try:
        if threads <= 1:
            work()
            return
        with ThreadPoolExecutor(threads - 1) as pool:
            others = [pool.submit(work) for _ in range(threads - 1)]
            work()
            for other in others:
                other.result()
    except ValueError as error:
        raise InvalidInput(str(error)) from None
