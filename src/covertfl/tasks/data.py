"""The data of a task: which rows its parts hold, and which of its rows a client trains on.

The arrays of a data set are read once per process; tasks with different seeds or settings share
them and differ in their row numbers.  The three parts never share a row.  The validation set is
balanced; the public set has the requested shares of the classes; the rest is split among the
clients, IID or by class with Dirichlet shares.

If one class of a client is much more frequent than another, the rows that it trains on are drawn so
that all of its classes are equally frequent.  Only the client's own labels decide, so that nobody
learns anything of the labels of others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from covertfl.arrays import FloatArray, IntArray
from covertfl.errors import InvalidInput
from covertfl.kernels.job import Examples, Labels, Loss
from covertfl.tasks.models import ModelMaker, VectorModel, choose_vector_model
from covertfl.tasks.scores import find_classes
from covertfl.tasks.task import DataSettings, Inputs, TrainingTask

FEWEST_ROWS = 8  # of any client
FEWEST_BALANCED = 10  # rows of each class, below which a balanced validation set is too small


@dataclass(frozen=True, eq=False)
class Division:
    """Disjoint rows of a data set: those of each client, the public set and the validation set."""

    clients: tuple[IntArray, ...]
    public: IntArray
    validation: IntArray


@dataclass(frozen=True)
class PublicSet:
    """Size and composition of the public set.

    Parameters
    ----------
    size : relative to a client's, positive
    shares : of the classes, summing to 1
    reserve : for each class, the number of rows to set aside as a share of a client's size (times
        `size` if that exceeds 1); None: only those that are used
    """

    size: float
    shares: tuple[float, ...]
    reserve: tuple[float, ...] | None = None


def divide_rows(
    labels: IntArray,
    *,
    clients: int,
    concentration: float | None,
    validation_size: int,
    public: PublicSet,
    generator: np.random.Generator,
) -> Division:
    """Divide the rows of a data set.

    Each class is shuffled once and dealt out in this order: validation, public set, clients.
    Hence two divisions with the same seed and different public sets have the same validation set,
    and of two public sets with the same shares the smaller is part of the larger.

    Parameters
    ----------
    labels : (n,) class numbers 0 .. K-1
    concentration : of the Dirichlet split, None for IID
    validation_size : intended number of rows; fewer if the rarest class is too small
    generator : the clients' split uses a generator spawned from it

    Raises
    ------
    InvalidInput
        if a class has too few rows for its share of the public set, or the clients have too few
    """
    (of_clients,) = generator.spawn(1)
    classes = range(len(public.shares))
    by_class = [generator.permutation(np.flatnonzero(labels == label)) for label in classes]
    counts = np.array([len(rows) for rows in by_class])
    held_out = count_validation(counts, validation_size)
    left = counts - held_out
    used, reserved = _count_public(left, clients, public)
    dealt = held_out + reserved
    rest = np.sort(_deal(by_class, dealt, counts))
    if concentration is None:
        parts = split_iid(rest, clients, generator=of_clients)
    else:
        parts = split_dirichlet(rest, labels[rest], clients, concentration, generator=of_clients)
    return Division(
        clients=parts,
        public=np.sort(_deal(by_class, held_out, held_out + used)),
        validation=np.sort(_deal(by_class, np.zeros_like(held_out), held_out)),
    )


def count_validation(counts: IntArray, size: int) -> IntArray:
    """Return the number of rows of each class in the validation set.

    All classes have equally many, at most half of the rarest class; if the rarest class is too
    small for that, the classes keep their shares.  `counts` has the (K,) rows of each class.
    """
    each = min(size // len(counts), int(counts.min()) // 2)
    if each >= min(FEWEST_BALANCED, size // len(counts)):
        return np.full(len(counts), each, dtype=np.int64)
    return apportion(min(size, int(counts.sum()) // 2), counts / counts.sum())


def apportion(size: int, shares: Sequence[float] | FloatArray) -> IntArray:
    """Return integers in given shares that sum to `size`, by the largest-remainder method."""
    exact = size * np.asarray(shares, dtype=np.float64)
    whole = np.floor(exact + 1e-9).astype(np.int64)
    largest_first = np.argsort(whole - exact, kind="stable")
    whole[largest_first[: size - int(whole.sum())]] += 1
    return whole


def share_good_classes(
    counts: IntArray, order: IntArray, classes: int | None, class_share: float | None
) -> tuple[float, ...]:
    """Return the shares of the classes in a public set with some "good" classes (Appendix A).

    The good classes share `class_share` equally, the others the rest.  Without a share, or without
    good classes, every class is as frequent as among all rows.

    Parameters
    ----------
    counts : (K,) rows of each class
    order : (K,) the classes, the good ones first
    classes : number of good classes, 1 .. K
    class_share : of the good classes together, in [0, 1]
    """
    K = len(counts)
    if classes is not None and not 1 <= classes <= K:
        raise InvalidInput(
            f"public_classes must lie in 1..{K}, the number of classes, got {classes}"
        )
    if classes is None or class_share is None:
        return tuple((counts / counts.sum()).tolist())
    if classes == K:
        return (1.0 / K,) * K
    shares = np.full(K, (1.0 - class_share) / (K - classes))
    shares[order[:classes]] = class_share / classes
    return tuple(shares.tolist())


def reserve_any(order: IntArray) -> tuple[float, ...]:
    """Return the shares of each class that suffice for any public set.

    The classes become good in the given order.  The j-th is either one of k >= j good classes, with
    a share of at most 1/k, or one of the others, with at most an equal share: 1/j suffices.
    """
    shares = np.empty(len(order))
    shares[order] = 1.0 / np.arange(1, len(order) + 1)
    return tuple(shares.tolist())


def split_iid(
    rows: IntArray, clients: int, *, generator: np.random.Generator
) -> tuple[IntArray, ...]:
    """Return shuffled rows in parts whose sizes differ by at most one."""
    _require_rows(len(rows), clients)
    parts = np.array_split(generator.permutation(rows), clients)
    return tuple(np.sort(part) for part in parts)


def split_dirichlet(
    rows: IntArray,
    labels: IntArray,
    clients: int,
    concentration: float,
    *,
    generator: np.random.Generator,
) -> tuple[IntArray, ...]:
    """Return rows split by class in Dirichlet shares; a smaller concentration is less even.

    A client with too few rows receives some from the client with most.  `labels` are the classes
    of the rows.
    """
    _require_rows(len(rows), clients)
    parts: list[list[IntArray]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        of_class = generator.permutation(rows[labels == label])
        shares = _draw_shares(clients, concentration, generator)
        ends = np.cumsum(apportion(len(of_class), shares))[:-1]
        for part, piece in zip(parts, np.split(of_class, ends), strict=True):
            part.append(piece)
    held = [generator.permutation(np.concatenate(part)) for part in parts]
    return tuple(np.sort(part) for part in _fill_up(held))


def _draw_shares(clients: int, concentration: float, generator: np.random.Generator) -> FloatArray:
    """Return Dirichlet shares; one client takes all if the concentration underflows."""
    shares = generator.dirichlet(np.full(clients, concentration))
    if not np.isfinite(shares).all() or shares.sum() < 0.5:
        shares = np.zeros(clients)
        shares[generator.integers(clients)] = 1.0
    return np.asarray(shares / shares.sum())


def _fill_up(parts: list[IntArray]) -> list[IntArray]:
    """Move rows from the largest part to the smallest until each has `FEWEST_ROWS`."""
    filled = list(parts)
    while min(sizes := [len(part) for part in filled]) < FEWEST_ROWS:
        poor, rich = int(np.argmin(sizes)), int(np.argmax(sizes))
        moved = min(FEWEST_ROWS - sizes[poor], sizes[rich] - FEWEST_ROWS)
        filled[poor] = np.concatenate([filled[poor], filled[rich][:moved]])
        filled[rich] = filled[rich][moved:]
    return filled


def _count_public(left: IntArray, clients: int, public: PublicSet) -> tuple[IntArray, IntArray]:
    """Return the rows of each class that the public set uses, and those set aside for it."""
    largest = max(1.0, public.size)
    aside = public.size if public.reserve is None else largest * sum(public.reserve)
    of_client = left.sum() / (clients + aside)
    used = apportion(max(1, round(public.size * of_client)), public.shares)
    reserved = used
    if public.reserve is not None:
        bound = np.ceil(largest * of_client * np.array(public.reserve)).astype(np.int64)
        reserved = np.maximum(used, np.minimum(bound + 1, left // 2))
    for label in np.flatnonzero(2 * used > left)[:1]:
        raise InvalidInput(
            f"the public set needs {used[label]} rows of class {label}, but at most half of the "
            f"{left[label]} rows not used for validation are available; "
            "reduce public_size or the share of this class"
        )
    return used, reserved


def _deal(by_class: Sequence[IntArray], first: IntArray, last: IntArray) -> IntArray:
    """Return rows first .. last - 1 of each class's order, concatenated."""
    dealt = [rows[start:stop] for rows, start, stop in zip(by_class, first, last, strict=True)]
    return np.concatenate(dealt).astype(np.int64)


