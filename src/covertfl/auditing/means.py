"""What an eavesdropper of a run may own and know besides the queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.clients import SPY, make_mark
from covertfl.eavesdroppers.eavesdropper import KnownScheme, Means
from covertfl.kernels.job import Examples, LocalJob, LocalKernel, Vector
from covertfl.runs.simulated import make_client_job
from covertfl.runs.state import Federation
from covertfl.tasks.public_map import compute_public_map
from covertfl.tasks.task import TrainingTask


def find_known_scheme(federation: Federation) -> KnownScheme:
    """Return what an eavesdropper that knows the scheme knows of a run."""
    known = federation.scheme.describe()
    return KnownScheme(
        federation.problem, known.policy, known.takes_every_reply, is_symmetric=known.is_symmetric
    )


def find_means(federation: Federation, private: Sequence[Mapping[str, Any]] = ()) -> Means:
    """Return all that an eavesdropper may have: scheme, public set, a place among the clients.

    Parameters
    ----------
    private : records of the rounds, which say when the spying client was asked
    """
    task, settings = federation.task, federation.settings
    known = Means(
        scheme=find_known_scheme(federation),
        trajectories=settings.num_trajectories,
        seed=settings.seed,
    )
    batch_size = settings.sections.federation.batch_size
    batches = max(len(task.clients[SPY]) // batch_size, 1)

    def reply(round_number: int, weights: Vector) -> LocalJob:
        return make_client_job(settings, task, SPY, batches, weights, round_number)

    attended = [record for record in private if SPY in record["clients"]]
    pivot = federation.scheme.describe().pivot
    return replace(
        add_task(known, task, federation.kernel, pivot=pivot),
        batch_size=batch_size,
        reply=reply if len(task.train) else None,
        attended=frozenset(record["round"] for record in attended) if private else None,
        mark=make_mark(federation.layout.size) if settings.sections.federation.mark else None,
    )


def add_task(
    means: Means, task: TrainingTask, kernel: LocalKernel, *, pivot: str | None = None
) -> Means:
    """Return the means of an eavesdropper that has the task's model, public set and fresh data.

    Parameters
    ----------
    pivot : name of the first linear layer's weights; None for the first parameter with two
        dimensions, which it is in the models of the tasks

    A task made by `make_server_task` has no clients' data, and may have no public set.
    """
    layout, rows = kernel.layout, task.clients[SPY]
    shapes = zip(layout.names, layout.shapes, strict=True)
    first = next((name for name, shape in shapes if len(shape) == 2), None)
    fresh = (
        Examples(task.train.features[rows], task.train.labels[rows]) if len(task.train) else None
    )
    return replace(
        means,
        kernel=kernel,
        data=task.public if len(task.public) else None,
        pivot=pivot or first,
        axes=find_axes(task) if len(task.public) else None,
        fresh=fresh,
    )


def find_axes(task: TrainingTask) -> FloatArray | None:
    """Return (d, d) the axes of the public map; None for inputs that are no vectors.

    They are the coordinate axes where the task's inputs are mapped already.
    """
    if task.public.features.ndim != 2:
        return None
    if task.public_map is not None:
        return np.eye(task.public.features.shape[1])
    found = compute_public_map(task.public, task.loss)
    return found.basis * found.scale
