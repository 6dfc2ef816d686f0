"""A run's folder: what clients were sent, what was done, and where to go on after a crash.

    run.toml                     resolved settings and versions
    public/rounds.jsonl          a line for each query: round, client (null: all), weights
    public/weights/<sha256>.safetensors
    private/rounds.jsonl         a line for each round: observation, action, outcome, costs
    private/updates.jsonl        a line for each update done: task, when it came, when it was done
    metrics.jsonl                a line for each round: accuracies and exposure
    checkpoint/state.safetensors the state after the last round that is recorded in full

A round is recorded line by line and then sealed by replacing the checkpoint, which also holds the
lengths of the line files.  After a crash the lines beyond them are cut off and the round is done
again.  Everything is on the disk before it is relied upon.

Eavesdroppers get `PublicTranscript`, which can only reach the public folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from covertfl.atomic_file import write_atomically
from covertfl.errors import InvalidInput
from covertfl.weights import Layout, Vector, name_content, serialise

LINE_FILES = (
    "public/rounds.jsonl",
    "private/rounds.jsonl",
    "private/updates.jsonl",
    "metrics.jsonl",
)
CHECKPOINT = "checkpoint/state.safetensors"
SETTINGS = "run.toml"
SUMMARY = "summary.json"


@dataclass(frozen=True)
class PublicRecord:
    """One query as clients saw it.

    Parameters
    ----------
    round : 1, 2, ...
    client : who was sent it, None for all
    weights : SHA-256 of the file of weights
    """

    round: int
    client: int | None
    weights: str


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state of a run after a round.

    Parameters
    ----------
    round : rounds done
    arrays : weights and memories by name
    facts : everything else, as JSON holds it
    """

    round: int
    arrays: Mapping[str, Vector]
    facts: Mapping[str, Any]


class RunFolder:
    """The folder of one run, held by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[bytes] | None = None
        self._lines: dict[str, IO[bytes]] = {}
        self._written: set[str] = set()

    # --- beginning ---

    def create(self, settings: str, *, force: bool) -> None:
        """Make the folder; one that exists is only replaced by force.

        Raises
        ------
        InvalidInput
            where the folder exists, or cannot be made
        """
        if self.path.exists() and not force and not _is_empty(self.path):
            raise InvalidInput(f"{self.path} exists: --resume goes on with it, --force replaces it")
        with _naming(self.path):
            if force and self.path.exists():
                _remove_run(self.path)
            (self.path / "public" / "weights").mkdir(parents=True)
            for name in ("private", "checkpoint"):
                (self.path / name).mkdir(mode=0o700)
        self._hold()
        write_atomically(self.path / SETTINGS, settings)
        self._open_lines(dict.fromkeys(LINE_FILES, 0))

    def resume(self, settings: str) -> Checkpoint | None:
        """Go on after the last sealed round; None if there is none."""
        if not (self.path / "checkpoint").is_dir():
            raise InvalidInput(f"{self.path} holds no run to resume")
        self._hold()
        _remove_leftovers(self.path)
        checkpoint = read_checkpoint(self.path)
        lengths = dict.fromkeys(LINE_FILES, 0)
        if checkpoint is not None:
            lengths = {name: int(checkpoint.facts["lengths"][name]) for name in LINE_FILES}
        self._open_lines(lengths)
        write_atomically(self.path / SETTINGS, settings)
        return checkpoint

    def close(self) -> None:
        """Let go of the files."""
        for stream in self._lines.values():
            stream.close()
        if self._lock is not None:
            self._lock.close()
        self._lines, self._lock = {}, None

    def _hold(self) -> None:
        with _naming(self.path):
            self._lock = (self.path / "checkpoint" / "lock").open("wb")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InvalidInput(f"{self.path} is in use by another process") from error

    def _open_lines(self, lengths: Mapping[str, int]) -> None:
        for name, length in lengths.items():
            path = self.path / name
            with _naming(path):
                stream = path.open("ab")
                if stream.tell() < length:
                    raise InvalidInput(
                        f"{path} is shorter than its checkpoint says: {length} bytes are needed, "
                        f"got {stream.tell()}"
                    )
                stream.truncate(length)
            self._lines[name] = stream

    # --- a round ---

    def write_weights(self, layout: Layout, vector: Vector) -> str:
        """Record weights that are sent, once for each content; gives their name."""
        content = serialise(layout, vector)
        name = name_content(content)
        path = self.path / "public" / "weights" / f"{name}.safetensors"
        if name not in self._written and not path.exists():
            write_atomically(path, content)
        self._written.add(name)
        return name

    def append(self, name: str, *records: Mapping[str, Any]) -> None:
        """Add lines to one of the line files."""
        text = "".join(json.dumps(record, allow_nan=False) + "\n" for record in records)
        with _naming(self.path / name):
            self._lines[name].write(text.encode())

    def seal(self, checkpoint: Checkpoint) -> None:
        """Make sure of all lines so far, then replace the checkpoint."""
        lengths = {}
        for name, stream in self._lines.items():
            with _naming(self.path / name):
                stream.flush()
                os.fsync(stream.fileno())
                lengths[name] = stream.tell()
        facts = {**checkpoint.facts, "round": checkpoint.round, "lengths": lengths}
        write_atomically(self.path / CHECKPOINT, _pack(checkpoint.arrays, facts))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary of a run that has ended."""
        text = json.dumps(summary, indent=2, allow_nan=False) + "\n"
        write_atomically(self.path / SUMMARY, text)


