"""Services that are killed, ended, started twice or run out of disk lose and repeat nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from covertfl.errors import InvalidInput
from covertfl.service.client import Service, find_service
from tests import ROOT
from tests.support.played_services import SERVICE, list_requests, play_service, read_run_files
from tests.support.small_runs import merge, read_rounds

pytestmark = pytest.mark.slow
KILLS = 25
GREEDY: dict[str, Any] = merge(SERVICE, {"policy": {"kind": "greedy"}})

# Starts a service again and again and kills it, with signal 9, at random moments; every fourth time
# the process that answers requests.  Modules are imported once and processes forked from there.
KILLER = """
import os, random, signal, sys, time
from pathlib import Path
from covertfl.runs.train import KernelCache, build_federation
from covertfl.runs.settings import read_run
from covertfl.service.serve import serve


file, folder, kills = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
settings = read_run(file)
build_federation(settings, KernelCache())
chance = random.Random(11)


def start():
    child = os.fork()
    if child == 0:
        status = 1
        try:
            serve(settings, folder)
            status = 0
        finally:
            os._exit(status)
    return child


def find_http(child):
    found = Path(f"/proc/{child}/task/{child}/children").read_text().split()
    return int(found[0]) if found else None


died = 0
while died < kills:
    child = start()
    time.sleep(chance.uniform(0.0, 2.4))
    if died % 4 == 3:
        http = find_http(child)
        if http is not None:
            os.kill(http, signal.SIGKILL)
            time.sleep(chance.uniform(0.0, 0.3))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    died += 1
child = start()
time.sleep(8.0)  # what still answers may be the HTTP process of the service killed before
print("alive", flush=True)
sys.stdin.readline()
os.kill(child, signal.SIGTERM)
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def write_service(folder: Path, content: dict[str, Any] = GREEDY) -> Path:
    """Write the run file of a service."""
    file = folder / "service.toml"
    file.write_text(tomli_w.dumps(content))
    return file


def start_python(*arguments: Any, **options: Any) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)], env=environment, text=True, **options
    )


def keep_trying(action: Callable[[Service], Any], folder: Path, seconds: float = 240.0) -> Any:
    """Call a service until it answers, wherever it is after its last start."""
    end = time.monotonic() + seconds
    while True:
        try:
            return action(find_service(str(folder)))
        except InvalidInput as error:
            is_answer = not str(error).startswith(("no service answers", str(folder)))
            if is_answer or time.monotonic() > end:
                raise
            time.sleep(0.05)


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.05)


def ask_for(number: int) -> Callable[[Service], Any]:
    body = {"kind": "shift", "updates": 1 + number % 4, "key": f"request {number}"}
    return lambda service: service.ask(body)


