"""Server-sent events: the status, to all who listen, whenever it changes.

One task looks at the database for all listeners.  A listener that reads slowly gets the newest
status and misses those between.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Iterator
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from covertfl.service.access import Reader
from covertfl.service.status import describe_status, read_mark
from covertfl.service.store import Store

LOG = logging.getLogger("covertfl.service")
# Seconds between two looks at the database, and between two signs of life.
LOOK_SECONDS, ALIVE_SECONDS = 0.25, 15.0
MOST_LISTENERS = 32

Mark = tuple[Any, ...]
Events = asyncio.Queue[bytes | None]


class Broadcast:
    """The listeners and what they were told last."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._listeners: set[Events] = set()
        self._lock = asyncio.Lock()
        self._mark: Mark | None = None
        self._latest = b""

    @property
    def is_full(self) -> bool:
        """Whether nobody else may listen."""
        return len(self._listeners) >= MOST_LISTENERS

    @contextlib.contextmanager
    def join(self) -> Iterator[Events]:
        """Add a listener; None among its events is the end."""
        events: Events = asyncio.Queue(1)
        self._listeners.add(events)
        try:
            yield events
        finally:
            self._listeners.discard(events)

    async def greet(self, events: Events) -> None:
        """Tell a listener the status as it is now."""
        await self._refresh()
        _replace(events, self._latest)

    async def run(self) -> None:
        """Tell all listeners of every change, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._listeners:
                try:
                    await self._refresh()
                except Exception:
                    LOG.exception("the status could not be read")

    async def _refresh(self) -> None:
        async with self._lock:
            found = await self._reader.read(self._look)
            if found is not None:
                self._mark, self._latest = found
                for events in self._listeners:
                    _replace(events, self._latest)

    def _look(self, store: Store) -> tuple[Mark, bytes] | None:
        """Return the status as an event, None if nothing has changed."""
        mark = read_mark(store)
        if mark == self._mark:
            return None
        text = json.dumps(describe_status(store), allow_nan=False)
        return mark, f"event: status\ndata: {text}\n\n".encode()

    def end(self) -> None:
        """Let all listeners go."""
        for events in self._listeners:
            _replace(events, None)


def _replace(events: Events, event: bytes | None) -> None:
    with contextlib.suppress(asyncio.QueueEmpty):
        events.get_nowait()
    events.put_nowait(event)


class EventResponse(Response):
    """An answer that goes on until the listener, or the service, ends it."""

    def __init__(self, broadcast: Broadcast) -> None:
        super().__init__(media_type="text/event-stream")
        del self.headers["content-length"]
        self._broadcast = broadcast

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the status as it is, and every later one."""
        with self._broadcast.join() as events:
            await self._broadcast.greet(events)
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            sending = asyncio.ensure_future(_send_events(events, send))
            leaving = asyncio.ensure_future(_await_departure(receive))
            try:
                await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                sending.cancel()
                leaving.cancel()
                await asyncio.gather(sending, leaving, return_exceptions=True)


async def _send_events(events: Events, send: Send) -> None:
    event: bytes | None = b""
    while event is not None:
        try:
            event = await asyncio.wait_for(events.get(), ALIVE_SECONDS)
        except TimeoutError:
            event = b":\n\n"
        await send(
            {"type": "http.response.body", "body": event or b"", "more_body": event is not None}
        )


async def _await_departure(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
