"""From labelled text to labelled vectors, without a network (Appendix A).

The paper cleans comments, embeds them in 128 dimensions and calls a comment toxic where its score
is greater than 0.5.  Here the encoder is wordllama, whose weights come with its package: a text is
the mean of the vectors of its tokens.  The vectors are kept as the encoder gives them; a task that
uses them standardises them.

Cleaning makes "can't" and "cant" one word: apostrophes go, every other character that is no letter,
digit or accent becomes a space.  Capitals stay: the paper does not mention them, and the encoder
tells them apart.  A text of which nothing is left is the zero vector.

Labels are read from the whole column:

==============================  ==============================================================
cells of the label column       class
==============================  ==============================================================
whole numbers                   the distinct numbers, in order, are classes 0, 1, ...
numbers in [0, 1], not whole    1 where greater than 0.5, else 0
true, false (parquet)           1, 0
anything else                   the distinct names, sorted, are classes 0, 1, ...
==============================  ==============================================================
"""

from __future__ import annotations

import csv
import io
import math
import os
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from covertfl.arrays import IntArray
from covertfl.errors import InvalidInput, Missing
from covertfl.files.atomic import write_atomically

DIMENSIONS = 128
CHUNK = 256  # texts that are tokenised together
MOST_CLASSES = 1000  # a column with more is hardly one of labels
TOXIC_ABOVE = 0.5  # Appendix A
LONGEST_QUOTE = 40  # characters of a cell that a message repeats

Progress = Callable[[str, float], None]
Features = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class LabelledText:
    """Texts and their classes.

    Parameters
    ----------
    texts : (n,) as they stand in the file
    labels : (n,) class numbers
    classes : what each class is called in the file
    """

    texts: list[str]
    labels: IntArray
    classes: tuple[str, ...]


class _CleaningTable(dict[int, int | str | None]):
    """What becomes of each character, worked out when it is first met."""

    apostrophes = frozenset("'`\u00b4\u2018\u2019\u02bc\uff07")  # straight, curly, full width
    dropped = ("P", "S", "C", "Z")  # punctuation, symbols, control characters, separators

    def __missing__(self, code: int) -> int | str | None:
        character = chr(code)
        kept: int | str | None = code
        if character in self.apostrophes:
            kept = None
        elif unicodedata.category(character).startswith(self.dropped):
            kept = " "
        self[code] = kept
        return kept


_CLEANING = _CleaningTable()


def clean_text(text: str) -> str:
    """A text without special characters and with a smaller word space (Appendix A)."""
    return " ".join(text.translate(_CLEANING).split())


def embed_texts(texts: Sequence[str], *, on_progress: Progress | None = None) -> Features:
    """Vectors of texts, each the mean of its tokens' vectors.

    The encoder's table has 16-bit floats, and sums of them in double precision are exact: a vector
    depends neither on the other texts nor on the machine.

    Parameters
    ----------
    texts : (n,) not cleaned

    Returns
    -------
    (n, 128) 32-bit floats, not standardised

    Raises
    ------
    Missing
        if wordllama is not installed
    """
    tokenizer, table = _load_encoder()
    vectors = np.zeros((len(texts), DIMENSIONS), dtype=np.float32)
    for start in range(0, len(texts), CHUNK):
        cleaned = [clean_text(text) for text in texts[start : start + CHUNK]]
        encodings = tokenizer.encode_batch(cleaned, add_special_tokens=False)
        for row, encoding in enumerate(encodings, start):
            if encoding.ids:
                vectors[row] = table[encoding.ids].sum(axis=0, dtype=np.float64) / len(encoding.ids)
        if on_progress is not None:
            done = min(start + CHUNK, len(texts))
            on_progress(f"{done:,} of {len(texts):,} texts", done / len(texts))
    return vectors


@cache
def _load_encoder() -> tuple[Any, npt.NDArray[np.float32]]:
    """The tokenizer and the table of token vectors, from the package's own folder."""
    with _unchanged_logging():
        try:
            import wordllama
        except ImportError as error:
            raise Missing(
                "embedding text needs wordllama: "
                "install the extra with pip install 'covertfl[text]'"
            ) from error
        folder = Path(wordllama.__file__).parent
        try:
            encoder = wordllama.WordLlama.load(
                cache_dir=folder, disable_download=True, trunc_dim=DIMENSIONS
            )
        except FileNotFoundError as error:
            raise Missing(
                f"wordllama in {folder} came without its weights: "
                "install it again with pip install --force-reinstall 'covertfl[text]'"
            ) from error
    encoder.tokenizer.no_padding()
    return encoder.tokenizer, encoder.embedding