def _require_rows(rows: int, clients: int) -> None:
    if rows < clients * FEWEST_ROWS:
        raise InvalidInput(
            f"{clients} clients need at least {clients * FEWEST_ROWS} examples together, got {rows}"
        )


STREAM = 0x7461736B  # separates a task's random numbers from those of others with the same seed


@dataclass(frozen=True, eq=False)
class LabelledData:
    """All examples of a data set, with their classes.

    Parameters
    ----------
    examples : features, and labels in the form that the loss needs
    classes : (n,) class numbers
    num_classes : number of classes, at least 2
    names : of the classes, empty for their numbers
    inputs : what the features were made of
    """

    examples: Examples
    classes: IntArray
    num_classes: int
    names: tuple[str, ...] = ()
    inputs: Inputs = field(default_factory=Inputs)

    @property
    def loss(self) -> Loss:
        """Binary for two classes, with class 1 as the positive one."""
        return "binary" if self.num_classes == 2 else "multiclass"

    @property
    def outputs(self) -> int:
        """Number of logits that a model needs."""
        return 1 if self.num_classes == 2 else self.num_classes

    def take(self, rows: IntArray) -> Examples:
        """Return a copy of some of the examples."""
        return Examples(self.examples.features[rows], self.examples.labels[rows])

    def reshape(self, shape: tuple[int, ...]) -> LabelledData:
        """Return a data set of views of the same examples in another shape."""
        features = self.examples.features.reshape(-1, *shape)
        return replace(self, examples=Examples(features, self.examples.labels))


