"""Tables are read and written; other columns pass through."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

import covertfl as cf
from covertfl.files.table import read_table, write_table

TEXT = 'id,text\n007,"a ""quoted"",\nlonger text"\n8,\n'


def test_cells_of_text_files_pass_through(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(TEXT)
    table = read_table(tmp_path / "in.csv")
    assert table.find("text") == ['a "quoted",\nlonger text', ""]
    assert table.places == ["line 2", "line 4"]
    write_table(tmp_path / "out.tsv", table, {"score": [0.25, 1.0]})
    again = read_table(tmp_path / "out.tsv")
    assert again.header == ("id", "text", "score")
    assert again.find("id") == ["007", "8"]
    assert again.find("text") == table.find("text")
    assert again.find("score") == ["0.25", "1.0"]
    write_table(tmp_path / "same.csv", read_table(tmp_path / "in.csv"), {})
    assert (tmp_path / "same.csv").read_text() == TEXT


def test_cells_of_parquet_files_keep_their_types(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    columns = {
        "when": pa.array([1, 2], pa.timestamp("ns")),  # not all Python dates can hold it
        "small": pa.array([1.5, None], pa.float32()),
        "text": ["one", None],
    }
    pq.write_table(pa.table(columns), tmp_path / "in.parquet")
    table = read_table(tmp_path / "in.parquet")
    write_table(tmp_path / "out.parquet", table, {"label": ["a", "b"]})
    written = pq.read_table(tmp_path / "out.parquet")
    assert written.schema.types[:3] == [pa.timestamp("ns"), pa.float32(), pa.string()]
    assert written.column("label").to_pylist() == ["a", "b"]
    assert table.find("text") == ["one", None]


def test_dates_of_parquet_files_become_text(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    pq.write_table(pa.table({"when": [datetime(2024, 1, 2)], "n": [None]}), tmp_path / "in.parquet")
    write_table(tmp_path / "out.csv", read_table(tmp_path / "in.parquet"), {"label": ["a"]})
    assert (tmp_path / "out.csv").read_text() == "when,n,label\n2024-01-02 00:00:00,,a\n"


def test_other_names_are_refused(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(TEXT)
    with pytest.raises(cf.InvalidInput, match=r"out\.xlsx must end in \.csv or \.tsv or \.parquet"):
        write_table(tmp_path / "out.xlsx", read_table(tmp_path / "in.csv"), {})
