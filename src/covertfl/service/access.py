"""How the HTTP interface uses the database: threads, so that its event loop never waits for it.

Several threads read, and one writes requests for all who ask, many in one transaction.  What makes
a request lasting is waiting for the disk, and that takes the same time for one request as for
hundreds.  The answer is sent after the transaction is on the disk, never before.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from covertfl.service.requests import RequestBody
from covertfl.service.store import Answer, Store

Found = TypeVar("Found")
# Threads that read, and most changes in one transaction.
THREADS, MOST_TOGETHER = 4, 256


class Reader:
    """Calls functions in threads, each of which has the database of a folder open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="reader")
        self._local = threading.local()
        self._stores: list[Store] = []

    async def read(self, function: Callable[[Store], Found]) -> Found:
        """Return what a function returns for the database."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._call, function)

    def _call(self, function: Callable[[Store], Found]) -> Found:
        if not hasattr(self._local, "store"):
            self._local.store = Store(self._folder, is_durable=False)
            self._stores.append(self._local.store)
        return function(self._local.store)

    def close(self) -> None:
        """End the threads and close the database."""
        self._executor.shutdown()
        for store in self._stores:
            store.close()


class Entry(NamedTuple):
    """A change that waits to be written, and where its answer goes."""

    change: RequestBody | int
    answer: Future[Answer]


class Writer:
    """Writes changes of requests to the database of a folder, until it is closed."""

    def __init__(self, folder: Path) -> None:
        self._store = Store(folder, is_durable=True)
        self._entries: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # nothing is put behind the end
        self._is_closed = False
        self._thread = threading.Thread(target=self._write, name="writer", daemon=True)
        self._thread.start()

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
                raise RuntimeError("the writer is closed")
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
            # Changes whose senders have gone away before they were begun are dropped.
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
