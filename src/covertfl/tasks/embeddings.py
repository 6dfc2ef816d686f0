"""A user's labelled vectors, from an .npz file such as `covertfl embed` writes.

The file holds `features`, (n, d) finite numbers, and `labels`, (n,) class numbers or names.  Two
classes are trained with a binary loss, the larger label being the positive one.  Each feature is
standardised over all rows, which uses no label; a constant feature becomes zero.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from covertfl.arrays import FloatArray, IntArray
from covertfl.errors import InvalidInput
from covertfl.files.regular import require_regular
from covertfl.kernels.weights import Float32Array
from covertfl.tasks.labelled_data import LabelledData, label_data, make_vector_task
from covertfl.tasks.models import TEXT_MODELS
from covertfl.tasks.task import DataSettings, TrainingTask
from covertfl.tasks.text_file import MOST_CLASSES

ARRAYS = ("features", "labels")
VALIDATION_SHARE = 0.1


def make_embeddings_task(settings: DataSettings) -> TrainingTask:
    """Make a task from the file `settings.path`; a tenth of the rows is for validation."""
    if settings.path is None:
        raise InvalidInput("task embeddings needs path, an .npz file with features and labels")
    data = load_embeddings(settings.path)
    size = round(VALIDATION_SHARE * len(data.classes))
    return make_vector_task(data, settings, TEXT_MODELS, validation_size=size)


def load_embeddings(path: str | os.PathLike[str]) -> LabelledData:
    """Return the checked and standardised rows of a file; cached until the file changes."""
    name = os.fspath(path)
    require_regular(name, "an .npz file")
    state = Path(name).stat()
    return _load(name, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=4)
def _load(path: str, _changed: int, _size: int) -> LabelledData:
    arrays = _read_arrays(path)
    features = _check_features(path, arrays["features"])
    classes, count = _check_labels(path, arrays["labels"], len(features))
    return label_data(_standardise(features), classes, count)


def _read_arrays(path: str) -> dict[str, npt.NDArray[Any]]:
    try:
        # opened here, because numpy leaves the file open if it is not an archive
        with Path(path).open("rb") as stream:
            archive = np.load(stream, allow_pickle=False)
            names = list(getattr(archive, "files", []))
            arrays = {name: archive[name] for name in ARRAYS if name in names}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidInput(f"{path} cannot be read as an .npz file: {error}") from error
    if len(arrays) < len(ARRAYS):
        raise InvalidInput(
            f"{path} must hold the arrays {' and '.join(ARRAYS)}, "
            f"got {', '.join(names) or 'none with a name'}"
        )
    return arrays


def _check_features(path: str, features: npt.NDArray[Any]) -> FloatArray:
    if features.ndim != 2 or 0 in features.shape:
        raise InvalidInput(f"{path}: features must have shape (n, d), got {features.shape}")
    if features.dtype.kind not in "fiub":
        raise InvalidInput(f"{path}: features must be numbers, got {features.dtype}")
    faulty = np.argwhere(~np.isfinite(features))
    if len(faulty):
        row, column = faulty[0]
        raise InvalidInput(
            f"{path}: features must be finite, got {features[row, column]} "
            f"in row {row}, column {column}"
        )
    return features.astype(np.float64)


def _check_labels(path: str, labels: npt.NDArray[Any], rows: int) -> tuple[IntArray, int]:
    if labels.shape != (rows,):
        raise InvalidInput(f"{path}: labels must have shape ({rows},), got {labels.shape}")
    if labels.dtype.kind not in "fiubU":
        raise InvalidInput(f"{path}: labels must be numbers or names, got {labels.dtype}")
    if labels.dtype.kind == "f":
        faulty = np.flatnonzero(~np.isfinite(labels) | (labels != np.round(labels)))
        if len(faulty):
            raise InvalidInput(
                f"{path}: labels must be whole numbers or names, "
                f"got {labels[faulty[0]]} in row {faulty[0]}"
            )
    names, classes = np.unique(labels, return_inverse=True)
    if not 2 <= len(names) <= MOST_CLASSES:
        raise InvalidInput(
            f"{path}: labels must have 2 to {MOST_CLASSES} different values, got {len(names)}"
        )
    return classes.astype(np.int64), len(names)


def _standardise(features: FloatArray) -> Float32Array:
    deviation = features.std(axis=0)
    deviation[deviation == 0.0] = 1.0
    return np.asarray((features - features.mean(axis=0)) / deviation, dtype=np.float32)
