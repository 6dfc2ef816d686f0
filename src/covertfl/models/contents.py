"""The file of an exported model: tensors, and facts about them as JSON in the metadata.

The metadata of the safetensors file has two entries.  `covertfl_format` is the format version, and
`covertfl_model` a JSON object: what `tasks.description: describe_model` returns, without the
numbers of the standardisation, and what `export` adds.  The tensors are the parameters by name;
`standardisation.mean` and `standardisation.deviation`; and `public_map.mean`, `public_map.basis`
and `public_map.scale`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from covertfl.errors import InvalidInput
from covertfl.files.tensors import FORMAT, read_tensors
from covertfl.files.text import FORMATS, parse_json
from covertfl.kernels.job import Vector
from covertfl.tasks.public_map import PublicMap
from covertfl.tasks.task import Standardisation

FACTS = "covertfl_model"
STANDARDISATION, PUBLIC_MAP = "standardisation.", "public_map."
LENGTH = 8  # bytes of a safetensors file that hold the length of its header


@dataclass(frozen=True, eq=False)
class ModelContents:
    """What is in the file of an exported model, with the weights by parameter."""

    facts: Mapping[str, Any]
    weights: Mapping[str, Vector]
    standardisation: Standardisation | None
    public_map: PublicMap | None


def pack_model(contents: ModelContents) -> bytes:
    """Return the bytes of the file; the same contents give the same bytes."""
    from safetensors.numpy import save

    tensors: dict[str, npt.NDArray[Any]] = dict(contents.weights)
    if contents.standardisation is not None:
        found = contents.standardisation
        tensors |= {f"{STANDARDISATION}mean": found.mean}
        tensors |= {f"{STANDARDISATION}deviation": found.deviation}
    if contents.public_map is not None:
        arrays = contents.public_map.arrays
        tensors |= {f"{PUBLIC_MAP}{name}": array for name, array in arrays.items()}
    facts = json.dumps(contents.facts, allow_nan=False)
    metadata = {FORMAT: str(FORMATS["model"]), FACTS: facts}
    kept = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    return _sort_metadata(save(kept, metadata=metadata))


def _sort_metadata(content: bytes) -> bytes:
    """Return a safetensors file with its metadata in order, which the library leaves to chance."""
    length = int.from_bytes(content[:LENGTH], "little")
    header = json.loads(content[LENGTH : LENGTH + length])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH)
    return len(text).to_bytes(LENGTH, "little") + text + content[LENGTH + length :]


def read_contents(path: str | os.PathLike[str]) -> ModelContents:
    """Return what is in the file of an exported model.

    Raises
    ------
    InvalidInput
        if it is no such file, or another version of covertfl wrote it
    """
    tensors, metadata = read_tensors(path, "model")
    return _sort_tensors(os.fspath(path), metadata, tensors)


def _sort_tensors(
    name: str, metadata: Mapping[str, str], tensors: Mapping[str, npt.NDArray[Any]]
) -> ModelContents:
    facts = parse_json(metadata.get(FACTS, "null"), f"{name}: {FACTS}")
    if not isinstance(facts, dict):
        raise InvalidInput(f"{name}: {FACTS} must be a JSON object")
    weights = {
        key: tensor
        for key, tensor in tensors.items()
        if not key.startswith((STANDARDISATION, PUBLIC_MAP))
    }
    if not weights:
        raise InvalidInput(f"{name}: must hold the tensors of a model, got none")
    arrays = _select(tensors, PUBLIC_MAP)
    digest = str(facts.get("public_map"))
    public_map = PublicMap.from_arrays(arrays, digest, name) if arrays else None
    found = _select(tensors, STANDARDISATION)
    return ModelContents(facts, weights, _make_standardisation(name, found), public_map)


def _select(tensors: Mapping[str, npt.NDArray[Any]], prefix: str) -> dict[str, npt.NDArray[Any]]:
    chosen = (key for key in tensors if key.startswith(prefix))
    return {key.removeprefix(prefix): tensors[key] for key in chosen}


def _make_standardisation(
    name: str, arrays: Mapping[str, npt.NDArray[Any]]
) -> Standardisation | None:
    if not arrays:
        return None
    if set(arrays) != {"mean", "deviation"}:
        raise InvalidInput(f"{name}: a standardisation must have mean and deviation")
    mean, deviation = arrays["mean"], arrays["deviation"]
    if mean.ndim != 1 or mean.shape != deviation.shape or not (deviation > 0.0).all():
        raise InvalidInput(
            f"{name}: mean and deviation must have the same shape, and deviations must be positive"
        )
    return Standardisation(mean.astype(np.float64), deviation.astype(np.float64))
