"""`SteadyFolder`: a run's folder that takes the same work in every round, whatever was sent.

Clients wait for the next query, so that as much as possible is written while they work: the query
itself and, of the next checkpoint, what only a move of all trajectories changes.  What depends on
the replies must be on the disk before the next query is sent: clients need not give the same
replies twice, and a round that was repeated after a crash would then be followed by another query.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from covertfl.files.tensors import name_blocks, write_blocks
from covertfl.kernels.job import Layout, Vector
from covertfl.runs.checkpoint import CHECKPOINT, Checkpoint, CheckpointDraft
from covertfl.runs.folder import (
    PENDING,
    Keep,
    RunFolder,
    WeightFiles,
    report_errors,
    stream_weights,
    write_new,
)

SPARE = ".spare"


@dataclass
class WrittenRound:
    """The content that a round has sent, and the file that it has written, None if it is gone."""

    name: str
    file: Path | None


class SteadyWeightFiles(WeightFiles):
    """Files of weights, of which every round writes one, whatever it sends.

    A round that sends known weights writes a spare file: without a write it would end sooner, and
    replacing a file would take longer.  Where all weights are kept, the next round removes it.
    Where those of n rounds are, it stays as long as they do, so that each round removes one file.
    """

    def __init__(self, folder: Path, keep: Keep = "all") -> None:
        super().__init__(folder, keep)
        self._rounds: deque[WrittenRound] = deque()
        self._number = self._sealed = 0

    def resume(self, sent: Iterable[str]) -> None:
        """Remove what no sealed round has sent, or none of those whose weights are kept."""
        super().resume(sent)
        seen: set[str] = set()
        for name in self._recent:
            self._rounds.append(WrittenRound(name, None if name in seen else self.find(name)))
            seen.add(name)
        self._sealed = len(self._rounds)

    def write(self, layout: Layout, vector: Vector) -> str:
        """Write weights, on the disk when this returns; return their SHA-256."""
        blocks = stream_weights(layout, vector)
        if self.keep == "hashes":
            return name_blocks(blocks)
        self._number += 1
        temporary = self.folder / f".{self._number}.new"
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            name = write_blocks(handle, blocks)
            os.fdatasync(handle)
        finally:
            os.close(handle)
        path = self.find(name)
        file = self.folder / f".{self._number}{SPARE}" if path.exists() else path
        temporary.replace(file)
        sync_names(self.folder)
        self._rounds.append(WrittenRound(name, file))
        return name

    def end_round(self) -> None:
        """Note that the rounds so far are sealed; their files may then be removed."""
        self._sealed = len(self._rounds)

    def remove_old(self) -> None:
        """Remove the file of the round whose weights are no longer kept."""
        kept = self.keep if isinstance(self.keep, int) else 0
        while self._sealed > kept:
            self._sealed -= 1
            oldest = self._rounds.popleft()
            file = oldest.file
            if file == self.find(oldest.name):
                file = None if self.keep == "all" else self._pass_on(oldest)
            if file is not None:
                file.unlink(missing_ok=True)

    def _pass_on(self, oldest: WrittenRound) -> Path | None:
        """Return the file to remove: that of the oldest round, or the spare of one like it."""
        heirs = [later for later in self._rounds if later.name == oldest.name]
        if not heirs:
            return oldest.file
        spare, heirs[0].file = heirs[0].file, oldest.file
        return spare

    def close(self) -> None:
        """Remove what is not kept."""
        if self._number:
            with contextlib.suppress(OSError):  # resuming removes it as well
                self.remove_old()
                for path in self.folder.glob(f".*{SPARE}"):
                    path.unlink()


class EarlyWrites(NamedTuple):
    """What was written while clients worked: the query's SHA-256, and part of a checkpoint."""

    weights: str
    draft: CheckpointDraft


class SteadyFolder(RunFolder):
    """The folder of a run whose clients could measure how long a round takes on the disk."""

    _weights: SteadyWeightFiles
    _early: Future[EarlyWrites] | None = None
    _draft: CheckpointDraft | None = None
    _replaced: int | None = None

    def _make_weights(self, folder: Path, keep: Keep) -> SteadyWeightFiles:
        return SteadyWeightFiles(folder, keep)

    def note(self, decision: Mapping[str, Any]) -> None:
        """Write down what a round has decided, on the disk before its query is sent."""
        path = self.path / PENDING
        with report_errors(path):
            write_new(path, json.dumps(decision, allow_nan=False).encode(), syncs=True)
        self._sync_checkpoint_names()

    def begin_query(self, layout: Layout, vector: Vector, ahead: Mapping[str, Vector]) -> None:
        """Write the query and a part of the next checkpoint while clients work."""
        self._early = self._pool.submit(self._write_early, layout, vector, ahead)

    def _write_early(
        self, layout: Layout, vector: Vector, ahead: Mapping[str, Vector]
    ) -> EarlyWrites:
        self._release_replaced()  # first, so that its space is free for what follows
        with report_errors(self._weights.folder):
            self._weights.remove_old()
            name = self._weights.write(layout, vector)
        with report_errors(self.path / CHECKPOINT):
            self._hold_checkpoint()
            draft = CheckpointDraft(self.path, self._room)
            try:
                draft.write_ahead(ahead)
            except BaseException:
                draft.close()
                raise
        return EarlyWrites(name, draft)

    def _hold_checkpoint(self) -> None:
        """Keep the checkpoint open that is replaced next, until clients work in the next round.

        The system frees the space of a file that was replaced when it is closed, which takes time.
        """
        with contextlib.suppress(FileNotFoundError):  # before the first
            self._replaced = os.open(self.path / CHECKPOINT, os.O_RDONLY)

    def _release_replaced(self) -> None:
        if self._replaced is not None:
            os.close(self._replaced)
        self._replaced = None

    def write_weights(self, layout: Layout, vector: Vector) -> str:
        """Wait until the weights of the query are on the disk; return their SHA-256."""
        if self._early is None:
            self.begin_query(layout, vector, {})
        assert self._early is not None
        early, self._early = self._early, None
        name, self._draft = early.result()
        return name

    def seal(self, checkpoint: Checkpoint, meanwhile: Callable[[], None] | None = None) -> None:
        """Write all lines and weights so far to the disk, then replace the checkpoint."""
        preparing = self._pool.submit(meanwhile or (lambda: None))
        try:
            self._seal(checkpoint, self._draft)
        except BaseException:
            wait([preparing])  # its error, if any, matters less
            raise
        preparing.result()
        self._draft = None  # closed; after a failure, `close` does it
        self._sync_checkpoint_names()

    def _sync_checkpoint_names(self) -> None:
        """Wait until new names of files in the folder of the checkpoint are on the disk."""
        folder = self.path / "checkpoint"
        with report_errors(folder):
            sync_names(folder)

    def _find_changed(self, lengths: Mapping[str, int]) -> list[str]:
        for name in lengths:
            # A file without a new line must have something to sync as well.
            os.utime(self._lines[name].fileno())
        return list(lengths)

    def close(self) -> None:
        """Remove spare files, close all files and release the lock."""
        if self._early is not None:  # a failure was of no consequence to this round
            with contextlib.suppress(Exception):
                self._draft = self._early.result().draft
        if self._draft is not None:
            self._draft.close()
        self._early = self._draft = None
        self._release_replaced()
        super().close()


def sync_names(folder: Path) -> None:
    """Wait until new names of files in a folder are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
