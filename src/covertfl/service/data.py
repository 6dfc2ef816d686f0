"""The clients' data as requests have changed it.

Rows keep their numbers: those of the task's own data first, then those of each context in the order
of the requests.  A request that was cancelled gives back what it had taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from covertfl.arrays import FloatArray, IntArray
from covertfl.kernels.job import Examples, Labels, Vector
from covertfl.runs.engine import Validation
from covertfl.service.requests import Limits, read_examples
from covertfl.service.store import StoredRequest
from covertfl.tasks.scores import compute_auc, find_classes
from covertfl.tasks.task import TrainingTask


def find_limits(task: TrainingTask, *, holds_data: bool, rolls_back: bool = True) -> Limits:
    """Return what requests to a service may name.

    Parameters
    ----------
    holds_data : whether the service simulates the clients, and so holds their data
    rolls_back : whether no strategy keeps a state of its own
    """
    return Limits(
        clients=len(task.clients),
        rows=len(task.train) if holds_data else 0,
        changes_data=holds_data,
        rolls_back=rolls_back,
        shape=task.train.features.shape[1:],
        classes=task.classes or tuple(map(str, range(count_classes(task)))),
        has_loss=len(task.validation) > 0,
    )


def count_classes(task: TrainingTask) -> int:
    """Return the number of classes of a task."""
    return 2 if task.loss == "binary" else 1 + int(task.train.labels.max(initial=1))


@dataclass(frozen=True)
class NewRows:
    """The examples of a context, and the number of the first of their rows."""

    request: int
    client: int
    first: int
    examples: Examples


def read_contexts(task: TrainingTask, requests: Sequence[StoredRequest]) -> list[NewRows]:
    """Return the rows of all contexts among the requests, numbered in their order."""
    found, first = [], len(task.train)
    shape, classes = task.train.features.shape[1:], task.classes
    limits = Limits(0, 0, True, shape=shape, classes=classes or _name(task), has_loss=True)
    for request in requests:
        if request.body.kind == "context":
            features, labels = read_examples(request.data or "", limits)
            assert request.body.client is not None
            rows = prepare_examples(task, features, labels)
            found.append(NewRows(request.id, request.body.client, first, rows))
            first += len(rows)
    return found


def _name(task: TrainingTask) -> tuple[str, ...]:
    return tuple(map(str, range(count_classes(task))))


def prepare_examples(task: TrainingTask, features: FloatArray, classes: IntArray) -> Examples:
    """Return examples as the model sees them: standardised and mapped like the task's own."""
    found = task.inputs.standardisation
    values = np.asarray(features, dtype=np.float32) if found is None else found.apply(features)
    if task.public_map is not None:
        values = task.public_map.apply(values)
    labels: Labels = classes.astype(np.float32) if task.loss == "binary" else classes
    return Examples(np.ascontiguousarray(values, dtype=np.float32), labels)


def edit_task(
    task: TrainingTask, requests: Sequence[StoredRequest], active: Sequence[StoredRequest]
) -> TrainingTask:
    """Return a task with the data that requests have changed.

    Parameters
    ----------
    requests : all that have ever changed the data, in order
    active : those in force, in order
    """
    contexts = read_contexts(task, requests)
    clients = list(task.clients)
    by_request = {context.request: context for context in contexts}
    for request in active:
        context = by_request.get(request.id)
        if context is not None:
            new = np.arange(context.first, context.first + len(context.examples))
            old = clients[context.client][: 0 if request.body.replace else None]
            clients[context.client] = np.concatenate([old, new])
        else:
            clients = [
                rows[:0] if client in request.body.clients else _drop(rows, request.body.rows)
                for client, rows in enumerate(clients)
            ]
    return replace(task, train=_extend(task.train, contexts), clients=tuple(clients))


def _drop(rows: IntArray, gone: Sequence[int]) -> IntArray:
    return rows[~np.isin(rows, gone)] if gone else rows


def _extend(examples: Examples, contexts: Sequence[NewRows]) -> Examples:
    """Return the examples, the same object if there are no others."""
    if not contexts:
        return examples
    parts = [examples, *(context.examples for context in contexts)]
    features = np.concatenate([part.features for part in parts])
    labels: Labels = np.concatenate([part.labels for part in parts])
    return Examples(features, labels)


def list_purged(task: TrainingTask, request: StoredRequest) -> IntArray:
    """Return the rows that a purge takes from the clients of a task."""
    rows = [
        held if client in request.body.clients else held[np.isin(held, request.body.rows)]
        for client, held in enumerate(task.clients)
    ]
    return np.sort(np.concatenate(rows)) if rows else np.empty(0, dtype=np.int64)


def measure_membership(
    validation: Validation, task: TrainingTask, weights: Vector, rows: IntArray
) -> float | None:
    """Return how well the loss tells rows from fresh ones: 0.5 if not at all.

    It is the probability that a row has a smaller loss than an example of the validation set of the
    same class (AUC, averaged over the classes of the rows); None where nothing can be compared.

    Parameters
    ----------
    task : with the rows
    """
    known = Examples(task.train.features[rows], task.train.labels[rows])
    fresh = task.validation
    if not len(known) or not len(fresh):
        return None
    losses = [validation.find_losses(weights, part) for part in (known, fresh)]
    classes = [find_classes(part.labels, task.loss) for part in (known, fresh)]
    found = []
    for label in np.unique(classes[0]):
        ours, theirs = (part[own == label] for part, own in zip(losses, classes, strict=True))
        is_known = np.arange(len(ours) + len(theirs)) < len(ours)
        auc = compute_auc(-np.concatenate([ours, theirs]), is_known)
        found += [] if auc is None else [(len(ours), auc)]
    total = sum(number for number, _ in found)
    return sum(number * auc for number, auc in found) / total if total else None
