"""A federation of real processes on this machine: SuperLink, SuperNodes, TLS, keys, a listener.

`make test-deploy` runs these.  Every process is a child of a supervisor that ends with its owner;
the tests look for what is left over all the same.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from covertfl.cli.app import app
from covertfl.engines.flower.deployment.certificates import make_node_key, make_server_certificate
from covertfl.engines.flower.deployment.federation import LocalFederation
from covertfl.engines.flower.deployment.processes import wait_until
from covertfl.engines.flower.deployment.run import Deployment
from covertfl.errors import InvalidInput
from covertfl.runs.settings import format_run, read_run
from tests.support.deployment_faults import (
    follow,
    freezing,
    kill_server,
    restart_server,
    stop_node,
    try_to_join,
)
from tests.support.small_runs import make_run, read_column, read_rounds

pytestmark = pytest.mark.deployment

RUN: dict[str, Any] = {
    "federation": {"clients": 4, "participation": [1, 2, 4], "min_share": 0.2},
    "decoy": {"kind": "public"},
    "policy": {"kind": "random"},
    "engine": {"kind": "flower", "mode": "deployment", "round_seconds": 0.0},
}
EXCHANGEABLE: dict[str, Any] = {
    "scheme": "exchangeable",
    "federation": RUN["federation"],
    "engine": {"kind": "flower", "mode": "deployment"},  # rounds on a clock
}


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for all temporary files of a federation; fails where any process outlives it."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield folder
    left = find_processes(folder)
    for process in left:
        os.kill(process, signal.SIGKILL)
    assert not left
    assert not list(folder.iterdir())


def find_processes(folder: Path) -> list[int]:
    """Processes of a federation whose folder is in this one, by their command lines."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it has just ended
            continue
        if any(word.startswith(os.fsencode(folder)) for word in words):
            found.append(int(entry.name))
    return found


def count_rounds(out: Path) -> int:
    """Rounds that are recorded so far."""
    path = out / "private" / "rounds.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def start_command(*arguments: object) -> subprocess.Popen[str]:
    """A command of covertfl as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", "from covertfl.cli.app import main; main()", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def audit(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What `covertfl audit` says of a folder."""
    capsys.readouterr()
    app(["audit", str(folder), "--rehearsals", "0", "--json"], standalone_mode=False)
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


def read_heard(out: Path) -> list[tuple[int, str]]:
    """Rounds and weights as the eavesdropping node has recorded them."""
    lines = read_rounds(out, "eavesdropper/rounds.jsonl")
    return [(line["round"], line["weights"]) for line in lines]


