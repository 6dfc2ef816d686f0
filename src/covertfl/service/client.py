"""Asking a running service from another process, with the standard library alone.

A service leaves its address and its token in its folder, and the name of that folder in the user's
state folder, so that commands on the same machine find it without being told.
"""

from __future__ import annotations

import base64
import http.client
import ipaddress
import json
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from covertfl.errors import InvalidInput
from covertfl.files.disk import read_bytes, write_atomically
from covertfl.files.table import split_rows
from covertfl.files.text import parse_toml, read_text, shorten
from covertfl.files.token import check_token, read_token

ADDRESS, TOKEN, RUN_FILE = "address", "token", "run.toml"
# Environment variables.
SERVICE_VARIABLE, TOKEN_VARIABLE = "COVERTFL_SERVICE", "COVERTFL_TOKEN"
ANSWER_SECONDS = 60.0
# Seconds before each repetition of a request whose connection was lost.
PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0)
SCHEMES = ("http://", "https://")
# Column of a table of rows.
COLUMN = "row"


class NoAnswer(InvalidInput):
    """A service that does not answer; `was_reached` says whether there was a connection."""

    def __init__(self, address: str, reason: object, *, was_reached: bool) -> None:
        super().__init__(f"no service answers at {address}: {reason}")
        self.was_reached = was_reached


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The token goes to no other address."""

    def redirect_request(self, *_: Any) -> None:
        """Follow nothing."""


@dataclass(frozen=True)
class Service:
    """A service that can be asked.

    Parameters
    ----------
    address : such as http://127.0.0.1:8800
    certificate : file that is trusted for https; None for what the system trusts
    """

    address: str
    token: str
    certificate: Path | None = None

    def get(self, path: str) -> Any:
        """Return what the service answers for a path such as /status."""
        return self._call("GET", path)

    def cancel(self, number: int) -> Any:
        """Cancel a request and return it."""
        return self._call("DELETE", f"/requests/{number}")

    def ask(self, body: Mapping[str, Any]) -> Any:
        """Send a request, which must have a key, and return what the service has stored.

        If the connection is lost it is sent again; with the same key it is the same request.
        """
        content = json.dumps(dict(body), allow_nan=False).encode()
        for pause in PAUSES:
            try:
                return self._call("POST", "/requests", content)
            except NoAnswer as error:
                if not error.was_reached and pause == PAUSES[0]:
                    raise
                time.sleep(pause)
        return self._call("POST", "/requests", content)

    def _call(self, method: str, path: str, content: bytes | None = None) -> Any:
        request = urllib.request.Request(self.address.rstrip("/") + path, content, method=method)
        request.add_header("Authorization", f"Bearer {self.token}")
        request.add_header("Content-Type", "application/json")
        try:
            with self._make_opener().open(request, timeout=ANSWER_SECONDS) as reply:
                return _parse(reply.read(), self.address)
        except urllib.error.HTTPError as error:
            with error:
                raise InvalidInput(_read_refusal(error, self.address)) from error
        except urllib.error.URLError as error:
            raise self._describe_silence(error.reason) from error
        except (OSError, http.client.HTTPException) as error:
            raise self._describe_silence(error) from error

    def _make_opener(self) -> urllib.request.OpenerDirector:
        handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
        if self.address.startswith("https:"):
            handlers.append(urllib.request.HTTPSHandler(context=self._make_context()))
        if is_loopback(urlsplit(self.address).hostname or ""):
            handlers.append(urllib.request.ProxyHandler({}))
        return urllib.request.build_opener(*handlers)

    def _make_context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.certificate)
        except (OSError, ssl.SSLError) as error:
            raise InvalidInput(
                f"{self.certificate} cannot be used to check {self.address}: {error}"
            ) from error
        if self.certificate is not None:
            # The certificate itself is trusted, whoever has signed it.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return context

    def _describe_silence(self, reason: object) -> NoAnswer:
        if isinstance(reason, ssl.SSLCertVerificationError):
            reason = f"its certificate is not trusted: {reason.verify_message}"
        is_unreached = isinstance(reason, ConnectionRefusedError | ssl.SSLError | str) or (
            isinstance(reason, OSError) and type(reason) is OSError
        )
        sentence = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        return NoAnswer(self.address, sentence, was_reached=not is_unreached)


def _parse(content: bytes, address: str) -> Any:
    try:
        return json.loads(content)
    except ValueError as error:
        raise InvalidInput(
            f"{address} is no service of covertfl: its answer is not JSON"
        ) from error


def _read_refusal(error: urllib.error.HTTPError, address: str) -> str:
    """Return the sentence with which a service refuses."""
    try:
        return str(json.loads(error.read())["error"])
    except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
        return f"{address} is no service of covertfl: it answers {error.code} {error.reason}"


# --- finding it -----------------------------------------------------------------------------------


def find_service(given: str | None) -> Service:
    """Return the service in a folder, at a URL, or else the one that runs here.

    Without either it is the one in the variable COVERTFL_SERVICE, in the current folder, or the
    one that was started last.

    Raises
    ------
    InvalidInput
        if there is none, or its address or token is not known
    """
    named = given or os.environ.get(SERVICE_VARIABLE)
    if named:
        return _reach_url(named) if named.startswith(SCHEMES) else _reach_folder(Path(named))
    if Path(TOKEN).is_file() and Path(ADDRESS).is_file():
        return _reach_folder(Path())
    remembered = _find_state_file()
    if remembered.is_file():
        return _reach_folder(Path(read_text(remembered, "the folder of a service").strip()))
    raise InvalidInput(
        "no service is known: start one with covertfl serve, or name its folder or URL with "
        f"--service or {SERVICE_VARIABLE}"
    )


def _reach_url(url: str) -> Service:
    token = os.environ.get(TOKEN_VARIABLE)
    if not token:
        raise InvalidInput(
            f"{url} needs a token: set {TOKEN_VARIABLE} to that in the service's folder"
        )
    try:
        host = urlsplit(url).hostname
    except ValueError:
        host = None
    if not host:
        raise InvalidInput(f"--service must be a folder or a URL, got {shorten(url)}")
    if url.startswith("http:") and not is_loopback(host):
        raise InvalidInput(
            f"--service must be an https URL, or everyone reads the token, got {url}"
        )
    return Service(url, check_token(token, TOKEN_VARIABLE))


def _reach_folder(folder: Path) -> Service:
    if not (folder / ADDRESS).is_file():
        raise InvalidInput(
            f"{folder} is not the folder of a running service: it has no file {ADDRESS}"
        )
    address = read_text(folder / ADDRESS, "the address of a service").strip()
    if not address.startswith(SCHEMES):
        raise InvalidInput(f"{folder / ADDRESS} must hold a URL, got {shorten(address)}")
    return Service(address, read_token(folder / TOKEN), _find_certificate(folder))


def _find_certificate(folder: Path) -> Path | None:
    """Return the service's own certificate, None if it has none."""
    file = folder / RUN_FILE
    if not file.is_file():
        return None
    section = parse_toml(read_text(file, "a run file"), str(file)).get("service", {})
    name = section.get("certificate") if isinstance(section, dict) else None
    return folder / name if isinstance(name, str) and name else None


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine and cannot be reached from another."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


