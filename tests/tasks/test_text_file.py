"""Labelled text from csv and parquet files, and what is refused."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import pytest

from covertfl.errors import InvalidInput, Missing
from covertfl.tasks.text_file import read_labelled_text


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="")
    return path


def test_csv_and_parquet_hold_the_same(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    texts, labels = ['He said "no",\nthen left', "Can't", "fine"], [1, 0, 1]
    with (tmp_path / "some.csv").open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([["id", "toxic", "comment"]])
        csv.writer(stream).writerows(
            [n, label, text] for n, (label, text) in enumerate(zip(labels, texts, strict=True))
        )
    pq.write_table(pa.table({"comment": texts, "toxic": labels}), tmp_path / "some.parquet")
    for name in ("some.csv", "some.parquet"):
        read = read_labelled_text(tmp_path / name, "comment", "toxic")
        assert read.texts == texts
        assert read.labels.tolist() == labels
        assert read.labels.dtype == np.int64


@pytest.mark.parametrize(
    ("cells", "labels", "classes"),
    [
        (["0", "1", "1"], [0, 1, 1], ("0", "1")),
        (["1.0", "0.0", "1"], [1, 0, 1], ("0", "1")),
        (["0.5", "0.51", "0"], [0, 1, 0], ("0", "1")),  # greater than one half
        (["-1", "1", "-1"], [0, 1, 0], ("-1", "1")),
        (["3", "5", "4"], [0, 2, 1], ("3", "4", "5")),
        (["b", "a", "7"], [2, 1, 0], ("7", "a", "b")),
    ],
)
def test_labels_are_read_from_the_whole_column(
    tmp_path: Path, cells: list[str], labels: list[int], classes: tuple[str, ...]
) -> None:
    rows = "".join(f"text,{cell}\n" for cell in cells)
    read = read_labelled_text(write(tmp_path / "some.csv", "t,y\n" + rows), "t", "y")
    assert read.labels.tolist() == labels
    assert read.classes == classes


def test_csv_forms_that_are_accepted(tmp_path: Path) -> None:
    long = "x" * 200_000  # beyond the csv module's own limit
    content = f'\ufefft,y\r\n"a ""b""\r\nc",1\r\n\r\n{long},0\r\n,1\r\n'
    read = read_labelled_text(write(tmp_path / "some.csv", content), "t", "y")
    assert read.texts == ['a "b"\r\nc', long, ""]
    assert csv.field_size_limit() == 131_072


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"some\.csv is empty"),
        (b"t,y\n", r"some\.csv has no rows"),
        (b"a,b\n1,2\n", r"some\.csv has no column t; its columns are a, b"),
        (b"t,t,y\n1,2,3\n", r"some\.csv has more than one column t"),
        (
            b"t,y\nok,1\nbad \xff,0\n",
            r"some\.csv: .* must be UTF-8 text, got the byte 0xff in line 3",
        ),
        (b"t,y\nok,1\nok\n", r"some\.csv line 3: the header has 2 columns, this row has 1"),
        (b'"t",y\n"two\nlines",1\nok,\n', r"some\.csv line 4, column y: a label .* got nothing"),
        (b't,y\nok,1\n"open,0\nmore,1\n', r"some\.csv line 3: .* not valid CSV"),
        (b"t,y\nok,0.2\nok,7\n", r"some\.csv line 3, column y: .* in \[0, 1\], got '7'"),
        (b"t,y\nok,1\nok,nan\n", r"some\.csv line 3, column y: a finite number .* got 'nan'"),
        (b"t,y\nok,1\nok,1\n", r"column y must have 2 to 1000 different labels, got 1"),
    ],
)
def test_bad_csv_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "some.csv"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=message):
        read_labelled_text(path, "t", "y")


def test_bad_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"none\.csv: no such file"):
        read_labelled_text(tmp_path / "none.csv", "t", "y")
    with pytest.raises(InvalidInput, match=r"must end in \.csv or \.tsv or \.parquet, got \.txt"):
        read_labelled_text(tmp_path / "some.txt", "t", "y")
    with pytest.raises(InvalidInput, match="must be different columns, got t for both"):
        read_labelled_text(tmp_path / "some.csv", "t", "t")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InvalidInput, match=r"folder\.csv: cannot be read: Is a directory"):
        read_labelled_text(tmp_path / "folder.csv", "t", "y")


def test_bad_parquet_is_refused(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    path = tmp_path / "some.parquet"
    path.write_bytes(b"no parquet")
    with pytest.raises(InvalidInput, match=r"some\.parquet cannot be read as a parquet file"):
        read_labelled_text(path, "t", "y")
    pq.write_table(pa.table({"t": [1, 2], "y": [0, 1]}), path)
    with pytest.raises(InvalidInput, match="row 1, column t: a text is needed, got 1"):
        read_labelled_text(path, "t", "y")
    with pytest.raises(InvalidInput, match="has no column u; its columns are t, y"):
        read_labelled_text(path, "u", "y")
    pq.write_table(pa.table({"t": ["a", None, "b"], "y": [0.4, 0.9, None]}), path)
    with pytest.raises(InvalidInput, match="row 3, column y: a label is needed, got nothing"):
        read_labelled_text(path, "t", "y")
    pq.write_table(pa.table({"t": ["a", None], "y": [True, False]}), path)
    read = read_labelled_text(path, "t", "y")
    assert read.texts == ["a", ""]
    assert read.labels.tolist() == [1, 0]


def test_missing_pyarrow_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(Missing, match=r"pip install 'covertfl\[text\]'"):
        read_labelled_text(tmp_path / "some.parquet", "t", "y")