def test_a_deployment_that_is_ended_and_resumed(
    tmp_path: Path, scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds = 7
    run, out = tmp_path / "run.toml", tmp_path / "out"
    run.write_text(format_run(make_run(**EXCHANGEABLE, rounds=rounds, updates=3), {}))

    command = start_command("deploy-local", run, "--out", out, "--nodes", 4)
    try:
        assert wait_until(lambda: count_rounds(out) >= 2 or command.poll() is not None, 90.0)
        command.send_signal(signal.SIGTERM)
        _, errors = command.communicate(timeout=30)
    finally:
        command.kill()
    assert command.returncode == 128 + signal.SIGTERM, errors
    assert wait_until(lambda: not find_processes(scratch), 5.0)
    done = count_rounds(out)
    assert 2 <= done < rounds

    with pytest.raises(InvalidInput, match="exists: resume the run in it"):
        Deployment(read_run(run), out, num_nodes=4)

    # The run file names the engine, so that `train` does the same.
    command = start_command("train", run, "--out", out, "--resume", "--json")
    try:
        output, errors = command.communicate(timeout=120)
    finally:
        command.kill()
    assert command.returncode == 0, errors
    assert json.loads(output)["runs"][0]["rounds"] == rounds
    assert read_column(out, "round") == list(range(1, rounds + 1))
    assert {line["trajectory"] for line in read_rounds(out)} == {0, 1}

    # The listener was sent what the run says was sent, in order, whatever was cut off.
    sent = {line["round"]: line["weights"] for line in read_rounds(out, "public/rounds.jsonl")}
    heard = read_heard(out)
    assert dict(heard) == sent
    assert all(sent[number] == weights for number, weights in heard)
    assert [number for number, _ in heard] == sorted(number for number, _ in heard)

    audited = audit(out / "eavesdropper", capsys)
    assert audited["runs"] == 1
    assert "majority" in audited["eavesdroppers"]
    assert audit(out, capsys)["learner"]["exposure"] > 0.0


OWNER = """
import tempfile, time
from pathlib import Path
from covertfl.engines.flower.deployment.federation import LocalFederation, LocalNode
with LocalFederation([LocalNode()], Path(tempfile.mkdtemp())):
    print("up", flush=True)
    time.sleep(600)
"""


def test_a_federation_ends_with_its_owner(scratch: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    with owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "up\n"
        assert len(find_processes(scratch)) == 5
        owner.kill()
    assert wait_until(lambda: not find_processes(scratch), 15.0)
    assert wait_until(lambda: not list(scratch.iterdir()), 5.0)


def test_faults_of_a_deployment(tmp_path: Path, scratch: Path) -> None:
    rounds, out = 11, tmp_path / "out"
    settings = make_run(**RUN, rounds=rounds, updates=4)
    with Deployment(settings, out, num_nodes=4, timeout=6.0) as deployment:
        federation = deployment.federation
        check_private(federation.folder)
        check_bundle_content(deployment.bundle)
        assert (
            len(find_processes(scratch)) == 11
        )  # supervisor, SuperLink, server, two for each node
        check_refusals(federation)
        assert federation.list_connected() == [0, 1, 2, 3]

        run = deployment.start()
        follow(deployment, run, until=2)

        # A node that takes the query and sends nothing: the round ends without it.
        with freezing(federation, 1):
            follow(deployment, run, until=follow(deployment, run, until=3) + 1)
        assert any(read_column(out, "rejected"))

        # All nodes gone for a while: no round is used up, and training goes on when they are back.
        for number in range(4):
            stop_node(federation, number, signal.SIGTERM)
        assert not federation.list_connected()
        before = wait_for_rest(out, 7.5)
        for number in range(4):
            federation.start_node(number)
        follow(deployment, run, until=before + 1)

        # The server app killed in a round, and a new one that goes on.
        with freezing(federation, 1):
            cut_off = wait_for_open_round(out)
            kill_server(federation)
        assert count_rounds(out) == cut_off - 1
        run = restart_server(deployment, run)
        follow(deployment, run, until=cut_off + 1)
        assert len([number for number, _ in read_heard(out) if number == cut_off]) == 2

        # A SuperNode killed in a round, which ends without it.
        with freezing(federation, 2):
            number = wait_for_open_round(out)
            stop_node(federation, 2, signal.SIGKILL)
        deployment.follow(run)
    # Whether nobody answers or the SuperLink answers for it is a matter of moments.
    reasons = {reason for _, reason in read_column(out, "rejected")[number - 1]}
    assert reasons
    assert reasons <= {"no reply", "client error"}
    check_records(out, rounds)


def wait_for_rest(out: Path, seconds: float) -> int:
    """Wait until no round has ended for longer than a round can take; gives their number."""
    counts: list[tuple[float, int]] = []

    def rests() -> bool:
        now, count = time.monotonic(), count_rounds(out)
        if not counts or counts[-1][1] != count:
            counts.append((now, count))
        return now - counts[-1][0] >= seconds

    assert wait_until(rests, 45.0)
    return counts[-1][1]


def wait_for_open_round(out: Path) -> int:
    """Wait until the listener has been sent a query whose round is not recorded yet."""

    def is_open() -> bool:
        return max(number for number, _ in read_heard(out)) > count_rounds(out)

    assert wait_until(is_open, 30.0)
    return count_rounds(out) + 1


def check_private(folder: Path) -> None:
    """Keys, certificates, secrets and logs are for their owner only."""
    for path in [folder, *folder.iterdir()]:
        assert path.stat().st_mode & 0o077 == 0, path


def check_bundle_content(bundle: bytes) -> None:
    """What every node gets: the client app, and nothing of server, policy, seed or decoy."""
    with zipfile.ZipFile(io.BytesIO(bundle)) as files:
        names = {name for name in files.namelist() if not name.startswith(".info")}
        assert names == {"pyproject.toml", "federation_client.py", "client_run.toml"}
        content = {name: files.read(name).decode() for name in names}
    project = tomllib.loads(content["pyproject.toml"])
    assert project["tool"]["flwr"]["app"]["config"] == {}
    known = tomllib.loads(content["client_run.toml"])
    assert not set(known) & {"policy", "decoy", "oracle", "cost", "horizon", "queue", "updates"}
    words = ("policy", "decoy", "secret", "horizon", "covert_", "privacy", "exchange", "replica")
    for word in words:
        assert not any(word in text for text in content.values()), word


def check_refusals(federation: LocalFederation) -> None:
    """Nodes that do not belong are refused with a reason."""
    other = federation.folder / "other"
    other.mkdir(mode=0o700)
    stranger = str(make_node_key(other, "stranger").private)
    wrong = str(make_server_certificate(other).authority)
    right, key = str(federation.certificate.authority), str(federation.keys[0].private)
    for name, arguments, said in (
        (
            "unregistered",
            ["--root-certificates", right, "--auth-supernode-private-key", stranger],
            "Failed to activate SuperNode",
        ),
        ("without-key", ["--root-certificates", right], "All SuperNodes must be registered"),
        (
            "wrong-certificate",
            ["--root-certificates", wrong, "--auth-supernode-private-key", key],
            "certificate verify failed",
        ),
        ("plain-text", ["--insecure"], "Failed to initialize the connection"),
    ):
        assert said in try_to_join(federation, name, arguments)


def check_records(out: Path, rounds: int) -> None:
    """No round is lost, none counted twice, and the listener heard nothing else."""
    summary = json.loads((out / "summary.json").read_text())
    assert summary["rounds"] == rounds
    for name in ("private/rounds.jsonl", "public/rounds.jsonl", "metrics.jsonl"):
        assert [line["round"] for line in read_rounds(out, name)] == list(range(1, rounds + 1))
    assert summary["updates_done"] == len(read_rounds(out, "private/updates.jsonl"))
    sent = {line["round"]: line["weights"] for line in read_rounds(out, "public/rounds.jsonl")}
    heard = read_heard(out)
    # A round that was cut off and done again was sent with the same weights: that tells nothing.
    assert all(sent[number] == weights for number, weights in heard)
    assert [number for number, _ in heard] == sorted(number for number, _ in heard)
