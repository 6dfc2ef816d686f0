"""Which of its rows a client trains on in a round, and in which order.

If one class of a client is much more frequent than another, its rows are drawn so that all of its
classes are equally frequent: rows of rare classes several times, those of frequent classes in part.
A job stays what it is, a list of rows, and as long as it was.  Only the client's own labels decide,
so that nobody learns anything of the labels of others.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from covertfl.arrays import IntArray
from covertfl.tasks.scores import find_classes
from covertfl.tasks.task import TrainingTask

# Rows of the most frequent class for one of the rarest, from which a client balances its classes.
LEAST_RATIO = 1.5
# Whether the clients of a task balance their classes, by client.
_UNEVEN: WeakKeyDictionary[TrainingTask, dict[int, bool]] = WeakKeyDictionary()


def draw_rows(
    task: TrainingTask,
    client: int,
    most: int,
    *,
    balance: bool = True,
    generator: np.random.Generator,
) -> IntArray:
    """Draw the rows that a client trains on: at most `most`, in an order of their own.

    Parameters
    ----------
    balance : whether classes are balanced, unless those of the task are known to be
    """
    order = generator.permutation(task.clients[client])
    taken = order[:most]
    if balance and not task.is_balanced and is_uneven(task, client):
        classes = find_classes(task.train.labels[order], task.loss)
        taken = balance_rows(order, classes, len(taken), generator=generator)
    return taken


def is_uneven(task: TrainingTask, client: int) -> bool:
    """Return whether a client's most frequent class has `LEAST_RATIO` times the rarest's rows.

    It is found out once: counting takes longer than a small model takes for a batch.
    """
    known = _UNEVEN.setdefault(task, {})
    if client not in known:
        classes = find_classes(task.train.labels[task.clients[client]], task.loss)
        _, counts = np.unique(classes, return_counts=True)
        known[client] = len(counts) > 0 and bool(counts.max() >= LEAST_RATIO * counts.min())
    return known[client]


def balance_rows(
    rows: IntArray, classes: IntArray, number: int, *, generator: np.random.Generator
) -> IntArray:
    """Return `number` of the rows with all classes equally often, in random order.

    The first rows of each class are taken, from the first again when there are no more.  Where no
    class has `LEAST_RATIO` times as many rows as another, the first `number` rows are returned.

    Parameters
    ----------
    rows : (n,) in random order
    classes : (n,) class of each row
    number : at most n
    """
    _, places, counts = np.unique(classes, return_inverse=True, return_counts=True)
    if counts.max() < LEAST_RATIO * counts.min():
        return rows[:number]
    size = len(counts)
    wanted = generator.permutation((np.arange(number) + generator.integers(size)) % size)
    taken = np.empty(number, dtype=rows.dtype)
    for place in range(size):
        is_here, own = wanted == place, rows[places == place]
        taken[is_here] = own[np.arange(is_here.sum()) % len(own)]
    return taken
