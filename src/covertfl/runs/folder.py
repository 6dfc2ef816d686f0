"""The folder of a run: its records, and the checkpoint from which it is resumed.

    run.toml                     complete settings and versions
    public/rounds.jsonl          a line per query: round, client (null for all), weights
    public/weights/<sha256>.safetensors
    private/rounds.jsonl         a line per round: observation, action, outcome, costs
    private/updates.jsonl        a line per update: task, round of arrival, round of completion
    metrics.jsonl                a line per round: accuracies and exposure
    model.json                   what the trained model is, besides its weights
    map.safetensors              the public map, if the run's inputs pass one
    checkpoint/state.safetensors the state after the last complete round; before the first, the
                                 weights that all trajectories start from
    checkpoint/pending.json      what was decided in the round that is under way
    summary.json                 results of a run that has ended
    service.db, token, address   of a service (package `service`), and versions/ with its versions

Which of the weights that were sent stay is up to the run file's `keep`: "all", those of the last n
rounds, or none ("hashes"); the SHA-256 of each query is in the records of its round in any case.

A round is recorded line by line and then sealed by replacing the checkpoint, which also holds the
lengths of the line files.  After a crash, lines beyond these lengths are cut off and the round is
repeated.  Everything a checkpoint relies on is on the disk before the checkpoint is written.  What
a query depends on, the checkpoint and the decision, is written before the query is sent, so that a
repeated round sends the same one: two queries in one round would name the action.

What eavesdroppers may read of it is in `public`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from covertfl.errors import InvalidInput
from covertfl.files.disk import require_regular, write_atomically
from covertfl.files.tensors import name_blocks, stream_tensors, write_blocks
from covertfl.files.text import parse_toml, read_object, read_text, require_format
from covertfl.kernels.job import Layout, Vector
from covertfl.runs.checkpoint import (
    CHECKPOINT,
    HEADER_ROOM,
    Checkpoint,
    CheckpointDraft,
    measure_header,
    read_checkpoint,
    write_checkpoint,
)
from covertfl.runs.files import (
    METRICS,
    ROUNDS,
    SENT,
    SETTINGS,
    SUMMARY,
    UPDATES,
    RunSummary,
    read_lines,
)
from covertfl.tasks.models import describe_model
from covertfl.tasks.task import TrainingTask

Keep = Literal["all", "hashes"] | int
SUFFIX = ".safetensors"
# Files of weights that are remembered to have been written.
MOST_KNOWN = 1024
READ = 2**20


class WeightFiles:
    """Files of weights, one for each content.

    Parameters
    ----------
    folder : of the files
    keep : which of them stay
    """

    def __init__(self, folder: Path, keep: Keep = "all") -> None:
        self.folder, self.keep = folder, keep
        self._known: set[str] = set()
        self._fresh: dict[Path, IO[bytes]] = {}  # files that may not be on the disk yet
        self._recent: deque[str] = deque()

    def find(self, name: str) -> Path:
        """Return the file of a content."""
        return self.folder / f"{name}{SUFFIX}"

    def resume(self, sent: Iterable[str]) -> None:
        """Remove what no sealed round has sent, or none of those whose weights are kept.

        With "hashes", files from before that was set stay.

        Parameters
        ----------
        sent : contents in the order of the rounds
        """
        number = self.keep if isinstance(self.keep, int) else None
        kept = deque(sent, maxlen=number)
        for path in self.folder.glob(f"*{SUFFIX}"):
            if path.stem not in kept:
                path.unlink()
        if number is not None:
            self._recent = deque(kept)

    def write(self, layout: Layout, vector: Vector) -> str:
        """Write weights, once for each content; return their SHA-256."""
        name = name_blocks(stream_weights(layout, vector))
        if self.keep == "hashes":
            return name
        path = self.find(name)
        if not (name in self._known or _has_content(path)):
            self._fresh[path] = _write_new(path, stream_weights(layout, vector))
        if len(self._known) >= MOST_KNOWN:  # a service writes weights for ever
            self._known.clear()
        self._known.add(name)
        if self.keep != "all":
            self._recent.append(name)
        return name

    def list_unsynced(self) -> dict[Path, int]:
        """Return the open files that may not be on the disk yet."""
        return {path: stream.fileno() for path, stream in self._fresh.items()}

    def end_round(self) -> None:
        """Close the files of a round that has been sealed, and remove those that are not kept."""
        self.close()
        while isinstance(self.keep, int) and len(self._recent) > self.keep:
            name = self._recent.popleft()
            if name not in self._recent:
                self._known.discard(name)
                self.find(name).unlink(missing_ok=True)

    def close(self) -> None:
        """Close all files."""
        for stream in self._fresh.values():
            stream.close()
        self._fresh = {}


def stream_weights(layout: Layout, vector: Vector) -> Iterator[memoryview]:
    """Yield the bytes of a safetensors file with the weights by parameter, without a copy."""
    return stream_tensors(layout.split(np.ascontiguousarray(vector, dtype=np.float32)))


def _has_content(path: Path) -> bool:
    """Return whether a file exists and is complete; after a crash it may not be."""
    return path.is_file() and name_blocks(_read_blocks(path)) == path.stem


def _read_blocks(path: Path) -> Iterator[memoryview]:
    with path.open("rb") as stream:
        while block := stream.read(READ):
            yield memoryview(block)


def _write_new(path: Path, blocks: Iterable[memoryview]) -> IO[bytes]:
    """Write a file that gets its name once it is complete; it stays open until it is synced."""
    temporary = path.with_name(f".{path.name}.new")
    opened = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    stream = os.fdopen(opened, "wb")
    try:
        write_blocks(opened, blocks)
        temporary.replace(path)
    except OSError:
        stream.close()
        raise
    return stream


LINE_FILES = (SENT, ROUNDS, UPDATES, METRICS)
WEIGHTS = "public/weights"
FOLDERS = ("public", WEIGHTS, "private", "checkpoint")
LOCK = "checkpoint/lock"
MAP, MODEL = "map.safetensors", "model.json"
PENDING = "checkpoint/pending.json"
# Files of a service, which are there before its run begins.
DATABASE, TOKEN, ADDRESS = "service.db", "token", "address"
SERVICE = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", TOKEN, ADDRESS)
# Writes and syncs that are under way at the same time.
WRITERS = 8


class RunFolder:
    """The folder of one run, open in one process at a time: `records.Records` on the disk.

    Parameters
    ----------
    keep : which weights stay that were sent; a run without them cannot be audited
    """

    def __init__(self, path: str | os.PathLike[str], *, keep: Keep = "all") -> None:
        self.path = Path(path)
        self._weights = self._make_weights(self.path / WEIGHTS, keep)
        self._lock: IO[bytes] | None = None
        self._lines: dict[str, IO[bytes]] = {}
        self._sealed: dict[str, int] = {}
        self._room = 0  # for the header of the next checkpoint
        self._pool = ThreadPoolExecutor(WRITERS)  # starts no thread before it is used

    @property
    def note_name(self) -> str:
        """The file of what a round has decided."""
        return str(self.path / PENDING)

    def _make_weights(self, folder: Path, keep: Keep) -> WeightFiles:
        return WeightFiles(folder, keep)

    def require_absent(self) -> None:
        """Raise InvalidInput if the folder exists and is not empty."""
        if not self.path.exists():
            return
        if not self.path.is_dir() or any(file.name not in SERVICE for file in self.path.iterdir()):
            raise self._refuse()

    def _refuse(self) -> InvalidInput:
        return InvalidInput(
            f"{self.path} exists: resume the run in it (--resume) or replace it (--force)"
        )

    def require_replaceable(self) -> None:
        """Raise InvalidInput if the folder holds files and none of them shows that it is a run's.

        Replacing a run deletes public/ and private/, which are common names.
        """
        if (self.path / DATABASE).exists():
            raise InvalidInput(
                f"{self.path} holds a service, whose requests would be lost, and nothing in it is "
                "deleted: choose another folder"
            )
        if not (is_new(self.path) or is_own(self.path)):
            raise InvalidInput(
                f"{self.path} holds files but no run of covertfl, and nothing in it is deleted: "
                "choose another folder, or empty this one"
            )
        for name in FOLDERS:
            if (self.path / name).is_symlink():
                raise InvalidInput(
                    f"{self.path / name} is a symbolic link, and what it points to is not deleted: "
                    "remove the link first"
                )

    def create(self, settings: str, *, force: bool) -> None:
        """Make the folder; replace an existing one only with `force`, and never one in use."""
        if force:
            self.require_replaceable()
        else:
            self.require_absent()
        with report_errors(self.path):
            (self.path / "checkpoint").mkdir(mode=0o700, parents=True, exist_ok=True)
        # Lock before anything is removed: another process may be using the folder.
        self._acquire_lock()
        if (self.path / SETTINGS).exists() and not force:  # made by another process meanwhile
            raise self._refuse()
        with report_errors(self.path):
            _remove_run(self.path)
        # First of all: settings show that the folder is a run's, also after a crash.
        self._write_settings(settings)
        with report_errors(self.path):
            self._make_folders()
        self._open_lines(dict.fromkeys(LINE_FILES, 0))

    def resume(self, settings: str) -> Checkpoint | None:
        """Return to the last sealed round and return its checkpoint, None if there is none."""
        is_run = (self.path / CHECKPOINT).exists() or is_new(self.path) or is_own(self.path)
        if not (is_run and (self.path / "checkpoint").is_dir()):
            raise InvalidInput(f"{self.path} holds no run to resume")
        self._acquire_lock()
        checkpoint = read_checkpoint(self.path)
        if checkpoint is not None:  # as much as after the round itself: resumed runs have its bytes
            self._room = measure_header(self.path) + HEADER_ROOM
        with report_errors(self.path):
            _remove_leftovers(self.path)
            self._make_folders()
            # The summary of a run that continues is out of date.
            (self.path / SUMMARY).unlink(missing_ok=True)
        self._open_lines(dict.fromkeys(LINE_FILES, 0) if checkpoint is None else checkpoint.lengths)
        self._remove_unsent()
        self._write_settings(settings)
        return checkpoint

    def _remove_unsent(self) -> None:
        """Remove weights of a round that was interrupted, which writes them again."""
        sent = [str(record.get("weights")) for record in read_lines(self.path / SENT)]
        with report_errors(self.path / WEIGHTS):
            self._weights.resume(sent)

    def keep_model(self, task: TrainingTask) -> None:
        """Write what the model of a task is, and its public map unless that is there already."""
        text = json.dumps(describe_model(task), indent=1, allow_nan=False) + "\n"
        write_atomically(self.path / MODEL, text, mode=0o600)
        path = self.path / MAP
        if task.public_map is not None and not path.exists():
            with report_errors(path):
                task.public_map.save(path, mode=0o600)

    def close(self) -> None:
        """Close all files and release the lock."""
        self._pool.shutdown()
        for stream in self._lines.values():
            # A failed write was reported when it happened; unsealed lines are not needed.
            with contextlib.suppress(OSError):
                stream.close()
        self._weights.close()
        if self._lock is not None:
            self._lock.close()
        self._lines, self._lock = {}, None

    def _write_settings(self, settings: str) -> None:
        """Write the settings for the owner only: all actions can be derived from the seed."""
        write_atomically(self.path / SETTINGS, settings, mode=0o600)

    def _make_folders(self) -> None:
        (self.path / "private").mkdir(mode=0o700, exist_ok=True)
        for name in ("private", "checkpoint"):
            (self.path / name).chmod(0o700)  # a copy may have other permissions
        (self.path / WEIGHTS).mkdir(parents=True, exist_ok=True)

    def _acquire_lock(self) -> None:
        path = self.path / LOCK
        with report_errors(path):
            self._lock = os.fdopen(_open_to_append(path, 0o600), "ab")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InvalidInput(f"{self.path} is in use by another process") from error

    def _open_lines(self, lengths: Mapping[str, int]) -> None:
        for name, length in lengths.items():
            path = self.path / name
            # Only the owner may read what reveals actions.
            mode = None if path.parent.name == "public" else 0o600
            with report_errors(path):
                stream = self._lines[name] = os.fdopen(_open_to_append(path, mode), "ab")
                if stream.tell() < length:
                    raise InvalidInput(
                        f"{path} is shorter than its checkpoint requires: it must have at least "
                        f"{length} bytes, got {stream.tell()}"
                    )
                stream.truncate(length)

    def begin_query(self, layout: Layout, vector: Vector, ahead: Mapping[str, Vector]) -> None:
        """Take what can be written while clients work, once the decision is noted.

        Here nothing is: nobody waits for the clients of a simulated run.

        Parameters
        ----------
        vector : (P,) weights of the query
        ahead : arrays of the next checkpoint, by name, that only a move of all trajectories changes
        """

    def write_weights(self, layout: Layout, vector: Vector) -> str:
        """Record weights that are sent, once for each content; return their SHA-256."""
        with report_errors(self._weights.folder):
            return self._weights.write(layout, vector)

    def append(self, name: str, *records: Mapping[str, Any]) -> None:
        """Add lines to one of the line files."""
        text = "".join(json.dumps(record, allow_nan=False) + "\n" for record in records)
        with report_errors(self.path / name):
            self._lines[name].write(text.encode())

    def note(self, decision: Mapping[str, Any]) -> None:
        """Write down what a round has decided, before its query is sent.

        Nobody is sent the query of a simulated run, so it may be lost with the machine.
        """
        path = self.path / PENDING
        with report_errors(path):
            write_new(path, json.dumps(decision, allow_nan=False).encode())

    def read_note(self) -> dict[str, Any] | None:
        """Return what the last round that was begun has decided, None before the first."""
        path = self.path / PENDING
        if not path.exists() or (path.stat().st_size == 0 and path.is_file()):
            return None  # empty: it was lost with the machine
        return read_object(path, "the decision of a round")

    def seal(self, checkpoint: Checkpoint, meanwhile: Callable[[], None] | None = None) -> None:
        """Write all lines and weights so far to the disk, then replace the checkpoint.

        Parameters
        ----------
        meanwhile : work that may be done at the same time, where that saves time
        """
        self._seal(checkpoint)
        if meanwhile is not None:
            meanwhile()

    def _seal(self, checkpoint: Checkpoint, draft: CheckpointDraft | None = None) -> None:
        """Seal a round with a checkpoint of which a draft may be there.

        The checkpoint is written while the files that it relies on are synced, and gets its name
        after them.
        """
        lengths = {}
        for name, stream in self._lines.items():
            with report_errors(self.path / name):
                stream.flush()
                lengths[name] = stream.tell()
        with self._syncing(lengths) as await_files:
            if draft is None:  # with as much room as on all engines, which write the same bytes
                with report_errors(self.path / CHECKPOINT):
                    draft = CheckpointDraft(self.path, self._room)
            length = write_checkpoint(self.path, checkpoint, lengths, draft, await_files)
        self._room = length + HEADER_ROOM
        self._sealed = dict(lengths)
        with report_errors(self._weights.folder):
            self._weights.end_round()

    @contextlib.contextmanager
    def _syncing(self, lengths: Mapping[str, int]) -> Iterator[Callable[[], None]]:
        """Sync all files at the same time; return a function that waits for them."""
        changed, fresh = self._find_changed(lengths), self._weights.list_unsynced()
        files = {self.path / name: self._lines[name].fileno() for name in changed} | fresh
        folders = {path.parent for path in (files if not self._sealed else fresh)}
        with contextlib.ExitStack() as opened:
            for folder in folders:
                with report_errors(folder):
                    files[folder] = os.open(folder, os.O_RDONLY)
                opened.callback(os.close, files[folder])
            syncs = [self._pool.submit(_sync_file, *file) for file in files.items()]
            opened.callback(wait, syncs)

            def await_files() -> None:
                for sync in syncs:
                    sync.result()

            yield await_files

    def _find_changed(self, lengths: Mapping[str, int]) -> list[str]:
        """Return the line files that have new lines."""
        return [name for name, length in lengths.items() if length != self._sealed.get(name)]

    def finish(self, summary: RunSummary) -> None:
        """Write the summary of a run that has ended, for its owner only.

        The number of learning queries, beside what clients were sent, names the true trajectory.
        The decision of a round that was begun and is not done stays: it must be repeated.
        """
        text = json.dumps(summary.to_dict(), indent=2, allow_nan=False) + "\n"
        write_atomically(self.path / SUMMARY, text, mode=0o600)
        note = self.read_note()
        if note is not None and note.get("round") == summary.rounds + 1:
            return
        with report_errors(self.path / PENDING):
            (self.path / PENDING).unlink(missing_ok=True)


def is_own(path: Path) -> bool:
    """Return whether a folder is that of a run: it has the lock, and settings with versions.

    A run file of a user has no versions.
    """
    settings, lock = path / SETTINGS, path / LOCK
    if any(file.is_symlink() or not file.is_file() for file in (settings, lock)):
        return False
    try:
        content = parse_toml(read_text(settings, "the folder of a run"), str(settings))
    except InvalidInput:
        return False
    versions = content.get("versions")
    return isinstance(versions, dict) and "covertfl" in versions


def is_new(path: Path) -> bool:
    """Return whether a folder is absent or empty, but for the lock of a run that did not begin."""
    if path.exists() and not path.is_dir():
        return False
    begun = {path / LOCK, path / LOCK.partition("/")[0], *path.glob(f".{SETTINGS}.*")}
    begun |= {path / name for name in SERVICE}
    return begun.issuperset((*path.glob("*"), *path.glob("checkpoint/*")))


def require_readable(path: str | os.PathLike[str]) -> None:
    """Raise InvalidInput if another version of covertfl wrote the run in a folder."""
    file = Path(path) / SETTINGS
    if file.exists():
        content = parse_toml(read_text(file, "the folder of a run"), str(file))
        require_format("run", content.get("format"), str(file))


@contextlib.contextmanager
def report_errors(path: Path) -> Iterator[None]:
    """Turn an error of the operating system into InvalidInput that names the file."""
    try:
        yield
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror or error}") from error


def _open_to_append(path: Path, mode: int | None) -> int:
    """Open a file, with these permissions also if it exists; None for the system's default."""
    if path.exists():
        require_regular(path, "a file of a run")
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, mode or 0o666)
    if mode is not None:
        os.fchmod(handle, mode)
    return handle


