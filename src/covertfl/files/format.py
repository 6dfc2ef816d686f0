"""Format versions of the files that covertfl writes and reads again.

A file without a version has format 1.  The version rises when an older covertfl would misread what
a newer one writes.
"""

from __future__ import annotations

from typing import Literal

from covertfl.errors import InvalidInput
from covertfl.files.toml import shorten

# Of run files and run folders (`format` in run.toml), policy files and secrets of federations
# (`format`), exported models and public maps (`covertfl_format` in the metadata).
FORMATS = {"run": 2, "policy": 1, "model": 2, "secret": 1, "map": 1}


def require_format(
    kind: Literal["run", "policy", "model", "secret", "map"], found: object, name: str
) -> None:
    """Raise InvalidInput if `found`, the format of the file `name`, is wrong or too new."""
    newest = FORMATS[kind]
    if type(found) is not int or found < 1:
        raise InvalidInput(f"{name}: format must be a whole number from 1, got {shorten(found)}")
    if found > newest:
        raise InvalidInput(
            f"{name}: format must be at most {newest} for this version of covertfl, got {found}: "
            "a newer version wrote the file, so update covertfl to read it"
        )
