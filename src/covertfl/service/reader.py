"""Threads that read the database, so that the event loop never waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from covertfl.service.store import Store

Found = TypeVar("Found")
THREADS = 4


class Reader:
    """Calls functions in threads, each of which has the database of a folder open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="reader")
        self._local = threading.local()
        self._stores: list[Store] = []

    async def read(self, function: Callable[[Store], Found]) -> Found:
        """Return what a function returns for the database."""
        return await asyncio.get_running_loop().run_in_executor(
            self._executor, self._call, function
        )

    def _call(self, function: Callable[[Store], Found]) -> Found:
        store: Store | None = getattr(self._local, "store", None)
        if store is None:
            self._local.store = store = Store(self._folder, is_durable=False)
            self._stores.append(store)
        return function(store)

    def close(self) -> None:
        """End the threads and close the database."""
        self._executor.shutdown()
        for store in self._stores:
            store.close()
