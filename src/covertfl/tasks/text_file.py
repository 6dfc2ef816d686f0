"""Reading labelled text from csv and parquet files.

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

import csv
import io
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covertfl.arrays import FloatArray, IntArray
from covertfl.errors import InvalidInput, Missing
from covertfl.files.toml import read_text, shorten

MOST_CLASSES = 1000  # a column with more values hardly holds labels
TOXIC_ABOVE = 0.5  # Appendix A of the paper


@dataclass(frozen=True, eq=False)
class LabelledText:
    """Texts as they are in a file, (n,) class numbers, and the name of each class."""

    texts: list[str]
    labels: IntArray
    classes: tuple[str, ...]


def read_labelled_text(
    path: str | os.PathLike[str], text_column: str, label_column: str
) -> LabelledText:
    """Read texts and classes from a csv file (UTF-8, with a header) or a parquet file.

    Raises
    ------
    InvalidInput
        if the file is not valid, with its name and, where possible, the line and the column
    Missing
        if pyarrow is needed and not installed
    """
    name = os.fspath(path)
    suffix = Path(name).suffix.lower()
    if text_column == label_column:
        raise InvalidInput(f"text and label must be different columns, got {text_column} for both")
    if suffix not in _READERS:
        raise InvalidInput(f"{name} must end in {' or '.join(_READERS)}, got {suffix or 'nothing'}")
    table = _READERS[suffix](name, (text_column, label_column))
    if not table.places:
        raise InvalidInput(f"{name} has no rows, labelled texts are needed")
    texts = [_parse_text(table, text_column, row) for row in range(len(table.places))]
    labels, classes = _parse_labels(table, label_column)
    return LabelledText(texts, labels, classes)


@dataclass(frozen=True)
class _Table:
    """Two columns of a file, with the position of each row in it, such as "line 7"."""

    path: str
    cells: dict[str, list[Any]]
    places: list[str]

    def refuse(self, row: int, column: str, needed: str) -> InvalidInput:
        """Return the error for a cell."""
        cell = self.cells[column][row]
        came = "nothing" if cell is None or cell == "" else shorten(cell)
        return InvalidInput(
            f"{self.path} {self.places[row]}, column {column}: {needed}, got {came}"
        )


def _find_columns(path: str, header: Sequence[str], columns: Sequence[str]) -> list[int]:
    for column in columns:
        if header.count(column) != 1:
            problem = "has no column" if column not in header else "has more than one column"
            raise InvalidInput(f"{path} {problem} {column}; its columns are {', '.join(header)}")
    return [header.index(column) for column in columns]


def _read_csv(path: str, columns: Sequence[str]) -> _Table:
    rows = _split_rows(path, read_text(path, "a file of labelled text"))
    if not rows:
        raise InvalidInput(f"{path} is empty, a header and labelled texts are needed")
    header = rows[0][1]
    positions = _find_columns(path, header, columns)
    for line, row in rows[1:]:
        if len(row) != len(header):
            raise InvalidInput(
                f"{path} line {line}: the header has {len(header)} columns, this row has {len(row)}"
            )
    cells = {
        column: [row[position] for _, row in rows[1:]]
        for column, position in zip(columns, positions, strict=True)
    }
    return _Table(path, cells, [f"line {line}" for line, _ in rows[1:]])


def _split_rows(path: str, text: str) -> list[tuple[int, list[str]]]:
    """Return the rows of a csv file that are not blank, each with its first line number."""
    rows = []
    limit = csv.field_size_limit(max(len(text), 1))  # the default limit is too small for long texts
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    line = 1
    try:
        for row in reader:
            if row:
                rows.append((line, row))
            line = reader.line_num + 1
    except csv.Error as error:
        raise InvalidInput(
            f"{path} line {line}: the row that starts here is not valid CSV: {error}"
        ) from error
    finally:
        csv.field_size_limit(limit)
    return rows


def _read_parquet(path: str, columns: Sequence[str]) -> _Table:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise Missing(
            "reading parquet files needs pyarrow: "
            "install the extra with pip install 'covertfl[text]'"
        ) from error
    try:
        with pq.ParquetFile(path) as file:
            _find_columns(path, file.schema_arrow.names, columns)
            table = file.read(columns=list(columns))
        cells = {column: table.column(column).to_pylist() for column in columns}
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput(f"{path} cannot be read as a parquet file: {reason}") from error
    return _Table(path, cells, [f"row {row}" for row in range(1, table.num_rows + 1)])


_READERS: dict[str, Callable[[str, Sequence[str]], _Table]] = {
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}


def _parse_text(table: _Table, column: str, row: int) -> str:
    cell = table.cells[column][row]
    if cell is None:
        return ""
    if not isinstance(cell, str):
        raise table.refuse(row, column, "a text is needed")
    return cell


def _parse_labels(table: _Table, column: str) -> tuple[IntArray, tuple[str, ...]]:
    """Return the class numbers and names of a label column."""
    cells = [cell.strip() if isinstance(cell, str) else cell for cell in table.cells[column]]
    for row, cell in enumerate(cells):
        if cell is None or cell == "":
            raise table.refuse(row, column, "a label is needed")
    numbers = [_parse_number(cell) for cell in cells]
    if any(number is None for number in numbers):
        labels, classes = _number_names(cells)
    else:
        labels, classes = _number_values(table, column, np.array(numbers, dtype=np.float64))
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
    table: _Table, column: str, numbers: FloatArray
) -> tuple[IntArray, tuple[str, ...]]:
    for row in np.flatnonzero(~np.isfinite(numbers))[:1]:
        raise table.refuse(int(row), column, "a finite number is needed")
    if all(math.floor(number) == number for number in numbers):
        values, labels = np.unique(numbers, return_inverse=True)
        return labels.astype(np.int64), tuple(f"{value:.0f}" for value in values)
    for row in np.flatnonzero((numbers < 0.0) | (numbers > 1.0))[:1]:
        raise table.refuse(int(row), column, "scores that are not whole must lie in [0, 1]")
    return (numbers > TOXIC_ABOVE).astype(np.int64), ("0", "1")
