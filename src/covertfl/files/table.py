"""Tables in csv, tsv and parquet files: a header and columns of cells, read and written.

A csv or tsv file is UTF-8 text with a header; its cells are text.  Those of a parquet file keep
their types.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covertfl.errors import InvalidInput, Missing
from covertfl.files.disk import write_atomically
from covertfl.files.text import read_text, shorten

DELIMITERS = {".csv": ",", ".tsv": "\t"}
PARQUET = ".parquet"
SUFFIXES = (*DELIMITERS, PARQUET)


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of a file, with the position of each row in it, such as "line 7".

    Parameters
    ----------
    header : names of the columns
    columns : a list of cells, or a pyarrow array, for each name
    """

    path: str
    header: tuple[str, ...]
    columns: tuple[Any, ...]
    places: Sequence[str]

    def find(self, name: str) -> list[Any]:
        """Return the cells of a column; raise InvalidInput unless exactly one has this name."""
        _require_columns(self.path, self.header, (name,))
        return _list_cells(self.path, self.columns[self.header.index(name)])

    def refuse(self, row: int, column: str, needed: str, cell: object) -> InvalidInput:
        """Return the error for a cell."""
        came = "nothing" if cell is None or cell == "" else shorten(cell)
        return InvalidInput(
            f"{self.path} {self.places[row]}, column {column}: {needed}, got {came}"
        )


def require_suffix(path: str | os.PathLike[str], *others: str) -> str:
    """Return the suffix of a file's name; raise InvalidInput if it is no table's or another one."""
    name, known = os.fspath(path), (*SUFFIXES, *others)
    suffix = Path(name).suffix.lower()
    if suffix not in known:
        raise InvalidInput(f"{name} must end in {' or '.join(known)}, got {suffix or 'nothing'}")
    return suffix


def read_table(path: str | os.PathLike[str], columns: Sequence[str] | None = None) -> Table:
    """Return the columns with given names, or all, of a csv, tsv or parquet file.

    Raises
    ------
    InvalidInput
        if the file is not valid, with its name and, where possible, the line
    Missing
        if pyarrow is needed and not installed
    """
    name, suffix = os.fspath(path), require_suffix(path)
    table = _read_parquet(name, columns) if suffix == PARQUET else _read_rows(name, columns, suffix)
    if not table.places:
        raise InvalidInput(f"{name} has no rows, at least one is needed")
    return table


def _require_columns(path: str, header: Sequence[str], columns: Sequence[str]) -> None:
    for column in columns:
        if header.count(column) != 1:
            problem = "has no column" if column not in header else "has more than one column"
            raise InvalidInput(f"{path} {problem} {column}; its columns are {', '.join(header)}")


def _read_rows(path: str, columns: Sequence[str] | None, suffix: str) -> Table:
    split = split_rows(path, read_text(path, "a table"), DELIMITERS[suffix])
    rows = [(line, row) for line, row in split if row]
    if not rows:
        raise InvalidInput(f"{path} is empty, a header and rows are needed")
    header = rows[0][1]
    _require_columns(path, header, columns or ())
    for line, row in rows[1:]:
        if len(row) != len(header):
            raise InvalidInput(
                f"{path} line {line}: the header has {len(header)} columns, this row has {len(row)}"
            )
    kept = [place for place, name in enumerate(header) if columns is None or name in columns]
    cells = tuple([row[place] for _, row in rows[1:]] for place in kept)
    places = [f"line {line}" for line, _ in rows[1:]]
    return Table(path, tuple(header[place] for place in kept), cells, places)


def split_rows(path: str, text: str, delimiter: str = ",") -> list[tuple[int, list[str]]]:
    """Return the rows of a csv file, each with its first line number; a blank line has no cells."""
    rows = []
    limit = csv.field_size_limit(max(len(text), 1))  # the default limit is too small for long texts
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter)
    line = 1
    try:
        for row in reader:
            rows.append((line, row))
            line = reader.line_num + 1
    except csv.Error as error:
        raise InvalidInput(
            f"{path} line {line}: the row that starts here is not valid CSV: {error}"
        ) from error
    finally:
        csv.field_size_limit(limit)
    return rows


def _read_parquet(path: str, columns: Sequence[str] | None) -> Table:
    pa = _import_pyarrow()
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            _require_columns(path, file.schema_arrow.names, columns or ())
            table = file.read(columns=None if columns is None else list(columns))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _refuse_parquet(path, error) from error
    places = [f"row {row}" for row in range(1, table.num_rows + 1)]
    return Table(path, tuple(table.column_names), tuple(table.columns), places)


def _list_cells(path: str, column: Any) -> list[Any]:
    """Return the cells of a column as Python values."""
    if isinstance(column, list):
        return column
    try:
        return list(column.to_pylist())
    except (_import_pyarrow().ArrowException, ValueError) as error:
        raise _refuse_parquet(path, error) from error


def _refuse_parquet(path: str, error: Exception) -> InvalidInput:
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    return InvalidInput(f"{path} cannot be read as a parquet file: {reason}")


def _import_pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise Missing(
            "parquet files need pyarrow: install the extra with pip install 'covertfl[text]'"
        ) from error
    return pyarrow


def write_table(
    path: str | os.PathLike[str], table: Table, added: Mapping[str, Sequence[Any]]
) -> None:
    """Write the columns of a table, then others by name, as a csv, tsv or parquet file."""
    suffix = require_suffix(path)
    header = [*table.header, *added]
    columns = [*table.columns, *(list(cells) for cells in added.values())]
    if suffix == PARQUET:
        write_atomically(path, _format_parquet(header, columns))
        return
    cells = [_list_cells(table.path, column) for column in columns]
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, delimiter=DELIMITERS[suffix], lineterminator="\n")
    writer.writerows([header, *zip(*cells, strict=True)])
    write_atomically(path, stream.getvalue())


def _format_parquet(header: Sequence[str], columns: Sequence[Any]) -> bytes:
    pa = _import_pyarrow()
    import pyarrow.parquet as pq

    arrays = [pa.array(cells) if isinstance(cells, list) else cells for cells in columns]
    stream = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, header), stream)
    return stream.getvalue()
