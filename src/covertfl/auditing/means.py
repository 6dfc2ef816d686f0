"""What an eavesdropper of a run may own and know besides the queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Means, Scheme
from covertfl.kernels.job import Examples, LocalJob
from covertfl.kernels.weights import Vector
from covertfl.runs.clients import ClientResponder, make_mark
from covertfl.runs.federation import Federation
from covertfl.tasks.public_map import compute_public_map
from covertfl.tasks.task import TrainingTask

SPY = 0  # the client that an eavesdropper is which takes part in the training


def find_means(federation: Federation, private: Sequence[Mapping[str, Any]] = ()) -> Means:
    """Return all that an eavesdropper may have: scheme, public set, a place among the clients.

    Parameters
    ----------
    private : records of the rounds, which say when the spying client was asked
    """
    clients, settings = federation.responder, federation.settings
    scheme = Scheme(
        federation.problem,
        federation.policy_of_truth,
        federation.policy.takes_every_reply,
        settings.decoy_rule,
        exchangeable=settings.sections.policy.kind == "exchangeable",
    )
    known = Means(scheme=scheme, trajectories=1 + clients.num_decoys, seed=settings.seed)
    if not isinstance(clients, ClientResponder):
        return known
    batch_size, task = settings.sections.federation.batch_size, clients.task
    batches = max(len(task.clients[SPY]) // batch_size, 1)

    def reply(round_number: int, weights: Vector) -> LocalJob:
        return clients.make_client_job(SPY, batches, weights, round_number)

    rows, attended = task.clients[SPY], [record for record in private if SPY in record["clients"]]
    return replace(
        known,
        kernel=clients.kernel,
        data=task.public,
        batch_size=batch_size,
        reply=reply,
        pivot=find_pivot(clients),
        axes=find_axes(task),
        fresh=Examples(task.train.features[rows], task.train.labels[rows]),
        attended=frozenset(record["round"] for record in attended) if private else None,
        mark=make_mark(clients.layout.size) if settings.sections.federation.mark else None,
    )


def find_pivot(clients: ClientResponder) -> str | None:
    """Return the name of the first linear layer's weights, None if there is none.

    In the models of the tasks it is the first parameter with two dimensions.
    """
    if clients.replicas is not None:
        return clients.replicas.pivot
    shapes = zip(clients.layout.names, clients.layout.shapes, strict=True)
    return next((name for name, shape in shapes if len(shape) == 2), None)


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
