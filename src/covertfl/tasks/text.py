"""Embedding of text, offline (Appendix A of the paper).

The paper cleans comments and embeds them in 128 dimensions.  Here the encoder is wordllama, whose
weights come with its package: the vector of a text is the mean of the vectors of its tokens.  The
vectors are stored as the encoder returns them; a task that uses them standardises them
(`tasks.embeddings`).

Cleaning makes "can't" and "cant" one word: apostrophes are removed, and every other character that
is not a letter, digit or accent becomes a space.  Case is kept: the paper does not mention it, and
the encoder distinguishes it.  The vector of a text with nothing left is zero.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from covertfl.errors import InvalidInput, Missing
from covertfl.files.disk import write_atomically
from covertfl.kernels.job import Float32Array
from covertfl.tasks.task import Encoder
from covertfl.tasks.text_file import LabelledText, read_labelled_text

ENCODER = "wordllama"
DIMENSIONS = 128
PROBE = "The quick brown fox can't jump over 12 lazy dogs; caf\u00e9, \u4e2d\u6587."
CHUNK = 256  # texts that are tokenised together

OnProgress = Callable[[str, float], None]


class _CleaningTable(dict[int, int | str | None]):
    """Translation table that finds the replacement of a character when it first occurs."""

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
    """Return a text without special characters and repeated spaces (Appendix A)."""
    return " ".join(text.translate(_CLEANING).split())


def embed_texts(texts: Sequence[str], *, on_progress: OnProgress | None = None) -> Float32Array:
    """Return (n, 128) vectors of texts, each the mean of its tokens' vectors; not standardised.

    The encoder's table has 16-bit floats, whose sums in double precision are exact: a vector
    depends neither on the other texts nor on the machine.

    Parameters
    ----------
    texts : (n,) not cleaned
    on_progress : called with a description and the share of the texts done

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
def _load_encoder() -> tuple[Any, Float32Array]:
    """Return the tokenizer and the table of token vectors, from wordllama's own folder."""
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
                f"wordllama in {folder} has no weights: "
                "reinstall it with pip install --force-reinstall 'covertfl[text]'"
            ) from error
    encoder.tokenizer.no_padding()
    return encoder.tokenizer, encoder.embedding


@contextmanager
def _unchanged_logging() -> Iterator[None]:
    """Undo the logging configuration that importing wordllama sets up for the whole program."""
    import logging

    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def describe_encoder(text_column: str | None = None) -> Encoder:
    """Return the name, version and fingerprint of the encoder that `embed_texts` uses.

    Raises
    ------
    Missing
        if wordllama is not installed
    """
    digest = hashlib.sha256(embed_texts([PROBE]).astype("<f4").tobytes()).hexdigest()
    return Encoder(ENCODER, metadata.version(ENCODER), DIMENSIONS, digest, text_column)


def require_encoder(encoder: Encoder, name: str) -> None:
    """Raise Missing if the installed encoder is another one than the model `name` needs."""
    found = describe_encoder()
    if (found.name, found.fingerprint) != (encoder.name, encoder.fingerprint):
        raise Missing(
            f"{name} needs the encoder {encoder.name} {encoder.version}, whose vectors differ from "
            f"those of the installed {found.name} {found.version}: "
            f"pip install '{encoder.name}=={encoder.version}'"
        )


def write_embeddings(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    text_column: str,
    label_column: str | None,
    *,
    on_progress: OnProgress | None = None,
) -> LabelledText:
    """Embed a file of text and write an .npz file; return the texts and labels that were read.

    The file holds `features`, `encoder` (JSON) and, unless `label_column` is None, `labels` (class
    numbers) and `classes` (the name of each).
    """
    if Path(out).suffix != ".npz":
        raise InvalidInput(f"the output file must end in .npz, got {os.fspath(out)}")
    read = read_labelled_text(path, text_column, label_column)
    encoder = json.dumps(asdict(describe_encoder(text_column)))
    arrays: dict[str, Any] = {"features": embed_texts(read.texts, on_progress=on_progress)}
    if read.classes:
        arrays |= {"labels": read.labels, "classes": np.array(read.classes)}
    stream = io.BytesIO()
    np.savez(stream, **arrays, encoder=np.array(encoder))
    write_atomically(out, stream.getvalue())
    return read
