"""Participation logs written and fitted through `cf.fit`, and rounds drawn from an oracle."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import covertfl as cf
from covertfl.arrays import BoolArray, IntArray

EXAMPLE_LOG = Path(cf.__file__).parent / "data" / "participation.csv"
PAPER = cf.Oracle(
    np.array([[0.8, 0.2, 0.0], [0.3, 0.5, 0.2], [0.0, 0.2, 0.8]]), np.array([0.1, 0.43, 0.95])
)


def format_log(**columns: Iterable[Any]) -> str:
    """Return a log with a line for each round, which are numbered from 1."""
    lines = [["round", *columns]]
    lines += [
        [str(number), *map(str, row)]
        for number, row in enumerate(zip(*columns.values(), strict=True), start=1)
    ]
    return "".join(",".join(line) + "\n" for line in lines)


def fit_log(options: dict[str, Any] | None = None, **columns: Iterable[Any]) -> cf.Fit:
    """Write a log named past.csv, and fit it with the options of `cf.fit`."""
    return fit_text(format_log(**columns), **(options or {}))


def fit_text(content: str, **options: Any) -> cf.Fit:
    """Write the text of a log named past.csv, and fit it with the options of `cf.fit`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "past.csv"
        path.write_text(content)
        return cf.fit(path, **options)


def draw_rounds(
    oracle: cf.Oracle, rounds: int, generator: np.random.Generator
) -> tuple[IntArray, BoolArray]:
    """Return states and successes of rounds, the first in a uniformly drawn state."""
    ends, luck = np.cumsum(oracle.transition, axis=1), generator.random((2, rounds))
    states = np.zeros(rounds, dtype=np.int64)
    state = int(generator.integers(oracle.num_states))
    for number in range(rounds):
        states[number] = state
        state = min(int(np.searchsorted(ends[state], luck[0, number])), oracle.num_states - 1)
    return states, luck[1] < oracle.success[states]
