"""Checkpoints: the state of a run after its last complete round, or before the first.

A checkpoint is a safetensors file with the arrays of the state; its metadata holds the other facts
as JSON and the SHA-256 of each array.  The checksum covers the facts, and with them the arrays,
because a file that can be read is not always the one that was written.

It is written array by array.  Arrays that a round cannot change, or changes in the sight of all
clients, can be written ahead while clients work (`CheckpointDraft`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covertfl.errors import InvalidInput
from covertfl.files.disk import require_regular
from covertfl.files.tensors import cut, make_header, view_bytes, write_fully
from covertfl.files.text import FORMATS, parse_json, require_format
from covertfl.kernels.job import Vector

STATE = "state.safetensors"
CHECKPOINT = f"checkpoint/{STATE}"
WRONG_CONTENT = (AttributeError, LookupError, TypeError, ValueError, OSError)
# Bytes that the header of a draft has room for, beyond those of the checkpoint before it.
HEADER_ROOM = 4096
# The array that comes first in a checkpoint, so that its place is known beforehand.
AHEAD = "true"
# As long as a SHA-256.
BLANK = "0" * 64
# Arrays of at least so many bytes are hashed while they are written.
LARGE = 2**20


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state of a run after a round: arrays of weights and memories, other facts as JSON."""

    round: int
    arrays: Mapping[str, Vector]
    facts: Mapping[str, Any]

    @property
    def lengths(self) -> dict[str, int]:
        """Lengths of the line files in bytes, by name, in a checkpoint that was read."""
        return {name: int(length) for name, length in self.facts["lengths"].items()}


