"""Finished parts of experiments, one small file each, so that no part is computed twice.

A cell is found by the settings that determine it.  Experiments that need the same part, such as the
true trajectory of a run, share it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import covertfl
from covertfl.errors import InvalidInput
from covertfl.files.atomic import write_atomically
from covertfl.files.json_file import read_object

Key = Mapping[str, Any]
Compute = Callable[[], Mapping[str, Any]]


class CellStore:
    """Cells in a folder, which is created if necessary, and the progress of the work on them.

    `on_progress` is called with a description and the share of the work that is done.
    """

    def __init__(
        self, folder: Path, on_progress: Callable[[str, float], None] | None = None
    ) -> None:
        self.folder = folder
        self._on_progress = on_progress
        self._planned, self._done, self._started = 0, 0, time.perf_counter()
        self._used: dict[Path, float] = {}

    def without_reports(self) -> CellStore:
        """Return a store of the same cells whose work is not reported; its time counts here."""
        other = CellStore(self.folder)
        other._used = self._used
        return other

    def find(self, key: Key) -> dict[str, Any] | None:
        """Return the content of a finished cell, None if there is none."""
        path = self._place(key)
        wrong = f"{path} is not a finished cell, remove it"
        if not path.exists():
            return None
        try:
            kept = read_object(path, "a finished cell")
        except InvalidInput as error:
            raise InvalidInput(f"{wrong}: {error}") from error
        # Readers rely on the form of the content, which is right if the same key was written here.
        if kept.get("key") != json.loads(json.dumps(dict(key))):
            raise InvalidInput(f"{wrong}: it has another key")
        seconds, content = kept.get("seconds"), kept.get("content")
        if not isinstance(seconds, int | float) or not isinstance(content, dict) or not content:
            raise InvalidInput(f"{wrong}: it has no content")
        self._used[path] = float(seconds)
        return content

    def keep(self, key: Key, content: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Write a finished cell and return its content as it will be read."""
        path = self._place(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(f"{path.parent} cannot be made: {error.strerror}") from error
        text = json.dumps({"key": dict(key), "seconds": seconds, "content": dict(content)})
        write_atomically(path, text + "\n")
        self._used[path] = seconds
        found: dict[str, Any] = json.loads(text)["content"]
        return found

    def find_seconds(self, key: Key) -> float:
        """Return the time that a used cell took to compute; 0 if it was not used."""
        return self._used.get(self._place(key), 0.0)

    def count(self, key: Key, seconds: float) -> None:
        """Count the time of a cell that was not read, because what it led to was."""
        self._used[self._place(key)] = seconds

    def work_out(self, key: Key, compute: Compute) -> dict[str, Any]:
        """Return the content of a cell; compute it if it is not there."""
        found = self.find(key)
        if found is not None:
            return found
        started = time.perf_counter()
        content = compute()
        return self.keep(key, content, time.perf_counter() - started)

    def work_out_all(self, parts: Mapping[str, tuple[Key, Compute]]) -> dict[str, dict[str, Any]]:
        """Return the contents of cells by name, one after the other, and report each."""
        self.plan(len(parts))
        found = {}
        for name, (key, compute) in parts.items():
            found[name] = self.work_out(key, compute)
            self.advance(1, name)
        return found

    def _place(self, key: Key) -> Path:
        described = json.dumps({**key, "version": covertfl.__version__}, sort_keys=True)
        digest = hashlib.sha256(described.encode()).hexdigest()[:20]
        return self.folder / f"{key['part']}-{digest}.json"

    def plan(self, amount: int) -> None:
        """Announce work, in the unit that `advance` uses."""
        self._planned += amount

    def advance(self, amount: int, what: str) -> None:
        """Report that work has been done."""
        self._done += amount
        if self._on_progress is not None and self._planned > 0:
            share = min(self._done / self._planned, 1.0)
            spent = time.perf_counter() - self._started
            left = spent * (1.0 - share) / share if share > 0.0 else 0.0
            duration = f"{left:.0f} s" if left < 100.0 else f"{left / 60.0:.0f} min"
            self._on_progress(f"{what}, about {duration} left", share)

    @property
    def seconds(self) -> float:
        """Time that the used cells took to compute, whenever that was."""
        return sum(self._used.values())
