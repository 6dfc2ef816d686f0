"""Plug-ins: schemes, decoys, eavesdroppers and tasks from outside the package, by name.

A name is that of an entry point of an installed package, or `module:attribute`, where the module
may also be a file in the working directory.  Loading a plug-in runs its code.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from operator import attrgetter
from pathlib import Path
from typing import Any

from covertfl.errors import CovertflError, InvalidInput
from covertfl.files.text import shorten

_WORD = r"[^\W\d]\w*"
_REFERENCE = re.compile(rf"{_WORD}(\.{_WORD})*:{_WORD}(\.{_WORD})*")


@dataclass(frozen=True, eq=False)
class PlugIns:
    """The things of one sort: those built in, and where others come from.

    Parameters
    ----------
    what : the sort, as "decoy"
    group : of entry points, as "covertfl.decoys"
    built_in : by name
    reserved : further names that no plug-in may have
    """

    what: str
    group: str
    built_in: Mapping[str, Any]
    reserved: tuple[str, ...] = ()

    def check(self, name: str, key: str) -> None:
        """Raise InvalidInput, about `key`, if a name stands for nothing; no plug-in is imported."""
        if name in self.reserved or self._find_entry(name) is not None or name in self.built_in:
            return
        if not _REFERENCE.fullmatch(name):
            raise InvalidInput(f"{key} must be {self.describe_names()}, got {shorten(name)}")

    def describe_names(self) -> str:
        """Return which names there are, in the words of an error message."""
        known = ", ".join((*self.built_in, *self.reserved))
        return f"one of {known}, the name of an installed plug-in, or module:name"

    def find(self, name: str, key: str) -> Any:
        """Return what a name stands for, imported if it is a plug-in.

        Raises
        ------
        InvalidInput
            about `key` if the name stands for nothing, about the plug-in if it cannot be imported
        """
        self.check(name, key)
        if name in self.built_in:
            return self.built_in[name]
        entry = self._find_entry(name)
        return load_reference(name if entry is None else entry.value, f"{self.what} {name}")

    def _find_entry(self, name: str) -> metadata.EntryPoint | None:
        found = [entry for entry in _list_entries(self.group, *sys.path) if entry.name == name]
        places = " and ".join(sorted(f"{_name_package(entry)} ({entry.value})" for entry in found))
        if found and name in (*self.built_in, *self.reserved):
            raise InvalidInput(
                f"{self.what} {name} is built in and also a plug-in of {places}: the plug-in needs "
                "another name"
            )
        if len(found) > 1:
            raise InvalidInput(f"{self.what} {name} is a plug-in of {places}: keep one of them")
        return found[0] if found else None


@cache
def _list_entries(group: str, *_path: str) -> tuple[metadata.EntryPoint, ...]:
    """Return the entry points of a group, for the module search path as it is."""
    found = {(entry.name, entry.value): entry for entry in metadata.entry_points(group=group)}
    return tuple(found.values())


def _name_package(entry: metadata.EntryPoint) -> str:
    return "an unknown package" if entry.dist is None else entry.dist.name


def load_reference(reference: str, key: str) -> Any:
    """Import `module:attribute` and return the attribute, called `key` in messages.

    A module that is in no other place is looked for in the working directory.

    Raises
    ------
    InvalidInput
        if the reference has another form, or the module or the attribute cannot be found
    """
    if not _REFERENCE.fullmatch(reference):
        raise InvalidInput(f"{key} must be module:name, got {reference!r}")
    name, _, attribute = reference.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    with explaining(f"{key} cannot be imported"):
        module = importlib.import_module(name)
    try:
        return attrgetter(attribute)(module)
    except AttributeError as error:
        place = getattr(module, "__file__", None) or "the module"
        raise InvalidInput(f"{key}: {place} has no {attribute}") from error


@contextmanager
def explaining(what: str) -> Iterator[None]:
    """Turn what a plug-in's code raises into InvalidInput with one sentence, `what` before it."""
    try:
        yield
    except CovertflError:
        raise
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split())
        raise InvalidInput(f"{what}: {type(error).__name__}{': ' * bool(text)}{text}") from error
