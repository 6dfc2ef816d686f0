"""The weights that were sent, in files named by their content: public/weights.

Which of them stay is up to the run file's `keep`: "all", those of the last n rounds, or none
("hashes"); the SHA-256 of each query is in the records of its round in any case.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Literal

import numpy as np

from covertfl.files.tensors import name_blocks, stream_tensors, write_blocks
from covertfl.kernels.weights import Layout, Vector

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
