"""Exported models read back."""

from __future__ import annotations

import os

from covertfl.errors import InvalidInput
from covertfl.files.format import require_format
from covertfl.kernels.weights import Vector


def load_weights(path: str | os.PathLike[str]) -> dict[str, Vector]:
    """Return the tensors of an exported model, by parameter name.

    Raises
    ------
    InvalidInput
        if the file cannot be read, or was written by a newer version of covertfl
    """
    from safetensors import SafetensorError, safe_open

    name = os.fspath(path)
    try:
        with safe_open(name, framework="numpy") as content:
            version = (content.metadata() or {}).get("covertfl_format", "1")
            require_format("model", int(version) if version.isdecimal() else version, name)
            return {key: content.get_tensor(key) for key in content.keys()}  # noqa: SIM118
    except OSError as error:
        raise InvalidInput(f"{name}: cannot be read: {error.strerror or error}") from error
    except SafetensorError as error:
        raise InvalidInput(f"{name}: not a safetensors file: {error}") from error
