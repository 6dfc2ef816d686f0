"""The HTTP interface of a service: its routes, each of which reads or writes the database.

It plays no rounds: that is another process, and only the database is shared with it.  The guard
stands before all routes, so that no route can forget who may ask.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from covertfl.errors import InvalidInput
from covertfl.files.token import shows_token
from covertfl.service.access import Reader, Writer
from covertfl.service.events import LOG, Broadcast, EventResponse
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

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
MOST_BODY = 32 * 2**20  # bytes
MOST_HELD = 8 * MOST_BODY  # bytes of all bodies that are being read or stored
BODY_SECONDS = 60.0
MOST_REQUESTS, MOST_ROUNDS, MOST_VERSIONS = 1_000, 10_000, 200
# Routes that need no token: none of them shows what the service does.  Metrics do: the ends of
# rounds tell true queries from decoys.
OPEN = {("GET", "/"), ("GET", "/health")}
HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
# Seconds for which the rest of a refused body is read and thrown away.
LINGER = 5.0


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
    processes : of the service, whose memory is reported
    """

    def __init__(self, folder: Path, processes: Sequence[int]) -> None:
        self._folder, self._processes = folder, processes
        self._page = Path(__file__).with_name("page.html").read_bytes()
        self._held = 0

    @contextlib.asynccontextmanager
    async def open(self, _app: FastAPI) -> AsyncIterator[None]:
        """Open the database, and look at it for all who listen to events."""
        self._reader = Reader(self._folder)
        self._broadcast = Broadcast(self._reader)
        looking = asyncio.ensure_future(self._broadcast.run())
        try:
            with contextlib.closing(Writer(self._folder)) as self._writer:
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
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > MOST_BODY:
            raise _refuse_size(is_ended=False)
        try:
            async with asyncio.timeout(BODY_SECONDS):
                is_ended = False
                while not is_ended:
                    message = await request.receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnect
                    part = message.get("body", b"")
                    is_ended = not message.get("more_body", False)
                    if len(content) + len(part) > MOST_BODY:
                        raise _refuse_size(is_ended=is_ended)
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
        headers = {"content-security-policy": _make_page_policy(self._page)}
        return Response(self._page, headers=headers, media_type="text/html")


def make_app(
    folder: Path,
    *,
    token: str,
    hosts: Collection[str] | None = LOOPBACK,
    processes: Sequence[int] = (),
) -> FastAPI:
    """Return the application of the service in a folder; `app.state.api` is its `Api`.

    Parameters
    ----------
    hosts : see `Guard`
    processes : see `Api`
    """
    api = Api(folder, processes)
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
        return _LingeringRefusal(error.status, str(error))
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


def _refuse_size(*, is_ended: bool) -> Refusal:
    sentence = f"the body must have at most {MOST_BODY} bytes, got more"
    return Refusal(413, sentence, is_ended=is_ended)


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


def _make_page_policy(page: bytes) -> str:
    """Return the content security policy of the page: its own scripts run, and no others."""
    scripts = re.findall(rb"<script[^>]*>(.*?)</script>", page, flags=re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(script).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


# --- what all answers have in common --------------------------------------------------------------


def answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer in JSON."""
    text = json.dumps(content, allow_nan=False)
    return Response(text, status, dict(headers or {}), media_type="application/json")


def refuse(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return a refusal: one sentence in JSON."""
    return answer({"error": sentence}, status, headers)


class Guard:
    """Passes on what comes with the token and a host of its own, and answers all else.

    Parameters
    ----------
    hosts : names in the header Host that are accepted, without port; None for all.  A page of
        another site whose name is made to point to this machine (DNS rebinding) has another one.
    """

    def __init__(self, app: ASGIApp, *, token: str, hosts: Collection[str] | None) -> None:
        self.app, self._token, self._hosts = app, token, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let the application do so."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        is_begun = False

        async def send_with_headers(message: Message) -> None:
            nonlocal is_begun
            if message["type"] == "http.response.start":
                is_begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await (self._refuse(scope) or self.app)(scope, receive, send_with_headers)
        except ClientDisconnect:
            pass
        except Exception:
            LOG.exception("%s %s failed", scope["method"], scope["path"])
            if is_begun:
                raise
            await refuse(500, "internal error")(scope, receive, send_with_headers)

    def _refuse(self, scope: Scope) -> Response | None:
        """Return why a request may not pass, None if it may."""
        headers = Headers(scope=scope)
        given = headers.getlist("host")
        if self._hosts is not None and [_strip_port(host) for host in given] not in [
            [host] for host in self._hosts
        ]:
            allowed = " or ".join(sorted(self._hosts))
            return refuse(421, f"the header Host must be {allowed}, got {', '.join(given)!r}")
        if (scope["method"], scope["path"]) in OPEN or shows_token(headers.raw, self._token):
            return None
        sentence = "the header Authorization must be Bearer and the token in the service's folder"
        return refuse(401, sentence, {"www-authenticate": "Bearer"})


def _strip_port(host: str) -> str:
    """Return the name in a header Host, in lower case; an IPv6 address keeps its brackets."""
    name, colon, port = host.rpartition(":")
    is_name = not colon or host.endswith("]")
    return (host if is_name or not port.isdecimal() else name).lower()


class _LingeringRefusal(Response):
    """A refusal of a body that is still being sent.

    Closing the connection at once would make most senders report that it was reset.  So the answer
    is sent, and what comes is thrown away for a moment.
    """

    def __init__(self, status: int, sentence: str) -> None:
        content = json.dumps({"error": sentence})
        super().__init__(content, status, {"connection": "close"}, media_type="application/json")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer, drain the body, and end."""
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER):
                while (await receive()).get("more_body", False):
                    pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})
