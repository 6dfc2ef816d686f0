"""Labelled text to labelled vectors: cleaning, encoding, reading files, refusals."""

from __future__ import annotations

import csv
import logging
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from covertfl.errors import InvalidInput, Missing
from covertfl.tasks import text as embedding
from covertfl.tasks.text import (
    clean_text,
    embed_file,
    embed_texts,
    read_labelled_text,
    write_embeddings,
)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="")
    return path


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("can't", "cant"),
        ("can\u2019t", "cant"),
        ("cant", "cant"),
        ("You   DO,\n\nno?!", "You DO no"),
        ("a_b-c/d", "a b c d"),
        ("caf\u00e9 \u0939\u093f\u0928\u094d\u0926\u0940 \u4e2d\u6587 42", None),  # scripts stay
        ("\U0001f602 ok \u200b\x00", "ok"),
        ("  ...  ", ""),
    ],
)
def test_cleaning_of_special_characters(text: str, cleaned: str | None) -> None:
    assert clean_text(text) == (text if cleaned is None else cleaned)


@given(st.text())
def test_cleaning_twice_changes_nothing(text: str) -> None:
    cleaned = clean_text(text)
    assert clean_text(cleaned) == cleaned
    assert cleaned == " ".join(cleaned.split())


class TestEncoder:
    @pytest.fixture(autouse=True)
    def _needs_wordllama(self) -> None:
        pytest.importorskip("wordllama", reason="wordllama is not installed")

    def test_vector_is_the_mean_of_the_tokens(self) -> None:
        """Against the encoder's own pooling of the cleaned text."""
        from wordllama import WordLlama

        folder = Path(sys.modules["wordllama"].__file__ or "").parent
        encoder = WordLlama.load(cache_dir=folder, disable_download=True, trunc_dim=128)
        texts = ["Don't do that!", "a much longer comment, of " + 300 * "many words "]
        expected = encoder.embed([clean_text(text) for text in texts])
        np.testing.assert_allclose(embed_texts(texts), expected, rtol=1e-4, atol=1e-6)

    def test_vector_does_not_depend_on_the_other_texts(self) -> None:
        texts = [f"comment number {n} " * (n % 7 + 1) for n in range(600)]
        together = embed_texts(texts)
        assert together.dtype == np.float32
        for row in (0, 255, 256, 599):
            np.testing.assert_array_equal(embed_texts([texts[row]])[0], together[row])

    def test_empty_text_is_the_zero_vector(self) -> None:
        vectors = embed_texts(["!!!", "word"])
        assert not vectors[0].any()
        assert vectors[1].any()
        assert embed_texts([]).shape == (0, 128)

    def test_progress_is_told(self) -> None:
        told: list[tuple[str, float]] = []
        embed_texts(["word"] * 300, on_progress=lambda *news: told.append(news))
        assert told == [("256 of 300 texts", 256 / 300), ("300 of 300 texts", 1.0)]

    def test_logging_of_the_program_is_left_alone(self) -> None:
        before = list(logging.getLogger().handlers)
        embedding._load_encoder.cache_clear()
        embed_texts(["word"])
        assert logging.getLogger().handlers == before

    def test_csv_and_parquet_give_the_same(self, tmp_path: Path) -> None:
        pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
        texts, labels = ['He said "no",\nthen left', "Can't", "fine"], [1, 0, 1]
        with (tmp_path / "some.csv").open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows([["id", "toxic", "comment"]])
            csv.writer(stream).writerows(
                [n, label, text] for n, (label, text) in enumerate(zip(labels, texts, strict=True))
            )
        pq.write_table(pa.table({"comment": texts, "toxic": labels}), tmp_path / "some.parquet")
        features, found = embed_file(tmp_path / "some.csv", "comment", "toxic")
        others, same = embed_file(tmp_path / "some.parquet", "comment", "toxic")
        np.testing.assert_array_equal(features, others)
        np.testing.assert_array_equal(features, embed_texts(texts))
        assert found.tolist() == same.tolist() == labels
        assert found.dtype == np.int64

    def test_written_file_holds_vectors_labels_and_names(self, tmp_path: Path) -> None:
        path = write(tmp_path / "some.csv", "text,kind\none,spam\ntwo,ham\nthree,spam\n")
        read = write_embeddings(path, tmp_path / "out.npz", "text", "kind")
        assert read.classes == ("ham", "spam")
        with np.load(tmp_path / "out.npz", allow_pickle=False) as arrays:
            assert arrays["labels"].tolist() == [1, 0, 1]
            assert arrays["classes"].tolist() == ["ham", "spam"]
            np.testing.assert_array_equal(arrays["features"], embed_texts(["one", "two", "three"]))
        with pytest.raises(InvalidInput, match=r"must end in \.npz"):
            write_embeddings(path, tmp_path / "out.txt", "text", "kind")


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
        (b"t,y\nok,1\nbad \xff,0\n", r"some\.csv line 3: .* must be UTF-8 text, got the byte 0xff"),
        (b"t,y\nok,1\nok\n", r"some\.csv line 3: the header has 2 columns, this row 1"),
        (b'"t",y\n"two\nlines",1\nok,\n', r"some\.csv line 4, column y: a label .* got nothing"),
        (b't,y\nok,1\n"open,0\nmore,1\n', r"some\.csv line 3: .* not CSV"),
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
    with pytest.raises(InvalidInput, match=r"none\.csv does not exist"):
        read_labelled_text(tmp_path / "none.csv", "t", "y")
    with pytest.raises(InvalidInput, match=r"must end in \.csv or \.parquet, got \.txt"):
        read_labelled_text(tmp_path / "some.txt", "t", "y")
    with pytest.raises(InvalidInput, match="must be two columns, got t for both"):
        read_labelled_text(tmp_path / "some.csv", "t", "t")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InvalidInput, match=r"folder\.csv cannot be read: Is a directory"):
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


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wordllama", None)
    embedding._load_encoder.cache_clear()
    with pytest.raises(Missing, match=r"pip install 'covertfl\[text\]'"):
        embed_texts(["word"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(Missing, match=r"pip install 'covertfl\[text\]'"):
        read_labelled_text(tmp_path / "some.parquet", "t", "y")
