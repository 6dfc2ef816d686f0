"""A user's labelled vectors, from an .npz file such as `covertfl embed` writes.

The file holds `features`, (n, d) finite numbers, and `labels`, (n,) class numbers or names; with
class numbers, `classes` may hold their names, and `encoder` what made vectors of texts.  Two
classes are trained with a binary loss, the larger label being the positive one.

Each feature is standardised with mean and deviation of the public set, never with rows of clients
or of the validation set; a feature that is constant in the public set is centred only.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from covertfl.arrays import FloatArray, IntArray
from covertfl.errors import InvalidInput
from covertfl.files.disk import require_regular
from covertfl.files.text import parse_json
from covertfl.tasks.data import LabelledData, divide_data, label_data, make_vector_task
from covertfl.tasks.models import TEXT_MODELS
from covertfl.tasks.task import (
    VECTORS,
    DataSettings,
    Encoder,
    Inputs,
    TrainingTask,
    measure_standardisation,
)
from covertfl.tasks.text_file import MOST_CLASSES

OPTIONAL = ("classes", "encoder")
VALIDATION_SHARE = 0.1
Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, eq=False)
class VectorFile:
    """The content of a file: (n, d) features as they are, classes and their names, encoder."""

    features: FloatArray
    data: LabelledData
    encoder: Encoder | None


def make_embeddings_task(settings: DataSettings) -> TrainingTask:
    """Make a task from the file `settings.path`; a tenth of the rows is for validation."""
    if settings.path is None:
        raise InvalidInput("task embeddings needs path, an .npz file with features and labels")
    file = load_embeddings(settings.path)
    size = round(VALIDATION_SHARE * len(file.features))
    public = divide_data(file.data, settings, size).public
    data = _standardise(file, public.tobytes())
    return make_vector_task(data, settings, TEXT_MODELS, validation_size=size)


@lru_cache(maxsize=16)
def _standardise(file: VectorFile, public: bytes) -> LabelledData:
    """Return the rows of a file, standardised by those of the public set, given by number."""
    rows = np.frombuffer(public, dtype=np.int64)
    found = measure_standardisation(file.features[rows])
    meaning = "numbers as in the file" if file.encoder is None else VECTORS
    inputs = Inputs(meaning, file.encoder, found)
    return label_data(found.apply(file.features), file.data.classes, file.data.names, inputs)


def load_embeddings(path: str | os.PathLike[str]) -> VectorFile:
    """Return the checked content of a file; cached until the file changes."""
    name = os.fspath(path)
    require_regular(name, "an .npz file")
    state = Path(name).stat()
    return _load(name, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=4)
def _load(path: str, _changed: int, _size: int) -> VectorFile:
    arrays = _read_arrays(path, ("features", "labels"))
    features = _check_features(path, arrays["features"])
    classes, names = _check_labels(path, arrays, len(features))
    return VectorFile(features, label_data(features, classes, names), _read_encoder(path, arrays))


def read_features(path: str | os.PathLike[str]) -> npt.NDArray[Any]:
    """Return the array `features` of an .npz file, whose labels, if any, are not read."""
    require_regular(path, "an .npz file")
    return _read_arrays(os.fspath(path), ("features",))["features"]


def _read_arrays(path: str, needed: Sequence[str]) -> Arrays:
    try:
        # opened here, because numpy leaves the file open if it is not an archive
        with Path(path).open("rb") as stream:
            archive = np.load(stream, allow_pickle=False)
            names = list(getattr(archive, "files", []))
            arrays = {name: archive[name] for name in (*needed, *OPTIONAL) if name in names}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidInput(f"{path} cannot be read as an .npz file: {error}") from error
    if not set(needed) <= set(arrays):
        unlabelled = "features" in arrays and "encoder" in arrays
        remedy = ": embed the texts again with --label COLUMN" if unlabelled else ""
        raise InvalidInput(
            f"{path} must hold the arrays {' and '.join(needed)}, "
            f"got {', '.join(names) or 'none with a name'}{remedy}"
        )
    return arrays


def _read_encoder(path: str, arrays: Arrays) -> Encoder | None:
    if "encoder" not in arrays:
        return None
    try:
        return Encoder.from_dict(parse_json(str(arrays["encoder"]), "it"))
    except InvalidInput as error:
        raise InvalidInput(f"{path}: encoder is not what covertfl embed writes: {error}") from error


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


def _check_labels(path: str, arrays: Arrays, rows: int) -> tuple[IntArray, tuple[str, ...]]:
    """Return the class number of each row, and the names of the classes."""
    labels = arrays["labels"]
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
        labels = labels.astype(np.int64)
    values, classes = np.unique(labels, return_inverse=True)
    if not 2 <= len(values) <= MOST_CLASSES:
        raise InvalidInput(
            f"{path}: labels must have 2 to {MOST_CLASSES} different values, got {len(values)}"
        )
    return classes.astype(np.int64), _name_classes(path, arrays.get("classes"), values)


def _name_classes(
    path: str, names: npt.NDArray[Any] | None, values: npt.NDArray[Any]
) -> tuple[str, ...]:
    """Return the names of label values: those in `names`, by number, or the values themselves."""
    if names is None or values.dtype.kind == "U":
        return tuple(str(value) for value in values.tolist())
    if names.ndim != 1 or names.dtype.kind != "U" or not 0 <= values[0] <= values[-1] < len(names):
        raise InvalidInput(
            f"{path}: classes must hold a name for each class number, "
            f"got {names.size} for the numbers {values[0]} to {values[-1]}"
        )
    return tuple(names[values.astype(np.int64)].tolist())
