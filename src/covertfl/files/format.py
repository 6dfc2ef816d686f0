"""Format versions of the files that covertfl writes and reads again.

A version rises when the content of such a file changes.  Files of other versions are refused.
"""

from __future__ import annotations

from typing import Literal

from covertfl.errors import InvalidInput
from covertfl.files.toml import shorten

Kind = Literal["run", "policy", "model", "secret", "map"]
# Of run files and run folders (`format` in run.toml and in checkpoints), policy files and secrets
# of federations (`format`), exported models and public maps (`covertfl_format` in the metadata).
FORMATS: dict[Kind, int] = {"run": 3, "policy": 1, "model": 3, "secret": 1, "map": 1}
NAMES: dict[Kind, str] = {
    "run": "a run",
    "policy": "a policy file",
    "model": "an exported model",
    "secret": "the secret of a federation",
    "map": "a public map",
}


LONGEST = 10  # digits of a format


def require_format(kind: Kind, found: object, name: str) -> None:
    """Raise InvalidInput unless `found`, the format of the file `name`, is the present one.

    Metadata of safetensors state it as text.  A file that states none has the format None.
    """
    wanted = FORMATS[kind]
    if isinstance(found, str) and found.isdecimal() and len(found) < LONGEST:
        found = int(found)
    if type(found) is int and found == wanted:
        return
    why = ""
    if type(found) is int and found > wanted:
        why = ": a newer version wrote the file, so update covertfl to read it"
    elif found is None or (type(found) is int and found > 0):
        why = ": an older version wrote the file, so make it anew"
    raise InvalidInput(
        f"{name}: the format of {NAMES[kind]} must be {wanted} for this version of covertfl, "
        f"got {'nothing' if found is None else shorten(found)}{why}"
    )
