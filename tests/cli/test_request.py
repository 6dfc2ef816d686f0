"""The commands `request`, `status` and `versions`, on a service that plays no rounds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from covertfl.cli import service as command
from tests.support.commands import Run, refuse
from tests.support.services import (
    RECORD,
    RunningService,
    add,
    cancel,
    make_body,
    make_version,
    run_service,
)

pytest.importorskip("uvicorn")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with run_service(tmp_path_factory.mktemp("service")) as service:
        yield service


@pytest.fixture(autouse=True)
def _named(service: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COVERTFL_SERVICE", str(service.folder))
    monkeypatch.setattr(command, "LOOK_SECONDS", 0.01)


def test_a_request_is_made_and_cancelled(run: Run, service: RunningService) -> None:
    answer = run("request", "shift", "--updates", 4, "--note", "drift", "--json").content
    assert answer == {"id": answer["id"], "state": "waiting", "updates_left": 4, "version": None}
    found = service.store.find(answer["id"])
    assert found.body.note == "drift"
    assert found.body.key is not None and len(found.body.key) >= 20
    outcome = run("request", "cancel", answer["id"])
    assert outcome.out == f"Request {answer['id']}: cancelled, 4 updates left\n"
    assert service.store.find(answer["id"]).state == "cancelled"


def test_all_options_of_a_purge(run: Run, service: RunningService, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("row\n3\n5\n")
    options = ("--rows", tmp_path / "rows.csv", "--clients", "0,2", "--exact", "--restart")
    more = ("--patience", 3, "--due", "2026-12-01", "--key", "purge-1")
    answer = run("request", "purge", *options, *more, "--json").content
    assert service.store.find(answer["id"]).body == make_body(
        "purge",
        **{"rows": [3, 5], "clients": [0, 2], "exact": True, "restart": True, "patience": 3},
        **{"due": "2026-12-01", "key": "purge-1", "updates": None},
    )
    assert run("request", "purge", *options, *more, "--json").content == answer


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("row\n3\n5\n", [3, 5]),
        ("3\n5\n", [3, 5]),
        ("number\n3\n5", [3, 5]),
        ("7", [7]),
        ("name,row\nann,3\nbob,5\n", [3, 5]),
        ("\ufeffrow\r\n3\r\n\r\n5\r\n", [3, 5]),
        (" row , x\n 3 ,1\n", [3]),
        ("", "must have a column row or only one column"),
        ("a,b\n1,2\n", "must have a column row or only one column, got a, b"),
        ("row\n", "must name at least one row"),
        ("row\n3\nx\n", "line 3: row must be a whole number of at least 0, got 'x'"),
        ("row\n-1\n", "line 2: row must be"),
        ("row\n1.5\n", "got '1.5'"),
        ("a,row\n1\n", "line 2: row must be"),
    ],
)
def test_rows_are_read_from_a_column(
    run: Run, service: RunningService, tmp_path: Path, text: str, numbers: list[int] | str
) -> None:
    (tmp_path / "rows.csv").write_text(text, newline="")
    outcome = run("request", "purge", "--updates", 1, "--rows", tmp_path / "rows.csv", "--json")
    if isinstance(numbers, str):
        assert numbers in refuse(outcome, 2)
    else:
        assert service.store.find(outcome.content["id"]).body.rows == numbers


def test_a_context_brings_a_file(run: Run, service: RunningService, tmp_path: Path) -> None:
    np.savez(tmp_path / "new.npz", features=np.zeros((3, 2)), labels=np.zeros(3, int))
    options = ("--client", 0, "--file", tmp_path / "new.npz", "--replace", "--updates", 2)
    answer = run("request", "context", *options, "--json").content
    found = service.store.find(answer["id"])
    assert (found.body.client, found.body.replace, found.num_rows) == (0, True, 3)


def test_a_rollback_to_the_start(run: Run, service: RunningService) -> None:
    service.store.release(make_version(0))
    answer = run("request", "rollback", "--version", 0, "--updates", 0, "--json").content
    assert service.store.find(answer["id"]).body.version == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("shift",), "updates is missing; it must be a whole number in 1..1000000, or give"),
        (("shift", "--updates", 4, "--rows", "absent.csv"), "absent.csv: no such file"),
        (("shift", "--updates", 4, "--clients", "1"), "clients is for kind purge, got kind shift"),
        (("purge", "--updates", 4, "--clients", "9"), "clients must lie in 0..3, got 9"),
        *(
            (("purge", "--updates", 4, "--clients", text), "--clients must be a whole number")
            for text in ("a", "", "1,", "1;2")
        ),
        (("context", "--updates", 4, "--file", "absent.npz"), "absent.npz: no such file"),
        (("shift", "--updates", 4, "--due", "soon"), "due must be a date"),
        (("cancel",), "give the number of a request with cancel"),
        (("shift", 3), "give the number of a request with cancel, and only there"),
        (("cancel", 99999), "there is no request 99999"),
        (("nothing",), "Invalid value for"),
        (("shift", "--updates", 1, "--service", "absent"), "absent is not the folder of a running"),
    ],
)
def test_refusals_are_one_sentence(run: Run, arguments: tuple[object, ...], said: str) -> None:
    assert said in refuse(run("request", *arguments), 2)
    assert said in refuse(run("request", *arguments, "--json"), 2)


def play(service: RunningService, note: str, *, is_cancelled: bool = False) -> threading.Thread:
    """Return a thread that serves the request with a note, or cancels it, once it is there."""

    def await_request() -> int:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            [found] = service.store.list_requests(limit=1)
            if found.body.note == note:
                return found.id
            time.sleep(0.01)
        raise AssertionError(f"there is no request {note}")

    def serve() -> None:
        number = await_request()
        if is_cancelled:
            cancel(service.store, number)
            return
        try:
            service.store.advance(number, left=1, served=3)
            service.store.release(make_version(5, 0, number), finished=6, served=4)
        except BaseException:
            cancel(service.store, number)  # the command waits no longer
            raise

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_waiting_ends_when_the_request_is_done(run: Run, service: RunningService) -> None:
    add(service.store, [make_body()])
    thread = play(service, "served")
    answer = run("request", "shift", "--updates", 4, "--note", "served", "--wait", "--json").content
    thread.join()
    assert (answer["state"], answer["updates_left"], answer["version"]) == ("done", 0, 5)


def test_waiting_ends_when_the_request_is_cancelled(run: Run, service: RunningService) -> None:
    thread = play(service, "given up", is_cancelled=True)
    outcome = run("request", "shift", "--updates", 4, "--note", "given up", "--wait")
    thread.join()
    assert "was cancelled" in refuse(outcome, 2)


def test_the_status_is_shown(run: Run, service: RunningService) -> None:
    service.store.add_round(12, RECORD)
    service.store.warn(11, "arrivals", "more requests come than the policy was solved for")
    add(service.store, [make_body(note="[bold]seen", due="2020-01-01")])
    shown = run("status").out
    for words in (
        *("toxicity, optimal", "running", "11.2 rounds, promised 25.0", "31.0%", "Open requests"),
        *("[bold]seen", "2020-01-01 (late)", "Warning in round 11: more requests come"),
    ):
        assert words in shown, words
    content = run("status", "--json").content
    assert (content["round"], content["mean_wait"], content["promised_wait"]) == (12, 11.2, 25.0)


def test_the_versions_are_shown(run: Run, service: RunningService) -> None:
    service.store.release(make_version(0))
    service.store.release(make_version(1, 0, 1))
    service.store.withdraw([1], 2)
    shown = run("versions").out
    [row] = [
        line.split() for line in shown.splitlines() if line.split()[:4] == ["1", "0", "1", "1"]
    ]
    assert row[4:] == ["1", "0.800", "-", "-", "-", "-", "2", "2001-09-09", "01:46"]
    found = run("versions", "--json").content["versions"]
    assert [version["version"] for version in found][:2] == [0, 1]


def test_a_service_that_has_ended_is_said(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("t" * 43)
    (tmp_path / "address").write_text("http://127.0.0.1:1\n")
    monkeypatch.setenv("COVERTFL_SERVICE", str(tmp_path))
    for arguments in (("status",), ("versions",), ("request", "shift", "--updates", 1)):
        said = refuse(run(*arguments), 2)
        assert said == "no service answers at http://127.0.0.1:1: Connection refused"
