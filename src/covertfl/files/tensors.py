"""Reading safetensors files that covertfl has written, with a format version in their metadata."""

from __future__ import annotations

import os
from typing import Any

import numpy.typing as npt

from covertfl.errors import InvalidInput
from covertfl.files.format import NAMES, Kind, require_format
from covertfl.files.regular import require_regular

FORMAT = "covertfl_format"


def read_tensors(
    path: str | os.PathLike[str], kind: Kind
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
    """Return the tensors of a file by name, and its metadata.

    Raises
    ------
    InvalidInput
        if it is no such file, or another version of covertfl wrote it
    """
    from safetensors import SafetensorError, safe_open

    name, what = os.fspath(path), NAMES[kind]
    require_regular(name, what)
    try:
        with safe_open(name, framework="numpy") as file:
            metadata = file.metadata() or {}
            require_format(kind, metadata.get(FORMAT), name)
            return {key: file.get_tensor(key) for key in file.keys()}, metadata  # noqa: SIM118
    except OSError as error:
        raise InvalidInput(f"{name}: cannot be read: {error.strerror or error}") from error
    except SafetensorError as error:
        raise InvalidInput(f"{name}: not {what}: {error}") from error
