"""The client: finding a service, its refusals, and a connection that is lost."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from covertfl.errors import InvalidInput
from covertfl.service import client
from covertfl.service.client import (
    PAUSES,
    NoAnswer,
    Service,
    find_service,
    is_loopback,
    remember_service,
    write_address,
)
from tests.support.services import RunningService

TOKEN = "t" * 43
BODY = {"kind": "shift", "updates": 4, "key": "k"}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the user's own services is found."""
    for name in ("COVERTFL_SERVICE", "COVERTFL_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def make_folder(path: Path, address: str = "http://127.0.0.1:1") -> Path:
    path.mkdir(exist_ok=True)
    (path / "token").write_text(TOKEN + "\n")
    write_address(path, address)
    return path


# --- finding it -----------------------------------------------------------------------------------


def test_places_are_looked_at_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no service is known: start one with covertfl serve"):
        find_service(None)
    remember_service(make_folder(tmp_path / "last", "http://127.0.0.1:1"))
    assert find_service(None).address == "http://127.0.0.1:1"
    monkeypatch.chdir(make_folder(tmp_path / "here", "http://127.0.0.1:2"))
    assert find_service(None).address == "http://127.0.0.1:2"
    variable = make_folder(tmp_path / "variable", "http://127.0.0.1:3")
    monkeypatch.setenv("COVERTFL_SERVICE", str(variable))
    assert find_service(None).address == "http://127.0.0.1:3"
    given = make_folder(tmp_path / "given", "http://127.0.0.1:4")
    assert find_service(str(given)) == Service("http://127.0.0.1:4", TOKEN)
    (given / "run.toml").write_text('[service]\ncertificate = "own.pem"\n')
    found = find_service(str(given))
    assert found == Service("http://127.0.0.1:4", TOKEN, given / "own.pem")


def test_the_state_folder_is_in_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    remember_service(make_folder(tmp_path / "last"))
    file = tmp_path / "home/.local/state/covertfl/service"
    assert file.read_text() == f"{tmp_path / 'last'}\n"
    assert find_service(None).token == TOKEN


def test_a_url_needs_a_token_and_https(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="needs a token: set COVERTFL_TOKEN"):
        find_service("https://fl.example:8800")
    monkeypatch.setenv("COVERTFL_TOKEN", TOKEN)
    assert find_service("https://fl.example:8800") == Service("https://fl.example:8800", TOKEN)
    assert find_service("http://localhost:8800").address == "http://localhost:8800"
    with pytest.raises(InvalidInput, match="must be an https URL"):
        find_service("http://fl.example:8800")
    for url in ("http://", "https://[::1"):
        with pytest.raises(InvalidInput, match="must be a folder or a URL"):
            find_service(url)
    monkeypatch.setenv("COVERTFL_TOKEN", "two words")
    with pytest.raises(InvalidInput, match="COVERTFL_TOKEN must be a token"):
        find_service("https://fl.example:8800")


def test_a_folder_without_a_service_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is not the folder of a running service"):
        find_service(str(tmp_path / "nothing"))
    folder = make_folder(tmp_path / "service", "file:///etc/passwd")
    with pytest.raises(InvalidInput, match="must hold a URL"):
        find_service(str(folder))
    write_address(folder, "http://127.0.0.1:1")
    (folder / "token").unlink()
    with pytest.raises(InvalidInput, match="no such file, the token of a service is needed"):
        find_service(str(folder))


def test_hosts_that_are_this_machine() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "localhost.example", "10.0.0.1", "")))


# --- asking ---------------------------------------------------------------------------------------


def test_a_real_service_is_asked(running: RunningService) -> None:
    service = running.client
    first = service.ask({**BODY, "key": "asked"})
    assert service.ask({**BODY, "key": "asked"}) == first
    assert service.get(f"/requests/{first['id']}") == first
    assert service.cancel(first["id"])["state"] == "cancelled"
    with pytest.raises(InvalidInput, match="there is no request 999999"):
        service.get("/requests/999999")
    with pytest.raises(InvalidInput, match="Authorization must be Bearer"):
        Service(service.address, TOKEN).get("/status")


def test_a_large_body_is_refused_in_a_sentence(running: RunningService) -> None:
    """Also by a real server, which answers while the body is still being sent."""
    with pytest.raises(InvalidInput, match="the body must have at most 33554432 bytes"):
        running.client.ask({**BODY, "note": "x" * 34_000_000})


def test_nobody_answers() -> None:
    service = Service("http://127.0.0.1:1", TOKEN)
    for call in (partial(service.get, "/status"), partial(service.ask, BODY)):
        with pytest.raises(NoAnswer, match=r"no service answers at http://127.0.0.1:1: Conn"):
            call()


class Faulty(BaseHTTPRequestHandler):
    """Closes the connection without an answer as often as `faults` says, then answers."""

    faults: ClassVar[int] = 0
    answer: ClassVar[tuple[int, bytes]] = (201, b'{"id": 1}')
    seen: ClassVar[list[Any]] = []

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append(json.loads(content))
        if len(self.seen) <= self.faults:
            self.close_connection = True
            return
        self.reply()

    def do_GET(self) -> None:
        self.seen.append(self.headers["Authorization"])
        self.reply()

    def reply(self) -> None:
        status, content = self.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Location", "/elsewhere")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(client, "PAUSES", (0.001,) * 5)
    monkeypatch.setattr(Faulty, "seen", [])
    with ThreadingHTTPServer(("127.0.0.1", 0), Faulty) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield Service(f"http://127.0.0.1:{server.server_port}", TOKEN)
        server.shutdown()
        thread.join()


def test_a_lost_connection_is_tried_again_with_the_same_key(
    faulty: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Faulty, "faults", 2)
    assert faulty.ask(BODY) == {"id": 1}
    assert Faulty.seen == [BODY] * 3


def test_a_connection_that_is_always_lost_is_given_up(
    faulty: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Faulty, "faults", 99)
    monkeypatch.setattr(client, "PAUSES", PAUSES)  # as they are, but without waiting
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    with pytest.raises(NoAnswer, match="no service answers at"):
        faulty.ask(BODY)
    assert Faulty.seen == [BODY] * 6
    assert waited == [0.2, 0.5, 1.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((200, b"<html>"), "is no service of covertfl: its answer is not JSON"),
        ((404, b"<html>"), "is no service of covertfl: it answers 404"),
        ((500, b"[]"), "is no service of covertfl: it answers 500"),
        ((302, b""), "is no service of covertfl: it answers 302"),
    ],
)
def test_something_else_answers(
    faulty: Service, monkeypatch: pytest.MonkeyPatch, answer: tuple[int, bytes], said: str
) -> None:
    """Redirections are not followed: the token is for one address."""
    monkeypatch.setattr(Faulty, "answer", answer)
    with pytest.raises(InvalidInput, match=said):
        faulty.get("/status")
    assert Faulty.seen == [f"Bearer {TOKEN}"]


def test_a_proxy_is_not_asked_about_this_machine(
    faulty: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert faulty.get("/status") == {"id": 1}
