"""Text, TOML and JSON files: reading them, quoting what is wrong in them, and their formats.

A format's version rises when the content of such a file changes.  Files of other versions are
refused.
"""

from __future__ import annotations

import difflib
import json
import os
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from covertfl.errors import InvalidInput
from covertfl.files.disk import read_bytes

Location = tuple[int | str, ...]  # of a key: its section, if any, and the keys inside
LONGEST_QUOTE = 40  # characters of a value that a message repeats


class Section(BaseModel):
    """A table of keys that a user writes: no others are allowed, and no value is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def read_text(path: str | os.PathLike[str], what: str) -> str:
    """Return the text of a UTF-8 file; `what` is its kind in messages, such as "a problem file"."""
    name, content = os.fspath(path), read_bytes(path, what)
    try:
        return content.decode("utf-8-sig")  # some editors write a byte order mark
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidInput(
            f"{name}: {what} must be UTF-8 text, "
            f"got the byte 0x{content[error.start]:02x} in line {line}"
        ) from error


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """Return the content of a TOML file called `name` in error messages."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{name}: not valid TOML: {error}") from error
    except RecursionError as error:
        raise InvalidInput(f"{name}: not valid TOML: lists nested too deeply") from error


def split_location(location: Location) -> tuple[str, str]:
    """Return the section in brackets, if any, and the key within it, of the place of an error."""
    keys = [_shorten_key(part) if isinstance(part, str) else f"[{part}]" for part in location]
    section = f"[{keys[0]}] " if len(keys) > 1 else ""
    rest = keys[1:] if section else keys
    return section, ".".join(rest).replace(".[", "[")


def describe_unknown_keys(
    unknown: Iterable[Location], list_allowed: Callable[[Location], Iterable[str]]
) -> str:
    """Return a sentence that names all unknown keys, what is allowed, and the nearest of each.

    `list_allowed` returns the keys that the section at a location has.
    """
    by_place: dict[Location, list[Location]] = {}
    for location in unknown:
        by_place.setdefault(location[:-1], []).append(location)
    clauses = []
    for place, locations in by_place.items():
        allowed = list(list_allowed(place))
        section = split_location(locations[0])[0]
        names = ", ".join(split_location(location)[1] for location in locations)
        found = [difflib.get_close_matches(str(key[-1]), allowed, n=1) for key in locations]
        near = ", ".join(name for names in found for name in names)
        clauses.append(
            f"{section}unknown key{'s' * (len(locations) > 1)} {names}; allowed are "
            f"{', '.join(allowed)}" + (f"; did you mean {near}?" if near else "")
        )
    return "; ".join(clauses)


def list_keys(model: type[BaseModel], place: Location) -> list[str]:
    """Return the keys that the section at a location has, in a file of a model."""
    return list(_find_section(model, place).model_fields)


def _find_section(model: type[BaseModel], place: Location) -> type[BaseModel]:
    for part in place:
        field = model.model_fields.get(str(part))
        # A section may be absent: `Section | None`.
        kinds = () if field is None else (field.annotation, *get_args(field.annotation))
        found = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        model = found[0] if found else model
    return model


def list_unknown(error: ValidationError) -> list[Location]:
    """Return the locations of all unknown keys among the mistakes in a file."""
    return [entry["loc"] for entry in error.errors() if entry["type"] == "extra_forbidden"]


def describe_mistake(
    error: ValidationError, model: type[BaseModel], choices: Mapping[Location, str]
) -> str:
    """Return a sentence about the first mistake in a file: key, what is allowed, what came.

    Parameters
    ----------
    model : of the whole file
    choices : what keys allow that take values of different types, by location
    """
    mistake = error.errors()[0]
    location = mistake["loc"]
    place = location[: 1 if location[:1] in choices else 2]
    choice = choices.get(place)
    section, key = split_location(location if choice is None else place)
    if mistake["type"] == "missing" and choice is None:
        return f"{section}key {key} is missing" if section else f"section [{key}] is missing"
    if mistake["type"] == "missing":
        return f"{section}key {key} is missing; it must be {choice}"
    allowed = choice or _describe_allowed(mistake, model)
    return f"{section}{key} must be {allowed}, got {shorten(mistake['input'])}"


def _describe_allowed(mistake: Any, model: type[BaseModel]) -> str:
    location, context = mistake["loc"], mistake.get("ctx", {})
    field = _find_section(model, location[:-1]).model_fields.get(str(location[-1]))
    kinds = () if field is None else (field.annotation, *get_args(field.annotation))
    names = [get_args(kind) for kind in kinds if get_origin(kind) is Literal]
    if names:
        return "one of " + ", ".join(names[0])
    allowed = {
        "float_type": "a number",
        "int_type": "a whole number",
        "string_type": "text",
        "bool_type": "true or false",
        "list_type": "a list",
        "dict_type": "a table of keys",
        "model_type": "a table of keys",
        "greater_than": f"more than {context.get('gt')}",
        "less_than": f"less than {context.get('lt')}",
        "greater_than_equal": f"at least {context.get('ge')}",
        "less_than_equal": f"at most {context.get('le')}",
        "finite_number": "a finite number",
        "too_short": f"a list with at least {context.get('min_length')} values",
        "too_long": f"a list with at most {context.get('max_length')} values",
    }
    return allowed.get(mistake["type"], str(mistake["msg"]))


def shorten(value: object) -> str:
    """Return a value as quoted in error messages: on one line and not too long."""
    text = repr(value) if isinstance(value, str) else str(value)
    text = text.lower() if isinstance(value, bool) else text
    return text if len(text) <= LONGEST_QUOTE else text[: LONGEST_QUOTE - 3] + "..."


def _shorten_key(key: str) -> str:
    return key if key.isidentifier() and len(key) <= LONGEST_QUOTE else shorten(key)


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
