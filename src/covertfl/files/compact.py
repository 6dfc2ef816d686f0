"""Lists of numbers in the private records, short where there are many clients.

Records of rounds with few clients hold plain lists, which are easy to read.  With many, clients are
runs of consecutive numbers ("0-9998,10001") or, where that is shorter, a bitmap ("bits:" and
base64, client 0 first), and their batches repeated values ("5*9999,3").  Readers take all forms.
"""

from __future__ import annotations

import base64
import binascii
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from covertfl.arrays import IntArray

# Clients from which records are short, and numbers that a record may stand for.
MANY, MOST = 200, 10_000_000
BITS = "bits:"


def pack_clients(clients: IntArray) -> list[int] | str:
    """Return increasing client numbers, (k,), as a list or in their shortest form."""
    if len(clients) < MANY:
        return [int(client) for client in clients]
    breaks = np.flatnonzero(np.diff(clients) != 1) + 1
    ends = [(int(run[0]), int(run[-1])) for run in np.split(clients, breaks)]
    runs = ",".join(f"{first}-{last}" if last > first else str(first) for first, last in ends)
    there = np.zeros(int(clients[-1]) + 1, dtype=np.bool_)
    there[clients] = True
    bits = BITS + base64.b64encode(np.packbits(there).tobytes()).decode("ascii")
    return min(runs, bits, key=len)


def pack_counts(counts: IntArray) -> list[int] | str:
    """Return numbers of batches, (k,), as a list or as values that repeat."""
    if len(counts) < MANY:
        return [int(count) for count in counts]
    repeats = ((value, len(list(group))) for value, group in itertools.groupby(counts.tolist()))
    return ",".join(f"{value}*{number}" if number > 1 else str(value) for value, number in repeats)


def unpack_clients(packed: Any) -> Any:
    """Return the list of client numbers; what is no text is returned as it is.

    Raises
    ------
    ValueError
        if a text stands for no such list
    """
    if not isinstance(packed, str):
        return packed
    if packed.startswith(BITS):
        content = base64.b64decode(packed.removeprefix(BITS).encode(), validate=True)
        if 8 * len(content) > MOST:
            raise ValueError("too many clients")
        return np.flatnonzero(np.unpackbits(np.frombuffer(content, dtype=np.uint8))).tolist()
    pairs = (item.partition("-") for item in packed.split(","))
    ends = ((_parse(first), _parse(last if dash else first)) for first, dash, last in pairs)
    return _expand([range(first, last + 1) for first, last in ends])


def unpack_counts(packed: Any) -> Any:
    """Return the list of numbers of batches, as `unpack_clients` does."""
    if not isinstance(packed, str):
        return packed
    pairs = (item.partition("*") for item in packed.split(","))
    counted = ((_parse(value), _parse(number if star else "1")) for value, star, number in pairs)
    return _expand(list(_repeat(counted)))


def _repeat(counted: Iterator[tuple[int, int]]) -> Iterator[Sequence[int]]:
    for value, number in counted:
        if number > MOST:
            raise ValueError("too many numbers")
        yield [value] * number


def _expand(parts: Sequence[Sequence[int]]) -> list[int]:
    if sum(map(len, parts)) > MOST:
        raise ValueError("too many numbers")
    return list(itertools.chain.from_iterable(parts))


def _parse(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise ValueError(f"{text[:20]!r} is no number")
    return int(text)


def unpack_record(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record of a round with plain lists; what cannot be read is left as it is."""
    for key, unpack in (("clients", unpack_clients), ("batches", unpack_counts)):
        try:
            record[key] = unpack(record[key])
        except (KeyError, ValueError, binascii.Error):
            continue
    return record
