"""The HTTP process: its address, its end, TLS, the token and where it may listen."""

from __future__ import annotations

import contextlib
import datetime
import io
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from covertfl.errors import InvalidInput, Missing
from covertfl.files.token import make_token
from covertfl.service import client, http_process
from covertfl.service.client import NoAnswer, Service, find_service, write_address
from covertfl.service.http_process import HttpProcess, check_listen
from tests.support.services import RunningService, make_store

pytest.importorskip("uvicorn")
PARENT = """
import sys, time
from pathlib import Path
from covertfl.service.http_process import HttpProcess
process = HttpProcess(Path(sys.argv[1]), "127.0.0.1", 0)
print(process.address, flush=True)
time.sleep(60)
"""


def await_silence(service: Service) -> None:
    """Wait until nobody listens any more."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            service.get("/health")
        except NoAnswer:
            return
        time.sleep(0.05)
    pytest.fail(f"{service.address} still answers")


# --- the process ----------------------------------------------------------------------------------


def test_a_free_port_is_taken_and_answers(running: RunningService) -> None:
    assert running.process.address.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(running.process.address + "/health") as reply:
        assert json.load(reply) == {"state": "ok"}
        assert "server" not in reply.headers
    with urllib.request.urlopen(running.process.address) as reply:
        assert b"<!doctype html>" in reply.read().lower()
    running.process.check()


@pytest.mark.slow
def test_an_end_that_nobody_asked_for_is_noticed(tmp_path: Path) -> None:
    make_token(tmp_path / "token")
    with make_store(tmp_path), HttpProcess(tmp_path, "127.0.0.1", 0) as process:
        write_address(tmp_path, process.address)
        service = find_service(str(tmp_path))
        os.kill(process._process.number, signal.SIGKILL)
        await_silence(service)
        with pytest.raises(InvalidInput, match="the HTTP interface has ended with status -9"):
            for _ in range(1000):
                process.check()
                time.sleep(0.01)


@pytest.mark.slow
def test_it_ends_when_it_is_closed_although_somebody_listens(tmp_path: Path) -> None:
    """A listener is let go, and what was read is whole."""
    token = make_token(tmp_path / "token")
    with make_store(tmp_path), HttpProcess(tmp_path, "127.0.0.1", 0) as process:
        request = urllib.request.Request(process.address + "/events")
        request.add_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=10) as stream:
            process.close()
            assert stream.read().endswith(b"\n\n")
        await_silence(Service(process.address, token))


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    token = make_token(tmp_path / "token")
    with make_store(tmp_path):
        parent = subprocess.Popen(
            [sys.executable, "-c", PARENT, tmp_path], stdout=subprocess.PIPE, text=True
        )
        with parent:
            assert parent.stdout is not None
            service = Service(parent.stdout.readline().strip(), token)
            assert service.get("/status")["round"] == 0
            parent.kill()
        await_silence(service)


@pytest.mark.slow
def test_what_was_acknowledged_outlives_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many ask at once while the process is killed: every answer was true."""
    monkeypatch.setattr(client, "PAUSES", ())
    make_token(tmp_path / "token")
    answered: list[int] = []

    def ask(service: Service, name: int) -> None:
        with contextlib.suppress(InvalidInput):
            for number in range(10_000):
                body = {"kind": "shift", "updates": 1, "key": f"{name} {number}"}
                answered.append(service.ask(body)["id"])

    with make_store(tmp_path) as store, HttpProcess(tmp_path, "127.0.0.1", 0) as process:
        write_address(tmp_path, process.address)
        service = find_service(str(tmp_path))
        threads = [threading.Thread(target=ask, args=(service, name)) for name in range(8)]
        for thread in threads:
            thread.start()
        while len(answered) < 200:
            time.sleep(0.01)
        os.kill(process._process.number, signal.SIGKILL)
        for thread in threads:
            thread.join()
        found = store.list_requests(limit=100_000)
    assert len(answered) == len(set(answered)) >= 200
    assert set(answered) <= {request.id for request in found}
    assert len(found) - len(answered) <= len(threads)  # stored, but the answer was lost


