"""One thread that writes requests for all who ask, many in one transaction.

What makes a request lasting is waiting for the disk, and that takes the same time for one request
as for hundreds.  Whoever asks is answered after the transaction is on the disk, never before.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple, Self

from covertfl.service.requests import RequestBody
from covertfl.service.store import Answer, Store

# Most changes in one transaction.
MOST_TOGETHER = 256


class Closed(RuntimeError):
    """A writer that no longer writes."""


class Entry(NamedTuple):
    """A change that waits to be written, and where its answer goes."""

    change: RequestBody | int
    answer: Future[Answer]


class Writer:
    """Writes changes of requests to the database of a folder; use it in a `with` statement."""

    def __init__(self, folder: Path) -> None:
        self._store = Store(folder, is_durable=True)
        self._entries: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # nothing is put behind the end
        self._is_closed = False
        self._thread = threading.Thread(target=self._write, name="writer", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what waits, and end."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._entries.put(None)
        self._thread.join()
        self._store.close()

    async def change(self, change: RequestBody | int) -> Answer:
        """Store a request, or cancel the one with a number; return when it is on the disk.

        Raises
        ------
        StorageFull
            if the disk is full; the change was not made
        """
        return await asyncio.wrap_future(self.submit(change))

    def submit(self, change: RequestBody | int) -> Future[Answer]:
        """Return the future answer to a change, as `change` would return it."""
        entry = Entry(change, Future())
        with self._lock:
            if self._is_closed:
                raise Closed("the writer is closed")
            self._entries.put(entry)
        return entry.answer

    def _write(self) -> None:
        """Write all that waits together, until the end."""
        is_open = True
        while is_open:
            waiting = [self._entries.get()]
            while len(waiting) < MOST_TOGETHER and waiting[-1] is not None:
                try:
                    waiting.append(self._entries.get_nowait())
                except queue.Empty:
                    break
            is_open = waiting[-1] is not None
            # Who has gone away before his change was begun is not served.
            self._commit(
                [
                    entry
                    for entry in waiting
                    if entry is not None and entry.answer.set_running_or_notify_cancel()
                ]
            )

    def _commit(self, entries: Sequence[Entry]) -> None:
        """Make changes in one transaction; if that fails, each in one of its own."""
        if not entries:
            return
        try:
            answers = self._store.change([entry.change for entry in entries])
        except Exception as error:
            if len(entries) == 1:
                entries[0].answer.set_exception(error)
                return
            for entry in entries:
                self._commit([entry])
            return
        for entry, answer in zip(entries, answers, strict=True):
            entry.answer.set_result(answer)