class CheckpointDraft:
    """A checkpoint that is being written, beside the one that it will replace.

    Parameters
    ----------
    room : bytes of its header; if it turns out longer, all arrays are written anew

    Attributes
    ----------
    header_length : bytes that the header of the complete checkpoint needs
    """

    def __init__(self, folder: Path, room: int = 0) -> None:
        self._target = Path(os.path.realpath(folder / CHECKPOINT))
        self._temporary = self._target.with_name(f".{STATE}.new")
        self._room, self.header_length = 8 * -(-room // 8), 0
        self._ahead: dict[str, tuple[Vector, str]] = {}
        self._is_closed = False
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        self._handle = os.open(self._temporary, flags, 0o600)

    def write_ahead(self, arrays: Mapping[str, Vector]) -> None:
        """Write arrays that the checkpoint will probably hold, and wait until they are stored.

        Others than `AHEAD` are written anew.
        """
        os.lseek(self._handle, self._room, os.SEEK_SET)
        for name, array in arrays.items():
            self._ahead[name] = (array, self._write_array(array))
        os.fdatasync(self._handle)

    def complete(
        self, checkpoint: Checkpoint, lengths: Mapping[str, int], await_others: Callable[[], None]
    ) -> None:
        """Write the rest, wait for what the checkpoint relies on, and replace the one before."""
        arrays = checkpoint.arrays
        facts = {**checkpoint.facts, "round": checkpoint.round, "lengths": lengths}
        names = sorted(arrays, key=lambda name: (name != AHEAD, name))
        blank = _make_header(arrays, names, facts)
        self.header_length = len(blank)
        if not self._fits(arrays) or len(blank) > self._room:
            self._ahead, self._room = {}, len(blank)
        digests, start = {}, self._room
        for name in names:
            os.lseek(self._handle, start, os.SEEK_SET)
            known = self._ahead.get(name)
            is_known = known is not None and known[0] is arrays[name]
            digests[name] = known[1] if known and is_known else self._write_array(arrays[name])
            start += arrays[name].nbytes
        os.ftruncate(self._handle, start)
        os.lseek(self._handle, 0, os.SEEK_SET)
        header = _make_header(arrays, names, facts, digests, size=self._room)
        write_fully(self._handle, memoryview(header))
        os.fdatasync(self._handle)
        await_others()
        self._temporary.replace(self._target)

    def _fits(self, arrays: Mapping[str, Vector]) -> bool:
        """Return whether everything that was written ahead has its place in a checkpoint."""
        return all(
            name == AHEAD and name in arrays and arrays[name].nbytes == array.nbytes
            for name, (array, _) in self._ahead.items()
        )

    def _write_array(self, array: Vector) -> str:
        """Write an array at the present place and return its SHA-256."""
        content = view_bytes(array)
        if len(content) < LARGE:
            write_fully(self._handle, content)
            return hashlib.sha256(content).hexdigest()
        with ThreadPoolExecutor(max_workers=1) as pool:
            digest = pool.submit(hashlib.sha256, content)
            for block in cut(content):
                write_fully(self._handle, block)
            return digest.result().hexdigest()

    def close(self) -> None:
        """Close the file, and remove it if it has not become the checkpoint."""
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.suppress(OSError):
            os.close(self._handle)
        with contextlib.suppress(OSError):  # resuming removes it as well
            self._temporary.unlink(missing_ok=True)


def _make_header(
    arrays: Mapping[str, Vector],
    names: list[str],
    facts: Mapping[str, Any],
    digests: Mapping[str, str] | None = None,
    *,
    size: int = 0,
) -> bytes:
    """Return the header of a checkpoint, of at least `size` bytes; without digests, its length."""
    given = digests or dict.fromkeys(names, BLANK)
    facts = {**facts, "digests": {name: given[name] for name in sorted(given)}}
    checksum = BLANK if digests is None else _checksum_facts(facts)
    text = json.dumps({**facts, "checksum": checksum}, allow_nan=False)
    return make_header(
        arrays, names, metadata={"format": str(FORMATS["run"]), "facts": text}, size=size
    )


def write_checkpoint(
    folder: Path,
    checkpoint: Checkpoint,
    lengths: Mapping[str, int],
    draft: CheckpointDraft | None = None,
    await_others: Callable[[], None] | None = None,
) -> int:
    """Replace the checkpoint of a run's folder, whole or not at all, for its owner only.

    Parameters
    ----------
    lengths : of the line files in bytes, by name
    draft : part of it that is there already, None for nothing; it is closed
    await_others : returns when what the checkpoint relies on is stored

    Returns
    -------
    int
        bytes of the header
    """
    try:
        draft = draft or CheckpointDraft(folder)
        with contextlib.closing(draft):
            draft.complete(checkpoint, lengths, await_others or (lambda: None))
        return draft.header_length
    except OSError as error:
        path = folder / CHECKPOINT
        raise InvalidInput(f"{path} cannot be written: {error.strerror or error}") from error


def read_checkpoint(folder: str | os.PathLike[str]) -> Checkpoint | None:
    """Return the checkpoint of a run's folder, None before a run has started."""
    return read_state(Path(folder) / CHECKPOINT)


def read_state(file: Path) -> Checkpoint | None:
    """Return the checkpoint in a file, None if there is no such file."""
    from safetensors import SafetensorError, safe_open

    if not file.exists():
        return None
    require_regular(file, "a checkpoint")
    try:
        with safe_open(file, framework="numpy") as content:
            arrays = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
            stated = content.metadata()["facts"], content.metadata().get("format")
    except (SafetensorError, *WRONG_CONTENT) as error:
        raise InvalidInput(f"{file} is not a checkpoint of covertfl: {error}") from error
    require_format("run", stated[1], str(file))
    try:
        facts = parse_json(stated[0], "the state of the run")
        checksum, number = facts.pop("checksum"), int(facts["round"])
        found = _checksum(arrays, facts)
    except (InvalidInput, ArithmeticError, *WRONG_CONTENT) as error:
        raise InvalidInput(f"{file} is not a checkpoint of covertfl: {error}") from error
    if checksum != found:
        raise InvalidInput(f"{file} is damaged: its content does not match its checksum")
    return Checkpoint(number, arrays, facts)


def measure_header(folder: Path) -> int:
    """Return the bytes that the header of a folder's checkpoint needs, without its filling."""
    with (folder / CHECKPOINT).open("rb") as stream:
        text = stream.read(int.from_bytes(stream.read(8), "little"))
    return 8 + 8 * -(-len(text.rstrip()) // 8)


def _checksum(arrays: Mapping[str, Vector], facts: dict[str, Any]) -> str:
    """Return the checksum of facts with the digests of the arrays as they are."""
    digests = {name: hashlib.sha256(view_bytes(arrays[name])).hexdigest() for name in arrays}
    stated = facts.pop("digests")
    return _checksum_facts({**facts, "digests": digests}) if stated == digests else ""


def _checksum_facts(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
