"""Labelled text to labelled vectors: cleaning, encoding, writing."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from covertfl.errors import InvalidInput, Missing
from covertfl.tasks import text
from covertfl.tasks.text import clean_text, embed_texts, write_embeddings
from covertfl.tasks.toxicity import ENCODER


@pytest.mark.parametrize(
    ("given_text", "cleaned"),
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
def test_cleaning_of_special_characters(given_text: str, cleaned: str | None) -> None:
    assert clean_text(given_text) == (given_text if cleaned is None else cleaned)


@given(st.text())
def test_cleaning_twice_changes_nothing(drawn: str) -> None:
    cleaned = clean_text(drawn)
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
        expected = encoder.embed([clean_text(one) for one in texts])
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

    def test_progress_is_reported(self) -> None:
        seen: list[tuple[str, float]] = []
        embed_texts(["word"] * 300, on_progress=lambda *news: seen.append(news))
        assert seen == [("256 of 300 texts", 256 / 300), ("300 of 300 texts", 1.0)]

    def test_logging_of_the_program_is_left_alone(self) -> None:
        before = list(logging.getLogger().handlers)
        text._load_encoder.cache_clear()
        embed_texts(["word"])
        assert logging.getLogger().handlers == before

    def test_another_encoder_is_refused(self) -> None:
        """That of the shipped vectors is the installed one."""
        text.require_encoder(ENCODER, "model")
        with pytest.raises(Missing, match=r"model needs .*: pip install 'wordllama==9'"):
            text.require_encoder(replace(ENCODER, version="9", fingerprint="0"), "model")

    def test_written_file_holds_vectors_labels_and_names(self, tmp_path: Path) -> None:
        path = tmp_path / "some.csv"
        path.write_text("text,kind\none,spam\ntwo,ham\nthree,spam\n", encoding="utf-8")
        read = write_embeddings(path, tmp_path / "out.npz", "text", "kind")
        assert read.classes == ("ham", "spam")
        with np.load(tmp_path / "out.npz", allow_pickle=False) as arrays:
            assert arrays["labels"].tolist() == [1, 0, 1]
            assert arrays["classes"].tolist() == ["ham", "spam"]
            np.testing.assert_array_equal(arrays["features"], embed_texts(["one", "two", "three"]))
            encoder = json.loads(str(arrays["encoder"]))
        assert encoder == asdict(text.describe_encoder("text"))
        write_embeddings(path, tmp_path / "plain.npz", "text", None)
        with np.load(tmp_path / "plain.npz", allow_pickle=False) as arrays:
            assert sorted(arrays.files) == ["encoder", "features"]
        with pytest.raises(InvalidInput, match=r"must end in \.npz"):
            write_embeddings(path, tmp_path / "out.txt", "text", "kind")


def test_missing_wordllama_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wordllama", None)
    text._load_encoder.cache_clear()
    with pytest.raises(Missing, match=r"pip install 'covertfl\[text\]'"):
        embed_texts(["word"])
