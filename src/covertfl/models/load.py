"""Exported models in use: read from their file, they predict classes of texts or features."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from covertfl.api.result import Result
from covertfl.arrays import FloatArray
from covertfl.errors import InvalidInput, Missing
from covertfl.kernels.job import Float32Array
from covertfl.models.contents import ModelContents, read_contents
from covertfl.tasks.models import build_module, can_be_built
from covertfl.tasks.task import Encoder

if TYPE_CHECKING:
    import torch
    from torch import nn

ROWS_AT_A_TIME = 4096
OnProgress = Callable[[str, float], None]


@dataclass(frozen=True, eq=False, repr=False)
class Predictions(Result):
    """What a model says about n inputs.

    Parameters
    ----------
    labels : (n,) name of the class of each input
    scores : (n,) probability of that class
    classes : (K,) names of all classes
    probabilities : (n, K) probability of every class
    """

    labels: tuple[str, ...]
    scores: FloatArray
    classes: tuple[str, ...]
    probabilities: FloatArray

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain lists."""
        return {
            "labels": list(self.labels),
            "scores": self.scores.tolist(),
            "classes": list(self.classes),
            "probabilities": self.probabilities.tolist(),
        }

    def count(self) -> dict[str, int]:
        """Return the number of inputs of each class."""
        return {name: self.labels.count(name) for name in self.classes}

    def _facts(self) -> Mapping[str, str]:
        counts = ", ".join(f"{count:,} {name}" for name, count in self.count().items())
        return {"inputs": f"{len(self.labels):,}", "classes": counts}


