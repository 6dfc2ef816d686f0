"""`SteadyFolder`: a run's folder that takes the same work in every round, whatever was sent."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from covertfl.files.atomic import write_atomically
from covertfl.runs.checkpoint import Checkpoint
from covertfl.runs.folder import PENDING, WEIGHTS, RunFolder, report_errors

SPARE = ".spare"


class SteadyFolder(RunFolder):
    """The folder of a run whose clients could measure how long a round takes on the disk.

    A round that sends known weights writes a spare file: without a write it would end sooner, and
    replacing a file would take longer.  Sealing a round removes the spare of the round before, so
    there are never more than two.
    """

    _spares = 0

    def note(self, decision: Mapping[str, Any]) -> None:
        """Write down what a round has decided, on the disk before its query is sent."""
        write_atomically(self.path / PENDING, json.dumps(decision, allow_nan=False), mode=0o600)
        self._sync_names()

    def seal(self, checkpoint: Checkpoint) -> None:
        """Write all lines and weights so far to the disk, then replace the checkpoint."""
        super().seal(checkpoint)
        self._sync_names()

    def _sync_names(self) -> None:
        """Wait until new names of files in the folder of the checkpoint are on the disk."""
        folder = self.path / "checkpoint"
        with report_errors(folder):
            handle = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def _choose_file(self, path: Path, content: bytes) -> Path:
        self._spares += 1
        return self._name_spare(self._spares) if path.exists() else path

    def _name_spare(self, number: int) -> Path:
        return self.path / WEIGHTS / f".{number}{SPARE}"

    def _find_changed(self, lengths: Mapping[str, int]) -> list[str]:
        for name in lengths:
            # A file without a new line must have something to sync as well.
            os.utime(self._lines[name].fileno())
        return list(lengths)

    def _sync_files(self, pool: Executor, files: Mapping[Path, int]) -> None:
        # Removing a large file takes time; during the syncs it delays nothing.
        removal = pool.submit(self._remove_spare)
        super()._sync_files(pool, files)
        removal.result()

    def _remove_spare(self) -> None:
        """Remove the spare file of the previous round, if any; called in every round."""
        path = self._name_spare(self._spares - 1)
        with report_errors(path):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove spare files, close all files and release the lock."""
        if self._spares:
            with contextlib.suppress(OSError):  # resuming removes them as well
                for path in (self.path / WEIGHTS).glob(f".*{SPARE}"):
                    path.unlink()
        super().close()
