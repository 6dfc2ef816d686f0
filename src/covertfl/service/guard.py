"""What every answer of the HTTP interface has in common: who may ask, headers, and refusals.

The guard stands before all routes, so that no route can forget it.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import Collection, Mapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOG = logging.getLogger("covertfl.service")
# Routes that need no token: none of them shows what the service does.
OPEN = {("GET", "/"), ("GET", "/metrics"), ("GET", "/health")}
HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
# Seconds for which the rest of a refused body is read and thrown away.
LINGER = 5.0


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
        self.app = app
        self._token = token.encode()
        self._hosts = hosts

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
        if self._hosts is not None and [strip_port(host) for host in given] not in [
            [host] for host in self._hosts
        ]:
            allowed = " or ".join(sorted(self._hosts))
            return refuse(421, f"the header Host must be {allowed}, got {', '.join(given)!r}")
        if (scope["method"], scope["path"]) in OPEN or self._has_token(headers):
            return None
        sentence = "the header Authorization must be Bearer and the token in the service's folder"
        return refuse(401, sentence, {"www-authenticate": "Bearer"})

    def _has_token(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        is_same = hmac.compare_digest(given.strip().encode(), self._token)
        return is_same and scheme.lower() == "bearer"


def strip_port(host: str) -> str:
    """Return the name in a header Host, in lower case; an IPv6 address keeps its brackets."""
    name, colon, port = host.rpartition(":")
    is_name = not colon or host.endswith("]")
    return (host if is_name or not port.isdecimal() else name).lower()


class LingeringRefusal(Response):
    """A refusal of a body that is still being sent.

    Closing the connection at once would make most senders report that it was reset.  So the answer
    is sent, and what comes is thrown away for a moment.
    """

    def __init__(self, status: int, sentence: str, *, is_ended: bool) -> None:
        content = json.dumps({"error": sentence})
        super().__init__(content, status, {"connection": "close"}, media_type="application/json")
        self._is_ended = is_ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer, drain the body, and end."""
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        try:
            async with asyncio.timeout(LINGER):
                while not self._is_ended:
                    message = await receive()
                    self._is_ended = not message.get("more_body", False)
        except TimeoutError:
            pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})