@dataclass(frozen=True, eq=False, repr=False)
class Model(Result):
    """A trained model, read from the file that `covertfl export` wrote.

    Parameters
    ----------
    path : of the file
    facts : all that the file says about the model, as docs/models.md describes it
    module : the torch module in evaluation mode, for inputs that are standardised and mapped
    """

    path: Path
    facts: Mapping[str, Any]
    module: nn.Module
    contents: ModelContents

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, empty if they have none."""
        return tuple(self.facts["classes"])

    @property
    def encoder(self) -> Encoder | None:
        """The encoder that makes inputs of texts, None if the model takes numbers."""
        found = self.facts["inputs"]["encoder"]
        return None if found is None else Encoder.from_dict(found)

    def predict(
        self, inputs: Sequence[str] | npt.NDArray[Any], *, on_progress: OnProgress | None = None
    ) -> Predictions:
        """Return the class and its probability for each of n inputs.

        Parameters
        ----------
        inputs : n texts, or an array (n, ...) of features as they are before standardisation
        on_progress : called with a description and the share done

        Raises
        ------
        InvalidInput
            if inputs have another shape, are not finite, or are texts and the model takes numbers
        Missing
            if the encoder of the model is not installed
        """
        features = self._prepare(inputs, on_progress)
        return self._name(self._compute(features, on_progress))

    def _prepare(
        self, inputs: Sequence[str] | npt.NDArray[Any], on_progress: OnProgress | None
    ) -> Float32Array:
        """Return features as the module takes them."""
        shape = tuple(self.facts["inputs"]["shape"])
        if isinstance(inputs, str):
            raise InvalidInput("inputs must be a list of texts or an array, got a single text")
        if not isinstance(inputs, np.ndarray) and all(isinstance(one, str) for one in inputs):
            inputs = self._embed(inputs, on_progress)
        features = np.asarray(inputs)
        if features.shape[1:] != shape or features.ndim == 0 or features.dtype.kind not in "fiub":
            sizes = ", ".join(str(size) for size in ("n", *shape))
            raise InvalidInput(
                f"inputs of {self.path} must be numbers of shape ({sizes}), "
                f"got {features.dtype} of shape {features.shape}"
            )
        faulty = np.argwhere(~np.isfinite(features))
        if len(faulty):
            raise InvalidInput(f"inputs must be finite, got another number in row {faulty[0][0]}")
        if self.contents.standardisation is not None:
            features = self.contents.standardisation.apply(features)
        features = np.asarray(features, dtype=np.float32)
        public_map = self.contents.public_map
        return features if public_map is None else public_map.apply(features)

    def _embed(self, texts: Sequence[str], on_progress: OnProgress | None) -> Float32Array:
        from covertfl.tasks.text import embed_texts, require_encoder

        encoder = self.encoder
        if encoder is None:
            meaning = self.facts["inputs"]["meaning"]
            raise InvalidInput(f"{self.path} takes numbers ({meaning}), got texts")
        require_encoder(encoder, str(self.path))
        return embed_texts(texts, on_progress=on_progress)

    def _compute(self, features: Float32Array, on_progress: OnProgress | None) -> FloatArray:
        """Return the (n, outputs) outputs of the module."""
        import torch

        is_binary = self.facts["output"]["threshold"] is not None
        parts = [np.empty((0, 1 if is_binary else max(len(self.classes), 1)))]
        with torch.inference_mode():
            for start in range(0, len(features), ROWS_AT_A_TIME):
                rows = torch.from_numpy(features[start : start + ROWS_AT_A_TIME])
                parts.append(self.module(rows).numpy().astype(np.float64))
                if on_progress is not None:
                    done = min(start + ROWS_AT_A_TIME, len(features))
                    on_progress(f"{done:,} of {len(features):,} rows", done / len(features))
        return np.concatenate(parts[1:] or parts)

    def _name(self, outputs: FloatArray) -> Predictions:
        """Return the predictions that outputs stand for."""
        threshold = self.facts["output"]["threshold"]
        needed = len(self.classes) if threshold is None else 1
        if outputs.ndim != 2 or (needed and outputs.shape[1] != needed):
            raise InvalidInput(
                f"{self.path}: the model must have {needed} outputs, got {outputs.shape[1:]}"
            )
        if threshold is not None:
            chosen = (outputs[:, 0] > np.log(threshold / (1.0 - threshold))).astype(np.int64)
            outputs = np.column_stack([np.zeros(len(outputs)), outputs[:, 0]])
        else:
            chosen = outputs.argmax(axis=1)
        names = self.classes or tuple(str(number) for number in range(outputs.shape[1]))
        powers = np.exp(outputs - outputs.max(axis=1, keepdims=True, initial=-np.inf))
        probabilities = powers / powers.sum(axis=1, keepdims=True)
        scores = np.take_along_axis(probabilities, chosen[:, None], axis=1)[:, 0]
        return Predictions(tuple(names[one] for one in chosen), scores, names, probabilities)

    def to_dict(self) -> dict[str, Any]:
        """Return the path and the facts of the file."""
        return {"path": str(self.path), **self.facts}

    def _facts(self) -> Mapping[str, str]:
        encoder = self.encoder
        inputs = "numbers" if encoder is None else f"texts ({encoder.name} {encoder.version})"
        return {
            "file": str(self.path),
            "task": self.facts["task"],
            "inputs": inputs,
            "classes": ", ".join(self.classes) or "numbered",
        }


def load_model(
    path: str | os.PathLike[str], make_module: Callable[[], nn.Module] | None = None
) -> Model:
    """Load the model in a file that `covertfl export` wrote, to predict with it.

    Parameters
    ----------
    make_module : returns a module of your own class, which the file cannot describe; not needed for
        the models of covertfl and other `torch.nn.Sequential` modules of common layers

    Raises
    ------
    InvalidInput
        if the file is no exported model, or does not describe it, or its weights do not fit
    Missing
        if PyTorch is not installed
    """
    contents, name = read_contents(path), os.fspath(path)
    _check_facts(contents, name)
    try:
        import torch
    except ImportError as error:
        raise Missing("predicting needs PyTorch: pip install 'covertfl[train]'") from error
    weights = {key: torch.from_numpy(tensor) for key, tensor in contents.weights.items()}
    try:
        module = (make_module or partial(_build, contents.facts.get("architecture")))()
        _load_weights(module, weights)
    except (RuntimeError, InvalidInput) as error:
        reason = str(error).splitlines()[-1].strip()
        raise InvalidInput(f"{name} cannot be used: {reason}") from error
    return Model(Path(path), contents.facts, module.eval(), contents)


def _load_weights(module: nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Give a module its weights; buffers that are not trained keep what the module made of them."""
    kept = {name: buffer for name, buffer in module.named_buffers() if not buffer.is_meta}
    known = module.state_dict().keys()
    module.load_state_dict(
        {**{key: kept[key] for key in kept if key in known}, **weights}, assign=True
    )


def _build(architecture: object) -> nn.Module:
    """Return the module of a description, without memory for its weights."""
    import torch

    if not isinstance(architecture, Mapping) or not can_be_built(architecture):
        kind = architecture.get("type") if isinstance(architecture, Mapping) else architecture
        raise InvalidInput(
            f"it holds a {kind}, which it cannot describe: pass a function that returns such a "
            "module as make_module"
        )
    with torch.device("meta"):
        return build_module(architecture)


def _check_facts(contents: ModelContents, name: str) -> None:
    """Raise InvalidInput if a file does not say what is needed to predict."""
    facts, found = contents.facts, contents.standardisation
    try:
        inputs, threshold, classes = facts["inputs"], facts["output"]["threshold"], facts["classes"]
        checks = {
            "inputs": all(type(size) is int for size in inputs["shape"]),
            "standardisation": found is None or list(found.mean.shape) in ([1], inputs["shape"]),
            "classes": all(isinstance(one, str) for one in classes),
            "output": threshold is None or (0.0 < threshold < 1.0 and len(classes) == 2),
        }
        if inputs["encoder"] is not None:
            Encoder.from_dict(inputs["encoder"])
    except (LookupError, TypeError, InvalidInput) as error:
        raise InvalidInput(f"{name} does not describe its model: {error}") from error
    for key, is_valid in checks.items():
        if not is_valid:
            raise InvalidInput(f"{name} does not describe its model: {key} is not valid")
