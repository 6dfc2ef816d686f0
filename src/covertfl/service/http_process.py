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
import secrets
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from covertfl.errors import CovertflError, InvalidInput, Missing
from covertfl.service.client import TOKEN, is_loopback, read_token

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
        self._process = subprocess.Popen(
            [sys.executable, "-m", "covertfl.service.http_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the rounds, which end this process
        )
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
            self._address = self._begin(settings)
        except BaseException:
            self.close()
            raise

    def _begin(self, settings: Mapping[str, Any]) -> str:
        """Send the settings and return the address."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(settings) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._process.wait(END_SECONDS)
            self.check()
        reply = json.loads(line)
        if "address" in reply:
            return str(reply["address"])
        raise (Missing if reply.get("is_missing") else InvalidInput)(reply["error"])

    def _pass_errors_on(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if line.strip():
                self._last_line = line.strip()
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(line)

    @property
    def address(self) -> str:
        """The address at which it answers, such as http://127.0.0.1:8800."""
        return self._address

    @property
    def process_id(self) -> int:
        """The number of the process."""
        return self._process.pid

    def check(self) -> None:
        """Raise InvalidInput if the process has ended."""
        status = self._process.poll()
        if status is not None:
            self._errors.join(1.0)
            raise InvalidInput(
                f"the HTTP interface has ended with status {status}: {self._last_line}"
            )

    def close(self) -> None:
        """End the process, by force if it takes too long."""
        self._process.terminate()
        with contextlib.suppress(OSError):
            _close(self._process.stdin)
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.join(END_SECONDS)
        _close(self._process.stdout)
        _close(self._process.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def _close(stream: IO[str] | None) -> None:
    if stream is not None:
        stream.close()


def make_token(folder: Path) -> str:
    """Return the token of a service, which is made if there is none, for its owner's eyes alone.

    Raises
    ------
    InvalidInput
        if others can read the file, or it holds no token
    """
    path = folder / TOKEN
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise InvalidInput(
                f"{path} must be readable by its owner alone (mode 600), got mode {mode:o}"
            ) from None
        return read_token(folder)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror or error}") from error
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_urlsafe(32) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return read_token(folder)


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
    from covertfl.service.page import read_page
    from covertfl.service.store import Store

    folder, host = Path(settings["folder"]), settings["host"]
    Store(folder).close()  # a database that cannot be used is reported now
    place = f"[{host}]" if ":" in host else host.lower()
    app = make_app(
        folder,
        token=read_token(folder),
        page=read_page,
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
