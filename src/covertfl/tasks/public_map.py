"""The public map: a fixed linear map of the inputs that stands in front of a model.

The inputs are centred, rotated into the eigenbasis of a covariance of the public set, and scaled.
The covariance is that of the public set's majority class, or of all classes pooled within each if
there are more than two.  The map comes from public data alone, is given to every client with the
model, and is part of an exported model.

Flipping the sign of an axis of the mapped inputs leaves the mean (zero) and the covariance of the
public majority class exactly as they are.  That is what exchangeable replicas use.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from covertfl.arrays import BoolArray, FloatArray
from covertfl.errors import InvalidInput
from covertfl.files.disk import write_atomically
from covertfl.files.tensors import FORMAT, read_tensors
from covertfl.files.text import FORMATS
from covertfl.kernels.job import Examples, Float32Array, Loss

# Rows that are mapped at a time, to limit the memory of their double precision copies.
ROWS_AT_A_TIME = 10_000
# An axis on which the classes differ by a two-sample t above this is known from the public set.
KNOWN_FROM = 2.0


@dataclass(frozen=True, eq=False)
class PublicMap:
    """A linear map of inputs, x -> ((x - mean) @ basis) * scale.

    Parameters
    ----------
    mean : (d,)
    basis : (d, d), one axis in each column, that of the largest eigenvalue first
    scale : (d,), positive
    fingerprint : SHA-256 of the public set that it was computed from
    """

    mean: FloatArray
    basis: FloatArray
    scale: FloatArray
    fingerprint: str

    def apply(self, features: Float32Array) -> Float32Array:
        """Return (n, d) features as the model sees them."""
        if features.ndim != 2 or features.shape[1] != len(self.mean):
            raise InvalidInput(
                f"features must have shape (n, {len(self.mean)}) for the public map, "
                f"got {features.shape}"
            )
        mapped = np.empty(features.shape, dtype=np.float32)
        for start in range(0, len(features), ROWS_AT_A_TIME):
            rows = slice(start, start + ROWS_AT_A_TIME)
            mapped[rows] = ((features[rows] - self.mean) @ self.basis) * self.scale
        return mapped

    def save(self, path: str | os.PathLike[str], *, mode: int | None = None) -> None:
        """Write the map to a safetensors file, for clients; the same map gives the same bytes.

        The file gets the permissions `mode`, None for the system's default.
        """
        from safetensors.numpy import save

        # As an array: safetensors writes several entries of metadata in any order.
        fingerprint = np.frombuffer(self.fingerprint.encode(), dtype=np.uint8)
        metadata = {FORMAT: str(FORMATS["map"])}
        arrays: dict[str, Any] = {**self.arrays, "fingerprint": fingerprint}
        write_atomically(path, save(arrays, metadata=metadata), mode=mode)

    @property
    def arrays(self) -> dict[str, FloatArray]:
        """Return `mean`, `basis` and `scale` by name."""
        return {"mean": self.mean, "basis": self.basis, "scale": self.scale}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PublicMap:
        """Return the map that `save` wrote.

        Raises
        ------
        InvalidInput
            if the file cannot be read, is no public map, or has another format
        """
        arrays, _ = read_tensors(path, "map")
        fingerprint = arrays.pop("fingerprint", np.empty(0, dtype=np.uint8))
        return cls.from_arrays(
            arrays, fingerprint.tobytes().decode("ascii", "replace"), os.fspath(path)
        )

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, FloatArray], fingerprint: str, name: str
    ) -> PublicMap:
        """Return the map of `arrays`, by field, from the file `name`.

        Raises
        ------
        InvalidInput
            if an array is missing, or their shapes do not fit together
        """
        shapes = {
            key: arrays[key].shape if key in arrays else () for key in ("mean", "basis", "scale")
        }
        width = shapes["mean"][0] if len(shapes["mean"]) == 1 else -1
        if shapes != {"mean": (width,), "basis": (width, width), "scale": (width,)}:
            raise InvalidInput(f"{name}: the arrays of a public map must fit together")
        return cls(arrays["mean"], arrays["basis"], arrays["scale"], fingerprint)


def compute_public_map(public: Examples, loss: Loss) -> PublicMap:
    """Return the public map of a public set with (n, d) features.

    Eigenvalues are shrunk towards their mean by the share d / (n + d), so that a public set with
    few rows does not scale an axis up without limit.
    """
    features = public.features.astype(np.float64)
    if features.ndim != 2:
        raise InvalidInput(
            "the public map needs a model with vectors as inputs, whose first layer is linear, got "
            f"inputs of shape {features.shape[1:]}"
        )
    if len(features) < 2:
        raise InvalidInput(
            f"the public map needs a public set of at least 2 rows, got {len(features)}"
        )
    classes, counts = np.unique(public.labels, return_counts=True)
    if loss == "binary":
        rows = features[public.labels == classes[np.argmax(counts)]]
        mean = rows.mean(axis=0)
        inside = rows - mean
    else:
        mean = features.mean(axis=0)
        inside = np.concatenate(
            [part - part.mean(axis=0) for part in (features[public.labels == c] for c in classes)]
        )
    values, vectors = np.linalg.eigh(inside.T @ inside / len(inside))
    values, basis = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
    size, width = inside.shape
    shrunk = values + width / (size + width) * (values.mean() - values)
    scale = 1.0 / np.sqrt(shrunk) if shrunk.min() > 0.0 else np.ones(width)
    # A rotation's columns are defined up to their sign: the largest number is positive.
    largest = basis[np.abs(basis).argmax(axis=0), np.arange(width)]
    digest = hashlib.sha256(public.features.tobytes() + public.labels.tobytes()).hexdigest()
    return PublicMap(mean, np.ascontiguousarray(basis * np.sign(largest)), scale, digest)


def find_free_axes(public: Examples) -> BoolArray:
    """Return (d,) on which axes of the mapped inputs the classes of the public set do not differ.

    On a free axis the F statistic between classes, with two classes the square of the two-sample t
    with a pooled variance, is below `KNOWN_FROM` squared.  With a single class all axes are free.
    """
    features = public.features.astype(np.float64)
    classes = np.unique(public.labels)
    groups = [features[public.labels == each] for each in classes]
    degrees = len(features) - len(groups)
    if len(groups) < 2 or degrees < 1:
        return np.ones(features.shape[1], dtype=bool)
    overall = features.mean(axis=0)
    between = sum(len(group) * (group.mean(axis=0) - overall) ** 2 for group in groups)
    within = sum(np.square(group - group.mean(axis=0)).sum(axis=0) for group in groups)
    ratio = np.asarray(between / (len(groups) - 1))
    return np.asarray(ratio < KNOWN_FROM**2 * np.asarray(within) / degrees)