def label_data(
    features: npt.NDArray[np.floating],
    classes: IntArray,
    names: Sequence[str],
    inputs: Inputs | None = None,
) -> LabelledData:
    """Return a data set made from features, class numbers and the names of the classes."""
    kept = np.ascontiguousarray(features, dtype=np.float32)
    labels: Labels = classes.astype(np.float32) if len(names) == 2 else classes.astype(np.int64)
    examples = Examples(kept, labels)
    return LabelledData(examples, classes, len(names), tuple(names), inputs or Inputs())


def make_public_set(
    data: LabelledData, settings: DataSettings, generator: np.random.Generator
) -> PublicSet:
    """Return the public set that the settings ask for; the good classes are drawn at random."""
    counts = np.bincount(data.classes, minlength=data.num_classes)
    if data.num_classes == 2:
        if settings.public_classes is not None:
            raise InvalidInput(
                f"public_classes needs more than two classes, task {settings.task} has two: "
                "use public_positive_share"
            )
        order = np.arange(2)
        positive = settings.public_positive_share
        shares: tuple[float, ...] = (1.0 - positive, positive)
    else:
        order = generator.permutation(data.num_classes)
        shares = share_good_classes(
            counts, order, settings.public_classes, settings.public_class_share
        )
    reserve = reserve_any(order) if settings.same_clients else None
    return PublicSet(settings.public_size, shares, reserve)


def make_labelled_task(
    data: LabelledData,
    settings: DataSettings,
    make_model: ModelMaker,
    *,
    validation_size: int,
    validation: Examples | None = None,
    is_balanced: bool = False,
) -> TrainingTask:
    """Make a task from a data set.

    Parameters
    ----------
    validation_size : rows to set aside for validation; 0 if `validation` is given
    validation : examples of their own for validation
    is_balanced : whether it is public that all classes are equally frequent
    """
    division = divide_data(data, settings, validation_size)
    return TrainingTask(
        name=settings.task,
        make_model=make_model,
        loss=data.loss,
        train=data.examples,
        clients=division.clients,
        public=data.take(division.public),
        validation=data.take(division.validation) if validation is None else validation,
        classes=data.names,
        inputs=data.inputs,
        is_balanced=is_balanced,
    )


def divide_data(data: LabelledData, settings: DataSettings, validation_size: int) -> Division:
    """Return which rows of a data set the clients, the public and the validation set hold."""
    generator = np.random.default_rng([STREAM, settings.seed])
    return divide_rows(
        data.classes,
        clients=settings.clients,
        concentration=None if isinstance(settings.split, str) else settings.split.dirichlet,
        validation_size=validation_size,
        public=make_public_set(data, settings, generator),
        generator=generator,
    )


def make_vector_task(
    data: LabelledData,
    settings: DataSettings,
    models: Mapping[str, VectorModel],
    *,
    validation_size: int,
    is_balanced: bool = False,
) -> TrainingTask:
    """Make a task from labelled vectors, with the model that the settings name."""
    inputs = data.examples.features.shape[1]
    model = choose_vector_model(models, settings.model, settings.task, inputs, data.outputs)
    return make_labelled_task(
        data, settings, model, validation_size=validation_size, is_balanced=is_balanced
    )


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
