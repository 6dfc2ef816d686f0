"""The HTTP interface of a service: its routes, each of which reads or writes the database.

It plays no rounds: that is another process, and only the database is shared with it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import os
import re
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from covertfl.errors import InvalidInput
from covertfl.service.events import Broadcast, EventResponse
from covertfl.service.guard import Guard, LingeringRefusal, answer, refuse
from covertfl.service.reader import Reader
from covertfl.service.requests import RequestBody, check_request, parse_request
from covertfl.service.schema import StorageFull
from covertfl.service.status import (
    describe_answer,
    describe_policy,
    describe_requests,
    describe_rounds,
    describe_status,
    describe_versions,
    format_metrics,
    read_limits,
)
from covertfl.service.store import Answer, Conflict, Store, Unknown
from covertfl.service.writer import Writer

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
MOST_BODY = 32 * 2**20  # bytes
MOST_HELD = 8 * MOST_BODY  # bytes of all bodies that are being read or stored
BODY_SECONDS = 60.0
MOST_REQUESTS, MOST_ROUNDS, MOST_VERSIONS = 1_000, 10_000, 200


class Refusal(Exception):
    """A request that ends with a status and a sentence."""

    def __init__(self, status: int, sentence: str, *, is_ended: bool = True) -> None:
        super().__init__(sentence)
        self.status = status
        self.is_ended = is_ended


class Api:
    """The routes of one service.

    Parameters
    ----------
    page : returns the page that is served at /
    processes : of the service, whose memory is reported
    most_body : bytes of a body at most
    """

    def __init__(
        self, folder: Path, page: Callable[[], bytes], processes: Sequence[int], most_body: int
    ) -> None:
        self._folder, self._page = folder, page
        self._processes, self._most_body = processes, most_body
        self._held = 0

    @contextlib.asynccontextmanager
    async def open(self, _app: FastAPI) -> AsyncIterator[None]:
        """Open the database, and look at it for all who listen to events."""
        self._reader = Reader(self._folder)
        self._broadcast = Broadcast(self._reader)
        looking = asyncio.ensure_future(self._broadcast.run())
        try:
            with Writer(self._folder) as self._writer:
                yield
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            self._reader.close()

    def end_events(self) -> None:
        """Let all listeners go, so that the service can end."""
        self._broadcast.end()

    def add_routes(self, app: FastAPI) -> None:
        """Add all routes to an application."""
        for method, path, endpoint in (
            ("POST", "/requests", self._post_request),
            ("GET", "/requests", self._list_requests),
            ("GET", "/requests/{number}", self._get_request),
            ("DELETE", "/requests/{number}", self._cancel_request),
            ("GET", "/status", self._get_status),
            ("GET", "/rounds", self._list_rounds),
            ("GET", "/versions", self._list_versions),
            ("GET", "/policy", self._get_policy),
            ("GET", "/events", self._listen),
            ("GET", "/metrics", self._get_metrics),
            ("GET", "/health", self._get_health),
            ("GET", "/", self._get_page),
        ):
            app.add_api_route(
                path, endpoint, methods=[method], response_model=None, include_in_schema=False
            )

    # --- requests ---------------------------------------------------------------------------------

    async def _post_request(self, request: Request) -> Response:
        content = bytearray()
        try:
            await self._read_body(request, content)
            body = await self._reader.read(partial(_check_body, bytes(content)))
            found = await self._write(body)
        finally:
            self._held -= len(content)
        return _answer_change(found, 201 if found.is_new else 200)

    async def _read_body(self, request: Request, content: bytearray) -> None:
        """Read a body into `content`, no further than is allowed."""
        most, length = self._most_body, request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > most:
            raise _refuse_size(most, is_ended=False)
        try:
            async with asyncio.timeout(BODY_SECONDS):
                is_ended = False
                while not is_ended:
                    message = await request.receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnect
                    part = message.get("body", b"")
                    is_ended = not message.get("more_body", False)
                    if len(content) + len(part) > most:
                        raise _refuse_size(most, is_ended=is_ended)
                    if self._held + len(part) > MOST_HELD:
                        raise Refusal(503, "too many bodies at once, try again", is_ended=is_ended)
                    self._held += len(part)
                    content += part
        except TimeoutError as error:
            sentence = f"the body must come within {BODY_SECONDS:.0f} seconds"
            raise Refusal(408, sentence, is_ended=False) from error

    async def _write(self, change: RequestBody | int) -> Answer:
        """Return the answer to a change that is on the disk."""
        try:
            return await self._writer.change(change)
        except InvalidInput as error:  # the database is broken or locked: not the sender's fault
            raise RuntimeError("the database cannot be written") from error

    async def _cancel_request(self, request: Request) -> Response:
        return _answer_change(await self._write(_read_id(request)), 200)

    async def _get_request(self, request: Request) -> Response:
        number = _read_id(request)
        found = await self._reader.read(lambda store: store.find(number, is_brief=True))
        return answer(describe_answer(found))

    async def _list_requests(self, request: Request) -> Response:
        limit = _read_number(request, "limit", 1, MOST_REQUESTS) or 100
        before = _read_number(request, "before", 0, 2**53)
        return await self._answer(partial(describe_requests, limit=limit, before=before))

    # --- what the service does --------------------------------------------------------------------

    async def _answer(self, describe: Callable[[Store], Any]) -> Response:
        return answer(await self._reader.read(describe))

    async def _get_status(self, _request: Request) -> Response:
        return await self._answer(describe_status)

    async def _list_rounds(self, request: Request) -> Response:
        limit = _read_number(request, "limit", 1, MOST_ROUNDS) or 200
        before = _read_number(request, "before", 0, 2**53)
        return await self._answer(partial(describe_rounds, limit=limit, before=before))

    async def _list_versions(self, request: Request) -> Response:
        limit = _read_number(request, "limit", 1, MOST_VERSIONS) or MOST_VERSIONS
        before = _read_number(request, "before", 0, 2**53)
        return await self._answer(partial(describe_versions, limit=limit, before=before))

    async def _get_policy(self, _request: Request) -> Response:
        return await self._answer(describe_policy)

    async def _listen(self, _request: Request) -> Response:
        if self._broadcast.is_full:
            raise Refusal(503, "too many listeners, end one of them first")
        return EventResponse(self._broadcast)

    async def _get_metrics(self, _request: Request) -> Response:
        text = await self._reader.read(partial(format_metrics, processes=self._processes))
        return Response(text, media_type="text/plain; version=0.0.4")

    async def _get_health(self, _request: Request) -> Response:
        await self._reader.read(Store.count_changes)
        return answer({"state": "ok"})

    async def _get_page(self, _request: Request) -> Response:
        page = self._page()
        headers = {"content-security-policy": make_page_policy(page)}
        return Response(page, headers=headers, media_type="text/html")


def make_app(
    folder: Path,
    *,
    token: str,
    page: Callable[[], bytes],
    hosts: Collection[str] | None = LOOPBACK,
    processes: Sequence[int] | None = None,
    most_body: int = MOST_BODY,
) -> FastAPI:
    """Return the application of the service in a folder; `app.state.api` is its `Api`.

    Parameters
    ----------
    hosts : see `Guard`
    processes : see `Api`; None for this process
    most_body : bytes of a body at most
    """
    api = Api(folder, page, [os.getpid()] if processes is None else processes, most_body)
    app = FastAPI(
        docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False, lifespan=api.open
    )
    api.add_routes(app)
    app.state.api = api
    app.add_middleware(Guard, token=token, hosts=hosts)
    for kind in (Refusal, HTTPException, InvalidInput, StorageFull):
        app.add_exception_handler(kind, _explain)
    return app


async def _explain(request: Request, error: Exception) -> Response:
    """Return the answer to a request that has failed in a way that its sender can know of."""
    if isinstance(error, Refusal):
        if error.is_ended:
            return refuse(error.status, str(error))
        return LingeringRefusal(error.status, str(error), is_ended=False)
    if isinstance(error, HTTPException):
        known = {404: f"there is no {request.url.path}", 405: f"{request.method} is not allowed"}
        sentence = known.get(error.status_code, str(error.detail))
        return refuse(error.status_code, sentence, error.headers)
    if isinstance(error, StorageFull):
        return refuse(507, "the disk is full, so the request was not stored")
    status = 404 if isinstance(error, Unknown) else 409 if isinstance(error, Conflict) else 422
    return refuse(status, str(error))


def _check_body(content: bytes, store: Store) -> RequestBody:
    """Return the request in a body; raise InvalidInput if the service cannot do what it asks."""
    body, limits = parse_request(content), read_limits(store)
    if limits is None:
        raise Refusal(503, "the service is starting, try again in a moment")
    check_request(body, limits)
    return body


def _answer_change(found: Answer, status: int) -> Response:
    if isinstance(found.found, InvalidInput):
        raise found.found
    return answer(describe_answer(found.found), status)


def _refuse_size(most: int, *, is_ended: bool) -> Refusal:
    return Refusal(413, f"the body must have at most {most} bytes, got more", is_ended=is_ended)


def _read_id(request: Request) -> int:
    text = request.path_params["number"]
    if not re.fullmatch(r"[0-9]{1,15}", text):
        raise Unknown(f"there is no request {text}")
    return int(text)


def _read_number(request: Request, name: str, low: int, high: int) -> int | None:
    """Return a number of the query string, None if it is not there."""
    text = request.query_params.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,16}", text) or not low <= int(text) <= high:
        raise InvalidInput(f"{name} must be a whole number in {low}..{high}, got {text!r}")
    return int(text)


def make_page_policy(page: bytes) -> str:
    """Return the content security policy of the page: its own scripts run, and no others."""
    scripts = re.findall(rb"<script[^>]*>(.*?)</script>", page, flags=re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(script).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
