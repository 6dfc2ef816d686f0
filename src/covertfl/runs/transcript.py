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
again.  Everything is on the disk before it is relied upon.  A checkpoint also holds a checksum of
its content, for a file that can be read need not be the one that was written.

Eavesdroppers get `PublicTranscript`, which can only reach the public folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from covertfl.errors import InvalidInput
from covertfl.files.atomic import write_atomically
from covertfl.kernels.weights import Layout, Vector, name_content, serialise

LINE_FILES = (
    "public/rounds.jsonl",
    "private/rounds.jsonl",
    "private/updates.jsonl",
    "metrics.jsonl",
)
CHECKPOINT = "checkpoint/state.safetensors"
LOCK = "lock"
WEIGHTS = "public/weights"
SPARE = ".spare"
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

    @property
    def lengths(self) -> dict[str, int]:
        """Bytes of each line file, in a checkpoint that was read."""
        return {name: int(self.facts["lengths"][name]) for name in LINE_FILES}


class RunFolder:
    """The folder of one run, held by one process at a time.

    Parameters
    ----------
    path : of the folder
    is_steady : whether every round waits for the disk alike, whatever it has written
    keeps_weights : whether what is sent is recorded; without, there is nothing to audit
    """

    def __init__(self, path: Path, *, is_steady: bool = False, keeps_weights: bool = True) -> None:
        self.path = path
        self._is_steady, self._keeps_weights = is_steady, keeps_weights
        self._lock: IO[bytes] | None = None
        self._lines: dict[str, IO[bytes]] = {}
        self._written: set[str] = set()
        # What the disk may not hold yet: new files and folders with new names in them.
        self._fresh: dict[Path, IO[bytes]] = {}
        self._sealed: dict[str, int] = {}
        self._spares = 0

    # --- beginning ---

    def require_absent(self) -> None:
        """Raise `InvalidInput` where the folder exists and is not empty."""
        if self.path.exists() and not _is_empty(self.path):
            raise self._refuse()

    def _refuse(self) -> InvalidInput:
        return InvalidInput(f"{self.path} exists: --resume goes on with it, --force replaces it")

    def create(self, settings: str, *, force: bool) -> None:
        """Make the folder; one that exists is only replaced by force.

        Raises
        ------
        InvalidInput
            where the folder exists, or cannot be made
        """
        if not force:
            self.require_absent()
        with _naming(self.path):
            (self.path / "checkpoint").mkdir(mode=0o700, parents=True, exist_ok=True)
        # Held before anything is removed: another process may be at work in it.
        self._hold()
        if (self.path / SETTINGS).exists() and not force:  # made while this process looked away
            raise self._refuse()
        with _naming(self.path):
            _remove_run(self.path)
            self._make_folders()
        self._write_settings(settings)
        self._open_lines(dict.fromkeys(LINE_FILES, 0))

    def resume(self, settings: str) -> Checkpoint | None:
        """Go on after the last sealed round; None if there is none."""
        if not (self.path / "checkpoint").is_dir():
            raise InvalidInput(f"{self.path} holds no run to resume")
        self._hold()
        checkpoint = read_checkpoint(self.path)
        with _naming(self.path):
            _remove_leftovers(self.path)
            self._make_folders()
            # What it says is no longer so once the run goes on.
            (self.path / SUMMARY).unlink(missing_ok=True)
        self._open_lines(dict.fromkeys(LINE_FILES, 0) if checkpoint is None else checkpoint.lengths)
        self._remove_unsent()
        self._write_settings(settings)
        return checkpoint

    def _remove_unsent(self) -> None:
        """Remove weights of a round that was cut off: done again, it may send others."""
        sent = {record["weights"] for record in read_lines(self.path / LINE_FILES[0])}
        for path in (self.path / WEIGHTS).glob("*.safetensors"):
            if path.stem not in sent:
                with _naming(path):
                    path.unlink()

    def close(self) -> None:
        """Let go of the files."""
        for stream in self._lines.values():
            # What could not be written was reported then; unsealed lines are of no use.
            with contextlib.suppress(OSError):
                stream.close()
        self._close_fresh()
        if self._spares:
            with contextlib.suppress(OSError):  # resuming removes them as well
                for path in (self.path / WEIGHTS).glob(f".*{SPARE}"):
                    path.unlink()
        if self._lock is not None:
            self._lock.close()
        self._lines, self._lock = {}, None

    def _write_settings(self, settings: str) -> None:
        """The settings hold the seed, from which every action can be worked out: owner only."""
        write_atomically(self.path / SETTINGS, settings, mode=0o600)

    def _make_folders(self) -> None:
        (self.path / "private").mkdir(mode=0o700, exist_ok=True)
        (self.path / WEIGHTS).mkdir(parents=True, exist_ok=True)

    def _hold(self) -> None:
        path = self.path / "checkpoint" / LOCK
        with _naming(path):
            self._lock = path.open("wb")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InvalidInput(f"{self.path} is in use by another process") from error

    def _open_lines(self, lengths: Mapping[str, int]) -> None:
        for name, length in lengths.items():
            path = self.path / name
            with _naming(path):
                stream = self._lines[name] = os.fdopen(_open_for_owner(path), "ab")
                if stream.tell() < length:
                    raise InvalidInput(
                        f"{path} is shorter than its checkpoint says: {length} bytes are needed, "
                        f"got {stream.tell()}"
                    )
                stream.truncate(length)

    # --- a round ---

    def write_weights(self, layout: Layout, vector: Vector) -> str:
        """Record weights that are sent, once for each content; gives their name, or nothing.

        Where every round is to take the same time, one that sends what is known writes a spare
        file: a round without a write ends sooner, and one that replaces a file later.  Sealing
        removes the spare of the round before, so that there are never more than two.
        """
        if not self._keeps_weights:
            return ""
        content = serialise(layout, vector)
        name = name_content(content)
        path = self.path / WEIGHTS / f"{name}.safetensors"
        with _naming(path):
            if self._is_steady:
                self._spares += 1
                target = self._name_spare(self._spares) if path.exists() else path
                self._fresh[target] = _write_new(target, content)
            elif name not in self._written and not _holds(path, content):
                self._fresh[path] = _write_new(path, content)
        self._written.add(name)
        return name

    def _name_spare(self, number: int) -> Path:
        """The spare file of a round."""
        return self.path / WEIGHTS / f".{number}{SPARE}"

    def _remove_spare(self) -> None:
        """Remove the spare file of the round before, if it has one; asked for in every round."""
        path = self._name_spare(self._spares - 1)
        with _naming(path):
            path.unlink(missing_ok=True)

    def append(self, name: str, *records: Mapping[str, Any]) -> None:
        """Add lines to one of the line files."""
        text = "".join(json.dumps(record, allow_nan=False) + "\n" for record in records)
        with _naming(self.path / name):
            self._lines[name].write(text.encode())

    def seal(self, checkpoint: Checkpoint) -> None:
        """Make sure of all lines and weights so far, then replace the checkpoint."""
        lengths = {}
        for name, stream in self._lines.items():
            with _naming(self.path / name):
                stream.flush()
                lengths[name] = stream.tell()
        self._sync(lengths)
        facts = {**checkpoint.facts, "round": checkpoint.round, "lengths": lengths}
        write_atomically(self.path / CHECKPOINT, _pack(checkpoint.arrays, facts))

    def _sync(self, lengths: Mapping[str, int]) -> None:
        """Wait until the disk holds everything; all at once, as a disk does that in one go."""
        changed = [
            name for name in lengths if self._is_steady or lengths[name] != self._sealed.get(name)
        ]
        files = {self.path / name: self._lines[name].fileno() for name in changed}
        if self._is_steady:
            for handle in files.values():
                os.utime(handle)  # one without a new line must have something to wait for as well
        files |= {path: stream.fileno() for path, stream in self._fresh.items()}
        folders = {path.parent for path in (files if not self._sealed else self._fresh)}
        with contextlib.ExitStack() as opened:
            for folder in folders:
                with _naming(folder):
                    files[folder] = os.open(folder, os.O_RDONLY)
                opened.callback(os.close, files[folder])
            with ThreadPoolExecutor(max_workers=len(files) + 1) as pool:
                # A large file takes a while to go: beside the disk's own work nobody waits for it.
                removal = pool.submit(self._remove_spare)
                list(pool.map(_sync_file, files, files.values()))
            removal.result()
        self._close_fresh()
        self._sealed = dict(lengths)

    def _close_fresh(self) -> None:
        for stream in self._fresh.values():
            stream.close()
        self._fresh = {}

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary of a run that has ended."""
        text = json.dumps(summary, indent=2, allow_nan=False) + "\n"
        write_atomically(self.path / SUMMARY, text)


def _pack(arrays: Mapping[str, Vector], facts: Mapping[str, Any]) -> bytes:
    from safetensors.numpy import save

    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    text = json.dumps({**facts, "checksum": _checksum(contiguous, facts)}, allow_nan=False)
    return save(contiguous, metadata={"facts": text})


def _checksum(arrays: Mapping[str, Vector], facts: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()


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
        checksum = facts.pop("checksum")
    except (SafetensorError, AttributeError, LookupError, TypeError, ValueError, OSError) as error:
        raise InvalidInput(f"{file} is not a checkpoint of covertfl: {error}") from error
    if checksum != _checksum(arrays, facts):
        raise InvalidInput(f"{file} is damaged: it does not hold what was written to it")
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
            if not _is_record(record):
                raise InvalidInput(
                    f"{path} line {number} must have whole numbers as round and client (or null) "
                    "and a SHA-256 as weights"
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


def _is_record(record: Mapping[str, Any]) -> bool:
    """Whether a public line holds what it should; type() because true is an int as well."""
    weights = record["weights"]
    return (
        type(record["round"]) is int
        and (record["client"] is None or type(record["client"]) is int)
        and isinstance(weights, str)
        and re.fullmatch("[0-9a-f]{64}", weights) is not None
    )


def _open_for_owner(path: Path) -> int:
    """Open a line file to add to it; what tells of actions is for its owner only."""
    mode = 0o666 if path.parent.name == "public" else 0o600
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, mode)


def _sync_file(path: Path, handle: int) -> None:
    with _naming(path):
        os.fsync(handle)


def _holds(path: Path, content: bytes) -> bool:
    """Whether a file is there and whole; one that a crash overtook may not be."""
    return path.exists() and path.read_bytes() == content


def _write_new(path: Path, content: bytes) -> IO[bytes]:
    """Write a file under its name only once it is whole; it stays open until it is on the disk."""
    temporary = path.with_name(f".{path.name}.new")
    stream = temporary.open("wb")
    try:
        stream.write(content)
        stream.flush()
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            stream.close()
        raise
    return stream


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _remove_run(path: Path) -> None:
    """Remove what a run leaves in its folder, and nothing else; the lock stays held."""
    _remove_leftovers(path)
    for name in ("public", "private"):
        if (path / name).exists():
            shutil.rmtree(path / name)
    for name in (SETTINGS, SUMMARY, CHECKPOINT, "metrics.jsonl"):
        (path / name).unlink(missing_ok=True)


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files of a write that was cut short."""
    for pattern in (f".{SETTINGS}.*", f".{SUMMARY}.*", f"{WEIGHTS}/.*.*", "checkpoint/.*.*"):
        for leftover in path.glob(pattern):
            leftover.unlink()