# --- leaving a trace ------------------------------------------------------------------------------


def write_address(folder: Path, address: str) -> None:
    """Leave the address of a service in its folder."""
    write_atomically(folder / ADDRESS, f"{address}\n", mode=0o600)


def remember_service(folder: Path) -> None:
    """Make a service the one that commands ask if they are not told another."""
    file = _find_state_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{file.parent} cannot be made: {error.strerror or error}") from error
    write_atomically(file, f"{folder.resolve()}\n", mode=0o600)


def _find_state_file() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "covertfl" / "service"


# --- what is sent with a request ------------------------------------------------------------------


def read_row_numbers(path: Path) -> list[int]:
    """Return the numbers in the column `row` of a csv file, or in its only column.

    A file with one column needs no header.
    """
    rows = split_rows(str(path), read_text(path, "a table of rows"))
    lines = [(line, cells) for line, cells in rows if any(map(str.strip, cells))]
    header = [cell.strip() for cell in lines[0][1]] if lines else []
    if COLUMN not in header and len(header) != 1:
        raise InvalidInput(
            f"{path} must have a column {COLUMN} or only one column, got {', '.join(header)}"
        )
    place = header.index(COLUMN) if COLUMN in header else 0
    has_header = COLUMN in header or not _is_row(header[0])
    numbers = [
        _parse_number(cells[place] if place < len(cells) else "", f"{path} line {line}: row")
        for line, cells in lines[has_header:]
    ]
    if not numbers:
        raise InvalidInput(f"{path} must name at least one row, got none")
    return numbers


def parse_numbers(text: str, name: str) -> list[int]:
    """Return the numbers in text such as 1,2; `name` is what messages call it."""
    return [_parse_number(part, name) for part in text.split(",")]


def _parse_number(text: str, name: str) -> int:
    if not _is_row(text):
        raise InvalidInput(f"{name} must be a whole number of at least 0, got {shorten(text)}")
    return int(text)


def _is_row(text: str) -> bool:
    return text.strip().isdecimal() and len(text.strip()) <= 15


def encode_file(path: Path) -> str:
    """Return the content of a file in base64."""
    return base64.b64encode(read_bytes(path, "an .npz file")).decode()