def test_a_folder_without_a_database_is_refused(tmp_path: Path) -> None:
    make_token(tmp_path / "token")
    with pytest.raises(InvalidInput, match="cannot be opened as a service's database"):
        HttpProcess(tmp_path, "127.0.0.1", 0)


def run_main(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path, port: int
) -> dict[str, object]:
    """Return what the process says, run in this one."""
    settings = {"folder": str(folder), "host": "127.0.0.1", "port": port}
    line = json.dumps({**settings, "certificate": None, "key": None})
    monkeypatch.setattr(sys, "stdin", io.StringIO(line + "\n"))
    http_process.main()
    content: dict[str, object] = json.loads(capsys.readouterr().out)
    return content


def test_a_port_in_use_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(http_process, "PORT_SECONDS", 0.0)
    make_token(tmp_path / "token")
    with make_store(tmp_path), socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = run_main(monkeypatch, capsys, tmp_path, port)
    assert said["error"] == (
        f"[service] listen: 127.0.0.1:{port} cannot be used: Address already in use"
    )


def test_a_port_that_is_left_in_a_moment_is_waited_for() -> None:
    other = socket.create_server(("127.0.0.1", 0))
    port = other.getsockname()[1]
    timer = threading.Timer(0.3, other.close)
    timer.start()
    with http_process._bind("127.0.0.1", port) as listener:
        assert listener.getsockname()[1] == port
    timer.join()


def test_a_missing_dependency_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(Missing, match=r"pip install 'covertfl\[service\]'"):
        http_process._make_server({})
    said = run_main(monkeypatch, capsys, tmp_path, 0)
    assert said["is_missing"]


def test_places_to_listen_at(tmp_path: Path) -> None:
    assert check_listen("127.3.2.1:65535") == ("127.3.2.1", 65535)
    assert check_listen("localhost:0") == ("localhost", 0)
    assert check_listen("[::1]:8800") == ("::1", 8800)
    files = tmp_path / "cert.pem", tmp_path / "key.pem"
    for file in files:
        file.touch()
    assert check_listen("0.0.0.0:8800", *files) == ("0.0.0.0", 8800)


# --- https ----------------------------------------------------------------------------------------


def write_certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate for 127.0.0.1 that has signed itself, and its key."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "service")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(certificate.public_bytes(encoding))
    form, bare = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(encoding, form, bare))
    return folder / "cert.pem", folder / "key.pem"


@pytest.mark.slow
def test_its_own_certificate_is_trusted_and_no_other(tmp_path: Path) -> None:
    token = make_token(tmp_path / "token")
    certificate, key = write_certificate(tmp_path)
    with (
        make_store(tmp_path),
        HttpProcess(tmp_path, "127.0.0.1", 0, certificate=certificate, key=key) as process,
    ):
        assert process.address.startswith("https://127.0.0.1:")
        write_address(tmp_path, process.address)
        with pytest.raises(NoAnswer, match="its certificate is not trusted"):
            find_service(str(tmp_path)).get("/status")
        (tmp_path / "run.toml").write_text('[service]\ncertificate = "cert.pem"\n')
        assert find_service(str(tmp_path)).get("/status")["round"] == 0
        with pytest.raises(NoAnswer):
            Service(process.address.replace("https", "http"), token).get("/status")


def test_a_certificate_that_is_none_is_refused(tmp_path: Path) -> None:
    make_token(tmp_path / "token")
    certificate, key = write_certificate(tmp_path)
    certificate.write_text("no certificate")
    settings = {"folder": str(tmp_path), "host": "127.0.0.1", "certificate": str(certificate)}
    refused = pytest.raises(InvalidInput, match=r"\[service\] certificate .* cannot be used")
    with make_store(tmp_path), refused:
        http_process._make_server({**settings, "key": str(key)})