@contextmanager
def _unchanged_logging() -> Iterator[None]:
    """Keep wordllama's import from setting up the logging of the whole program."""
    import logging

    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def embed_file(
    path: str | os.PathLike[str],
    text_column: str,
    label_column: str,
    *,
    on_progress: Progress | None = None,
) -> tuple[Features, IntArray]:
    """Vectors and class numbers of a csv or parquet file of labelled text.

    Returns
    -------
    features : (n, 128) not standardised
    labels : (n,) 64-bit class numbers

    Raises
    ------
    InvalidInput
        naming the file and, where there is one, the line and the column
    Missing
        if wordllama, or pyarrow for a parquet file, is not installed
    """
    read = read_labelled_text(path, text_column, label_column)
    return embed_texts(read.texts, on_progress=on_progress), read.labels


def write_embeddings(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    text_column: str,
    label_column: str,
    *,
    on_progress: Progress | None = None,
) -> LabelledText:
    """Embed a file of labelled text and write `features`, `labels` and `classes` as an .npz file.

    Returns
    -------
    what was read, so that a caller can say how many texts of which classes there are
    """
    if Path(out).suffix != ".npz":
        raise InvalidInput(f"the vectors' file must end in .npz, got {os.fspath(out)}")
    read = read_labelled_text(path, text_column, label_column)
    features = embed_texts(read.texts, on_progress=on_progress)
    stream = io.BytesIO()
    np.savez(stream, features=features, labels=read.labels, classes=np.array(read.classes))
    write_atomically(out, stream.getvalue())
    return read


def read_labelled_text(
    path: str | os.PathLike[str], text_column: str, label_column: str
) -> LabelledText:
    """Texts and classes of a csv file (with a header, UTF-8) or a parquet file."""
    name = os.fspath(path)
    suffix = Path(name).suffix.lower()
    if text_column == label_column:
        raise InvalidInput(f"text and label must be two columns, got {text_column} for both")
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
    """Two columns of a file, with where each row stands in it (line 7, row 3)."""

    path: str
    cells: dict[str, list[Any]]
    places: list[str]

    def refuse(self, row: int, column: str, needed: str) -> InvalidInput:
        cell = self.cells[column][row]
        came = "nothing" if cell is None or cell == "" else repr(cell)
        if len(came) > LONGEST_QUOTE:
            came = came[:LONGEST_QUOTE] + "..."
        return InvalidInput(
            f"{self.path} {self.places[row]}, column {column}: {needed}, got {came}"
        )


def _read_bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError as error:
        raise InvalidInput(f"{path} does not exist, a file of labelled text is needed") from error
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from error


def _find_columns(path: str, header: Sequence[str], columns: Sequence[str]) -> list[int]:
    for column in columns:
        if header.count(column) != 1:
            problem = "has no column" if column not in header else "has more than one column"
            raise InvalidInput(f"{path} {problem} {column}; its columns are {', '.join(header)}")
    return [header.index(column) for column in columns]


def _read_csv(path: str, columns: Sequence[str]) -> _Table:
    content = _read_bytes(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidInput(
            f"{path} line {line}: the file must be UTF-8 text, "
            f"got the byte 0x{content[error.start]:02x}"
        ) from error
    rows = _split_rows(path, text)
    if not rows:
        raise InvalidInput(f"{path} is empty, a header and labelled texts are needed")
    header = rows[0][1]
    positions = _find_columns(path, header, columns)
    for line, row in rows[1:]:
        if len(row) != len(header):
            raise InvalidInput(
                f"{path} line {line}: the header has {len(header)} columns, this row {len(row)}"
            )
    cells = {
        column: [row[position] for _, row in rows[1:]]
        for column, position in zip(columns, positions, strict=True)
    }
    return _Table(path, cells, [f"line {line}" for line, _ in rows[1:]])


def _split_rows(path: str, text: str) -> list[tuple[int, list[str]]]:
    """The rows of a csv file that are not blank, with the line on which each begins."""
    rows = []
    limit = csv.field_size_limit(max(len(text), 1))  # a comment may be longer than csv expects
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    line = 1
    try:
        for row in reader:
            if row:
                rows.append((line, row))
            line = reader.line_num + 1
    except csv.Error as error:
        raise InvalidInput(
            f"{path} line {line}: the row that begins here is not CSV: {error}"
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
    content = _read_bytes(path)
    try:
        file = pq.ParquetFile(pa.BufferReader(content))
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
    """Class numbers and names of a label column."""
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
    table: _Table, column: str, numbers: npt.NDArray[np.float64]
) -> tuple[IntArray, tuple[str, ...]]:
    for row in np.flatnonzero(~np.isfinite(numbers))[:1]:
        raise table.refuse(int(row), column, "a finite number is needed")
    if all(math.floor(number) == number for number in numbers):
        values, labels = np.unique(numbers, return_inverse=True)
        return labels.astype(np.int64), tuple(f"{value:.0f}" for value in values)
    for row in np.flatnonzero((numbers < 0.0) | (numbers > 1.0))[:1]:
        raise table.refuse(int(row), column, "scores that are not whole must lie in [0, 1]")
    return (numbers > TOXIC_ABOVE).astype(np.int64), ("0", "1")
