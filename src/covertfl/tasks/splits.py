"""Which rows the clients, the public set and the validation set hold.

The three never share a row.  The validation set is balanced; the public set has the requested
shares of the classes; the rest is split among the clients, IID or by class with Dirichlet shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from covertfl.arrays import FloatArray, IntArray
from covertfl.errors import InvalidInput

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
