"""Reading text and TOML files, and quoting what is wrong in them."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict

from covertfl.errors import InvalidInput
from covertfl.files.regular import read_bytes

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


def shorten(value: object) -> str:
    """Return a value as quoted in error messages: on one line and not too long."""
    text = repr(value) if isinstance(value, str) else str(value)
    text = text.lower() if isinstance(value, bool) else text
    return text if len(text) <= LONGEST_QUOTE else text[: LONGEST_QUOTE - 3] + "..."


def _shorten_key(key: str) -> str:
    return key if key.isidentifier() and len(key) <= LONGEST_QUOTE else shorten(key)
