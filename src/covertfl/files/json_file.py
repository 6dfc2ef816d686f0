"""Reading JSON files, whatever is in them, and checking what kind of value came."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from covertfl.errors import InvalidInput
from covertfl.files.toml import read_text


def is_number(value: object) -> bool:
    """Return whether a value is a finite number; true and false are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max


def parse_json(text: str | bytes, name: str) -> Any:
    """Return the content of JSON called `name` in error messages."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"{name} is not JSON: {error}") from error
    except RecursionError as error:
        raise InvalidInput(f"{name} is not JSON that can be read: nested too deeply") from error


def read_object(path: str | os.PathLike[str], what: str) -> dict[str, Any]:
    """Return the JSON object in a file; `what` is its kind in messages, such as "a policy file"."""
    name = os.fspath(path)
    content = parse_json(read_text(path, what), name)
    if not isinstance(content, dict):
        raise InvalidInput(f"{name} must hold a JSON object")
    return content
