"""Reading text, with or without labels, from csv, tsv and parquet files.

Labels are read from the whole column:

==============================  ==============================================================
cells of the label column       class
==============================  ==============================================================
whole numbers                   the distinct numbers, in order, are classes 0, 1, ...
numbers in [0, 1], not whole    1 if greater than 0.5, else 0 (Appendix A of the paper)
true, false (parquet)           1, 0
anything else                   the distinct names, sorted, are classes 0, 1, ...
==============================  ==============================================================
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from covertfl.arrays import FloatArray, IntArray
from covertfl.errors import InvalidInput
from covertfl.files.table import Table, read_table

MOST_CLASSES = 1000  # a column with more values hardly holds labels
TOXIC_ABOVE = 0.5  # Appendix A of the paper


@dataclass(frozen=True, eq=False)
class LabelledText:
    """Texts as they are in a file, (n,) class numbers, and the name of each class.

    Without labels there are no class numbers and no names.
    """

    texts: list[str]
    labels: IntArray
    classes: tuple[str, ...]


def read_labelled_text(
    path: str | os.PathLike[str], text_column: str, label_column: str | None
) -> LabelledText:
    """Read texts and classes from a csv or tsv file (UTF-8, with a header) or a parquet file.

    `label_column` is None for texts without labels.

    Raises
    ------
    InvalidInput
        if the file is not valid, with its name and, where possible, the line and the column
    Missing
        if pyarrow is needed and not installed
    """
    if text_column == label_column:
        raise InvalidInput(f"text and label must be different columns, got {text_column} for both")
    columns = (text_column,) if label_column is None else (text_column, label_column)
    table = read_table(path, columns)
    texts = read_texts(table, text_column)
    if label_column is None:
        return LabelledText(texts, np.empty(0, dtype=np.int64), ())
    return LabelledText(texts, *_parse_labels(table, label_column))


def read_texts(table: Table, column: str) -> list[str]:
    """Return the texts in a column; an empty cell is an empty text."""
    cells = table.find(column)
    for row, cell in enumerate(cells):
        if not (cell is None or isinstance(cell, str)):
            raise table.refuse(row, column, "a text is needed", cell)
    return [cell or "" for cell in cells]


def _parse_labels(table: Table, column: str) -> tuple[IntArray, tuple[str, ...]]:
    """Return the class numbers and names of a label column."""
    cells = [cell.strip() if isinstance(cell, str) else cell for cell in table.find(column)]
    for row, cell in enumerate(cells):
        if cell is None or cell == "":
            raise table.refuse(row, column, "a label is needed", cell)
    if any(_parse_number(cell) is None for cell in cells):
        labels, classes = _number_names(cells)
    else:
        labels, classes = _number_values(table, column, cells)
    if not 2 <= len(classes) <= MOST_CLASSES:
        raise InvalidInput(
            f"{table.path}: column {column} must have 2 to {MOST_CLASSES} different labels, "
            f"got {len(classes)}"
        )
    return labels, classes


def _parse_number(cell: object) -> float | None:
    try:
        return float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def _number_names(cells: Sequence[object]) -> tuple[IntArray, tuple[str, ...]]:
    classes, labels = np.unique([str(cell) for cell in cells], return_inverse=True)
    return labels.astype(np.int64), tuple(classes.tolist())


def _number_values(
    table: Table, column: str, cells: Sequence[object]
) -> tuple[IntArray, tuple[str, ...]]:
    numbers: FloatArray = np.array([_parse_number(cell) for cell in cells], dtype=np.float64)
    for row in np.flatnonzero(~np.isfinite(numbers))[:1]:
        raise table.refuse(int(row), column, "a finite number is needed", cells[row])
    if all(math.floor(number) == number for number in numbers):
        values, labels = np.unique(numbers, return_inverse=True)
        return labels.astype(np.int64), tuple(f"{value:.0f}" for value in values)
    for row in np.flatnonzero((numbers < 0.0) | (numbers > 1.0))[:1]:
        raise table.refuse(
            int(row), column, "scores that are not whole must lie in [0, 1]", cells[row]
        )
    return (numbers > TOXIC_ABOVE).astype(np.int64), ("0", "1")