def _sync_file(path: Path, handle: int) -> None:
    with report_errors(path):
        os.fsync(handle)


def write_new(path: Path, content: bytes, *, syncs: bool = False) -> None:
    """Write a file for the owner only, which gets its name once it is complete.

    With `syncs` it is on the disk before that.
    """
    temporary = path.with_name(f".{path.name}.new")
    opened = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(opened, "wb") as stream:
        stream.write(content)
        stream.flush()
        if syncs:
            os.fsync(opened)
        temporary.replace(path)


def _remove_run(path: Path) -> None:
    """Remove the files of a run from its folder, and nothing else.

    The lock and the settings stay, which show whose folder it is.  The checkpoint goes first:
    without it, what is left after a crash is a run that has not begun.
    """
    for name in (CHECKPOINT, PENDING, SUMMARY, MODEL, MAP, METRICS):
        (path / name).unlink(missing_ok=True)
    _remove_leftovers(path)
    for name in ("public", "private"):
        if (path / name).exists():
            shutil.rmtree(path / name)


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files of interrupted writes."""
    own = (f".{name}.*" for name in (SETTINGS, SUMMARY, MODEL, MAP))
    for pattern in (*own, f"{WEIGHTS}/.*.*", "checkpoint/.*.*"):
        for leftover in path.glob(pattern):
            leftover.unlink()