def _pack(arrays: Mapping[str, Vector], facts: Mapping[str, Any]) -> bytes:
    from safetensors.numpy import save

    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return save(contiguous, metadata={"facts": json.dumps(facts, allow_nan=False)})


def read_checkpoint(path: Path) -> Checkpoint | None:
    """The state of a run's folder, None before the first round is sealed."""
    from safetensors import SafetensorError, safe_open

    file = path / CHECKPOINT
    if not file.exists():
        return None
    try:
        with safe_open(file, framework="numpy") as content:
            arrays = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
            facts = json.loads(content.metadata()["facts"])
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise InvalidInput(f"{file} is not a checkpoint of covertfl: {error}") from error
    return Checkpoint(int(facts["round"]), arrays, facts)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a line file, in order."""
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                try:
                    record = json.loads(line)
                except ValueError as error:
                    raise InvalidInput(f"{path} line {number} is not JSON: {error}") from error
                if not isinstance(record, dict):
                    raise InvalidInput(f"{path} line {number} must be an object")
                yield record
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror or error}") from error


class PublicTranscript:
    """What clients were sent, in order; all that an eavesdropper can reach of a run.

    Parameters
    ----------
    folder : a public folder, with rounds.jsonl and weights/
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.records = tuple(self._read_records())

    def _read_records(self) -> Iterator[PublicRecord]:
        path = self._folder / "rounds.jsonl"
        for number, record in enumerate(read_lines(path), start=1):
            if set(record) != {"round", "client", "weights"}:
                raise InvalidInput(
                    f"{path} line {number} must have the keys round, client and weights, "
                    f"got {', '.join(record) or 'none'}"
                )
            yield PublicRecord(record["round"], record["client"], record["weights"])

    def read_weights(self, name: str) -> dict[str, Vector]:
        """The tensors of a query by parameter name."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        path = self._folder / "weights" / f"{name}.safetensors"
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InvalidInput(f"{path} cannot be read: {error.strerror or error}") from error
        if name_content(content) != name:
            raise InvalidInput(f"{path} does not hold what its name says: it was changed")
        try:
            return dict(load(content))
        except SafetensorError as error:
            raise InvalidInput(f"{path} is not a safetensors file: {error}") from error


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the file in what the system says."""
    try:
        yield
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror or error}") from error


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _remove_run(path: Path) -> None:
    """Remove what a run leaves in its folder, and nothing else."""
    for name in ("public", "private", "checkpoint"):
        shutil.rmtree(path / name, ignore_errors=False) if (path / name).exists() else None
    for name in (SETTINGS, SUMMARY, "metrics.jsonl"):
        (path / name).unlink(missing_ok=True)


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files of a write that was cut short."""
    for folder in (path, path / "public" / "weights", path / "checkpoint"):
        for leftover in folder.glob(".*.*"):
            leftover.unlink()
