"""The HTTP interface as a process of its own, so that requests never delay a round.

`HttpProcess` starts it and ends it.  It ends by itself when the process that started it is gone,
however that ended, because its standard input then ends.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from covertfl.errors import CovertflError, InvalidInput, Missing
from covertfl.files.token import read_token
from covertfl.processes import ChildProcess
from covertfl.service.client import TOKEN, is_loopback

if TYPE_CHECKING:
    import uvicorn

# Seconds for which a port may stay in use: a service that was killed leaves it in a moment.
PORT_SECONDS = 10.0
# Seconds that the process may take to end, and that answers may take when it ends.
END_SECONDS, ANSWER_SECONDS = 5.0, 2


class HttpProcess:
    """The running HTTP interface of the service in a folder; use it in a `with` statement.

    Parameters
    ----------
    host, port : see `check_listen`; port 0 takes a free one
    certificate, key : PEM files, for https

    Raises
    ------
    InvalidInput
        if it cannot listen there
    Missing
        if FastAPI or uvicorn is not installed
    """

    def __init__(
        self,
        folder: Path,
        host: str,
        port: int,
        *,
        certificate: Path | None = None,
        key: Path | None = None,
    ) -> None:
        self._last_line = "it said nothing"
        self._process = ChildProcess("covertfl.service.http_process")
        self._errors = threading.Thread(target=self._pass_errors_on, daemon=True)
        self._errors.start()
        settings = {
            "folder": str(folder.resolve()),
            "host": host,
            "port": port,
            "certificate": None if certificate is None else str(certificate),
            "key": None if key is None else str(key),
        }
        try:
            self.address = self._begin(settings)
        except BaseException:
            self.close()
            raise

    def _begin(self, settings: Mapping[str, Any]) -> str:
        """Send the settings and return the address at which it answers."""
        self._process.send(settings)
        for reply in self._process.receive():
            if "address" in reply:
                return str(reply["address"])
            raise (Missing if reply["is_missing"] else InvalidInput)(reply["error"])
        self._process.close(END_SECONDS)
        raise self._explain_end()

    def _pass_errors_on(self) -> None:
        assert self._process.errors is not None
        for line in self._process.errors:
            if line.strip():
                self._last_line = line.strip()
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(line)

    def _explain_end(self) -> InvalidInput:
        self._errors.join(1.0)
        status = self._process.find_status()
        return InvalidInput(f"the HTTP interface has ended with status {status}: {self._last_line}")

    def check(self) -> None:
        """Raise InvalidInput if the process has ended."""
        if self._process.find_status() is not None:
            raise self._explain_end()

    def close(self) -> None:
        """End the process, by force if it takes too long."""
        self._process.close(END_SECONDS)
        self._errors.join(END_SECONDS)
        self._process.close_output()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def check_listen(
    listen: str, certificate: Path | None = None, key: Path | None = None
) -> tuple[str, int]:
    """Return host and port of "host:port", an IPv6 address in brackets without them.

    Raises
    ------
    InvalidInput
        if it is none, or other machines could listen in because there is no certificate
    """
    name, _, port = listen.rpartition(":")
    host = name[1:-1] if name.startswith("[") and name.endswith("]") else name
    is_bare = ":" in host and host == name
    if not host or is_bare or not (port.isdecimal() and port.isascii() and int(port) < 65536):
        raise InvalidInput(
            f"[service] listen must be HOST:PORT such as 127.0.0.1:8800, got {listen!r}"
        )
    if (certificate is None) != (key is None):
        given = "certificate" if key is None else "key"
        raise InvalidInput(f"[service] listen: https needs certificate and key, got only {given}")
    if certificate is None and not is_loopback(host):
        raise InvalidInput(
            "[service] listen must be 127.0.0.1, [::1] or localhost unless certificate and key are "
            f"given, got {listen!r}"
        )
    for name, file in (("certificate", certificate), ("key", key)):
        if file is not None and not file.is_file():
            raise InvalidInput(f"[service] listen needs the {name}, and there is no file {file}")
    return host, int(port)


# --- in the process -------------------------------------------------------------------------------


def main() -> None:
    """Serve, as the one line on standard input says, until standard input ends."""
    settings = json.loads(sys.stdin.readline())
    logging.basicConfig(level=logging.WARNING, format="covertfl: %(message)s")
    try:
        server = _make_server(settings)
        listener = _bind(settings["host"], settings["port"])
    except CovertflError as error:
        print(json.dumps({"error": str(error), "is_missing": isinstance(error, Missing)}))
        return
    scheme = "http" if settings["certificate"] is None else "https"
    host, port = settings["host"], listener.getsockname()[1]
    place = f"[{host}]" if ":" in host else host
    print(json.dumps({"address": f"{scheme}://{place}:{port}"}), flush=True)
    threading.Thread(target=_end_with_parent, args=(server,), daemon=True).start()
    with listener:
        server.run(sockets=[listener])


def _end_with_parent(server: uvicorn.Server) -> None:
    """Wait for the end of standard input, then end the server, by force if it takes too long."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    server.should_exit = True
    time.sleep(ANSWER_SECONDS + 1)
    os._exit(0)


def _bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens; wait a little for a port that is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    give_up = time.monotonic() + PORT_SECONDS
    while True:
        listener = socket.socket(family)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(1024)
        except (OSError, UnicodeError) as error:
            listener.close()
            is_taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            if not is_taken or time.monotonic() > give_up:
                reason = getattr(error, "strerror", None) or error
                raise InvalidInput(
                    f"[service] listen: {host}:{port} cannot be used: {reason}"
                ) from error
            time.sleep(0.2)
        else:
            return listener


def _make_server(settings: Mapping[str, Any]) -> uvicorn.Server:
    """Return the server, ready to run."""
    try:
        import uvicorn

        from covertfl.service.api import LOOPBACK, make_app
    except ModuleNotFoundError as error:
        raise Missing(f"a service needs {error.name}: pip install 'covertfl[service]'") from error
    from covertfl.service.store import Store

    folder, host = Path(settings["folder"]), settings["host"]
    Store(folder).close()  # a database that cannot be used is reported now
    place = f"[{host}]" if ":" in host else host.lower()
    app = make_app(
        folder,
        token=read_token(folder / TOKEN),
        hosts={*LOOPBACK, place} if is_loopback(host) else None,
        processes=[os.getpid(), os.getppid()],
    )

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.state.api.end_events()
            await super().shutdown(sockets)

    config = uvicorn.Config(
        app,
        loop="asyncio",
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=ANSWER_SECONDS,
        ssl_certfile=settings["certificate"],
        ssl_keyfile=settings["key"],
    )
    try:
        config.load()
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise InvalidInput(
            f"[service] certificate {settings['certificate']} and key {settings['key']} cannot be "
            f"used: {error}"
        ) from error
    return Server(config)


if __name__ == "__main__":
    main()
