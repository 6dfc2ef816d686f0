"""What the inputs of a model are: which encoder makes them of texts, how they are standardised.

A trained model is of use only with the same inputs, so they are recorded with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from covertfl.arrays import FloatArray
from covertfl.errors import InvalidInput
from covertfl.kernels.weights import Float32Array

VECTORS = "the vector of a text"


@dataclass(frozen=True)
class Encoder:
    """The encoder that turns texts into vectors.

    Parameters
    ----------
    name, version : of the package
    dimensions : numbers in a vector
    fingerprint : SHA-256 of the vector of a fixed text; another version with the same fingerprint
        is the same encoder
    text_column : name of the column that the texts were in, None if it is not known
    """

    name: str
    version: str
    dimensions: int
    fingerprint: str
    text_column: str | None = None

    @classmethod
    def from_dict(cls, content: object) -> Encoder:
        """Return the encoder that `dataclasses.asdict` was made from, also after JSON.

        Raises
        ------
        InvalidInput
            if a key is missing or unknown, or a value has another type
        """
        if not isinstance(content, Mapping) or set(content) != set(cls.__dataclass_fields__):
            raise InvalidInput(f"an encoder must have {', '.join(cls.__dataclass_fields__)}")
        found = cls(**content)
        texts = (found.name, found.version, found.fingerprint, found.text_column or "")
        if not all(isinstance(text, str) for text in texts) or type(found.dimensions) is not int:
            raise InvalidInput("an encoder must have texts and a whole number of dimensions")
        return found


@dataclass(frozen=True, eq=False)
class Standardisation:
    """The map x -> (x - mean) / deviation of inputs.

    Parameters
    ----------
    mean, deviation : (d,), or (1,) for all numbers of an input alike; deviations are positive
    """

    mean: FloatArray
    deviation: FloatArray

    def apply(self, features: npt.NDArray[Any]) -> Float32Array:
        """Return (n, ...) features standardised, computed in double precision."""
        return np.asarray((features - self.mean) / self.deviation, dtype=np.float32)


def measure_standardisation(features: FloatArray) -> Standardisation:
    """Return mean and deviation of each of (n, d) features; the deviation of a constant is 1."""
    deviation = features.std(axis=0)
    deviation[deviation == 0.0] = 1.0
    return Standardisation(features.mean(axis=0), deviation)


@dataclass(frozen=True, eq=False)
class Inputs:
    """What the inputs of a task were before its features were made of them.

    Parameters
    ----------
    meaning : of the numbers of an input, in words
    encoder : that makes them of texts, None for inputs that are numbers
    standardisation : that they pass first, None for none
    """

    meaning: str = "the features of an example"
    encoder: Encoder | None = None
    standardisation: Standardisation | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return `meaning` and `encoder` as JSON values."""
        encoder = None if self.encoder is None else asdict(self.encoder)
        return {"meaning": self.meaning, "encoder": encoder}