def cancel(number: int) -> Callable[[Service], Any]:
    return lambda service: service.cancel(number)


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the place of the last service in a folder of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.mark.slow
def test_25_kills_lose_nothing_and_do_nothing_twice(tmp_path: Path) -> None:
    """The run is that of a service never killed whose requests came in the same rounds."""
    file, folder = write_service(tmp_path), tmp_path / "killed"
    killer = start_python(
        "-c", KILLER, file, folder, KILLS, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    acknowledged: dict[int, str] = {}
    with killer:
        assert killer.stdin is not None and killer.stdout is not None
        for number in range(40):
            answer = keep_trying(ask_for(number), folder)
            acknowledged[answer["id"]] = f"request {number}"
            if number % 6 == 5:
                try:
                    keep_trying(cancel(answer["id"]), folder)
                except InvalidInput as error:  # it was served before
                    assert "must be waiting" in str(error)
            time.sleep(0.5)
        assert killer.stdout.readline() == "alive\n"
        wait_until(
            lambda: (
                keep_trying(lambda one: one.get("/status"), folder)["counts"]["waiting"] == 0
                and keep_trying(lambda one: one.get("/status"), folder)["counts"]["serving"] == 0
            )
        )
        killer.stdin.write("\n")
        killer.stdin.close()
        assert killer.wait() == 0
    stored = list_requests(folder)
    assert {one.id: one.body.key for one in stored} == acknowledged
    assert len({one.body.key for one in stored}) == 40
    done = [one for one in stored if one.state == "done"]
    assert {one.state for one in stored} <= {"done", "cancelled"} and len(done) >= 30
    served = Counter(one["task"] for one in read_rounds(folder, "private/updates.jsonl"))
    assert served == {one.id: one.size for one in done}
    assert sorted(one.version or 0 for one in done) == list(range(1, len(done) + 1))
    rounds = [one["round"] for one in read_rounds(folder)]
    assert rounds == list(range(1, len(rounds) + 1))
    play_service(tmp_path / "whole", plan_again(stored), len(rounds), base=GREEDY)
    assert read_run_files(folder) == read_run_files(tmp_path / "whole")


def plan_again(stored: list[Any]) -> dict[int, list[Any]]:
    """Return the same requests and cancellations, by the round that they came to."""
    asked: dict[int, list[Any]] = {}
    at = 1
    for one in stored:
        at = max(at, one.admitted or 0)
        body = {"kind": "shift", "updates": one.size}
        asked.setdefault(at, []).append(body)
        if one.state == "cancelled" and one.admitted is None:
            asked[at].append(one.id)
    for one in stored:
        if one.removed is not None:
            asked.setdefault(one.removed, []).append(one.id)
    return asked


def start_service(file: Path, folder: Path, *options: str) -> subprocess.Popen[str]:
    command = ("-m", "covertfl", "serve", file, "--out", folder, *options)
    return start_python(*command, stderr=subprocess.PIPE)


def test_a_service_ends_after_its_round_and_a_second_one_is_refused(tmp_path: Path) -> None:
    file, folder = write_service(tmp_path), tmp_path / "service"
    with start_service(file, folder) as first:
        first_answer = keep_trying(ask_for(3), folder)
        assert first_answer == {"id": 1, "state": "waiting", "updates_left": 4, "version": None}
        wait_until(
            lambda: keep_trying(lambda one: one.get("/requests/1"), folder)["state"] == "done"
        )
        with start_service(file, folder) as second:
            _, errors = second.communicate()
            assert second.returncode == 2
            assert errors == f"covertfl: {folder} is in use by another service\n"
        assert (folder / "token").stat().st_mode & 0o777 == 0o600
        status = keep_trying(lambda one: one.get("/status"), folder)
        assert status["version"] == 1 and status["backlog"] == 0
        first.send_signal(signal.SIGTERM)
        _, errors = first.communicate()
        assert first.returncode == 0 and "the service has ended" in errors
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["rounds"] == len(read_rounds(folder))
    with pytest.raises(InvalidInput, match="no service answers at"):
        find_service(str(folder)).get("/status")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a small file system; skip the test where that is not allowed."""
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=24m", "none", disk],
            check=True,
            capture_output=True,
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a file system is not allowed here")
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.slow
def test_a_full_disk_refuses_requests_and_keeps_those_acknowledged(
    tmp_path: Path, small_disk: Path
) -> None:
    content = merge(GREEDY, {"service": {"round_seconds": 0.05}})
    file, folder = write_service(tmp_path, content), small_disk / "service"
    with start_service(file, folder) as service:
        keep_trying(ask_for(0), folder)
        before = [keep_trying(ask_for(number), folder)["id"] for number in range(1, 9)]
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as stream, pytest.raises(OSError, match="No space"):
            while True:
                stream.write(bytes(4096))
        refused = 0
        for number in range(9, 40):
            try:
                before.append(keep_trying(ask_for(number), folder)["id"])
            except InvalidInput as error:
                assert "cannot be written" in str(error) or "full" in str(error)
                refused += 1
        assert refused > 0
        wait_until(
            lambda: keep_trying(lambda one: one.get("/status"), folder)["round"] > 0, seconds=10.0
        )
        filler.unlink()
        after = keep_trying(ask_for(100), folder)["id"]
        wait_until(
            lambda: (
                keep_trying(lambda one: one.get(f"/requests/{after}"), folder)["state"] == "done"
            )
        )
        service.send_signal(signal.SIGTERM)
        service.communicate()
        assert service.returncode == 0
    stored = {one.id: one for one in list_requests(folder)}
    assert set(stored) == {1, *before, after}
    served = Counter(one["task"] for one in read_rounds(folder, "private/updates.jsonl"))
    assert served == {number: one.size for number, one in stored.items()}
    shutil.rmtree(folder)
