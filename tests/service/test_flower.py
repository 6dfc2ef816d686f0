"""Services on Flower in one process: the bytes of simulated ones, and no word of requests."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from covertfl.engines.flower.eavesdropper_app import describe_message
from covertfl.engines.flower.grid import InProcessGrid
from covertfl.errors import InvalidInput
from covertfl.runs.checkpoint import read_checkpoint
from covertfl.runs.train import KernelCache, RunProgress, build_federation
from covertfl.schemes.exchangeable import Exchangeable
from covertfl.service.flower import run_on_flower
from covertfl.service.loop import as_service
from covertfl.service.requests import Limits, check_request, parse_request
from covertfl.service.store import Store
from tests.service.test_crash import keep_trying, start_service, write_service
from tests.service.test_desk import EXCHANGEABLE, GREEDY, read_query, read_version_arrays
from tests.support.played_services import (
    SERVICE,
    Asked,
    ask,
    list_requests,
    play_service,
    read_run_files,
)
from tests.support.small_runs import make_run, merge, read_rounds

pytestmark = pytest.mark.slow

FLOWER: dict[str, Any] = {"engine": {"kind": "flower"}}
# A rollback, new steps and a client that is forgotten, and as many updates without any of it.
ASKED: dict[int, Any] = {
    1: [{"kind": "shift", "updates": 2}],
    12: [{"kind": "purge", "clients": [1], "updates": 2, "restart": True}],
    24: [{"kind": "rollback", "version": 0}],
    34: [{"kind": "rollback", "version": 1, "updates": 2, "restart": True}],
}
PLAIN: dict[int, Any] = {
    at: [{"kind": "shift", "updates": body["updates"]} for body in bodies if "updates" in body]
    for at, bodies in ASKED.items()
}


def play_on_flower(
    folder: Path, asked: Asked, rounds: int, *, stop_after: int | None = None, **changes: Any
) -> None:
    """Play the rounds of a service on Flower in this process, or continue one."""
    settings = as_service(make_run(SERVICE, **merge(changes, FLOWER))).with_rounds(rounds)
    ending = threading.Event()
    if not folder.exists():
        folder.mkdir()
        Store(folder, creates=True).close()
        ask(folder, *asked.get(1, ()))

    def on_round(progress: RunProgress) -> None:
        ask(folder, *asked.get(progress.round + 1, ()))
        if progress.round == stop_after:
            with Store(folder) as store:
                store.keep_fact("ending", True)

    run_on_flower(settings, folder, ending, lambda: None, on_round)


@pytest.mark.parametrize("changes", [GREEDY, EXCHANGEABLE])
def test_it_gives_the_bytes_of_the_simulated_service(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    asked: dict[int, Any] = {
        1: [{"kind": "shift", "updates": 2}, {"kind": "shift", "updates": 1}],
        2: [2],
        14: [{"kind": "rollback", "version": 0}, {"kind": "shift", "updates": 1, "restart": True}],
        20: [{"kind": "rollback", "version": 0, "updates": 1}],
    }
    play_service(tmp_path / "simulated", asked, 34, **changes)
    for end in (15, None):
        play_on_flower(tmp_path / "flower", asked, 34, stop_after=end, **changes)
    simulated, flower = (read_run_files(tmp_path / name) for name in ("simulated", "flower"))
    assert set(simulated) == set(flower)
    for name, content in simulated.items():
        assert flower[name] == content, name
    fates = [
        [(one.state, one.begun, one.finished, one.version) for one in list_requests(tmp_path / at)]
        for at in ("simulated", "flower")
    ]
    assert fates[0] == fates[1]


def watch_messages(patch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Keep what clients are sent from now on, but for times and the numbers in arrays."""
    seen: list[dict[str, Any]] = []
    push = InProcessGrid.push_messages

    def pushed(self: Any, messages: Any) -> Any:
        kept = list(messages)
        for message in kept:
            shown = describe_message(message, 0.0)
            del shown["metadata"]["created_at"]
            seen.append(without_numbers(shown))
        return push(self, kept)

    patch.setattr(InProcessGrid, "push_messages", pushed)
    return seen


def without_numbers(value: Any) -> Any:
    """Return what a message shows with digests and contents of arrays left out."""
    if isinstance(value, dict):
        hidden = ("sha256", "digest", "data", "message_id", "object_id")
        return {key: without_numbers(part) for key, part in value.items() if key not in hidden}
    return [without_numbers(part) for part in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("changes", [{}, EXCHANGEABLE])
def test_messages_and_public_records_say_nothing_of_requests(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    """But for the weights, they are those of a service that was asked for plain updates."""
    found = {}
    for name, asked in (("asked", ASKED), ("plain", PLAIN)):
        with pytest.MonkeyPatch.context() as patch:
            seen = watch_messages(patch)
            play_on_flower(tmp_path / name, asked, 48, **changes)
        public = [
            {key: value for key, value in one.items() if key != "weights"}
            for one in read_rounds(tmp_path / name, "public/rounds.jsonl")
        ]
        sizes = {path.stat().st_size for path in (tmp_path / name / "public/weights").iterdir()}
        others = sorted(path.name for path in (tmp_path / name / "public").iterdir())
        found[name] = (seen, public, sizes, others)
    assert len(found["asked"][0]) > 48 and found["asked"] == found["plain"]


@pytest.mark.parametrize("changes", [{}, EXCHANGEABLE])
def test_after_a_jump_every_trajectory_is_sent_from_the_target(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    asked: dict[int, Any] = {
        1: [{"kind": "shift", "updates": 3}],
        60: [{"kind": "rollback", "version": 0}],
    }
    folder = tmp_path / "s"
    play_service(folder, asked, 85, **changes)
    rollback = list_requests(folder)[1]
    assert rollback.begun == 61
    target = read_version_arrays(folder, 0)
    sent: dict[int, bytes] = {}
    for one in read_rounds(folder)[rollback.begun - 1 :]:
        sent.setdefault(one["trajectory"], read_query(folder, one["weights"]))
    scheme = build_federation(make_run(SERVICE, **changes), KernelCache()).scheme
    if not isinstance(scheme, Exchangeable):
        assert sent[1] == target["decoy-1"] and sent.get(0, target["true"]) == target["true"]
        return
    replicas = scheme.replicas
    checkpoint = read_checkpoint(folder)
    assert checkpoint is not None and set(sent) == set(range(replicas.size))
    true = checkpoint.arrays["true"]
    assert true.tobytes() == target["true"]
    for number, query in sent.items():
        assert query == replicas.reflect(true, number).tobytes()


def test_a_purged_client_is_asked_and_its_replies_are_not_used(tmp_path: Path) -> None:
    asked: dict[int, Any] = {
        1: [{"kind": "shift", "updates": 50}],
        8: [{"kind": "purge", "clients": [0, 3], "updates": 1}],
    }
    play_on_flower(tmp_path / "s", asked, 30, **GREEDY)
    records = read_rounds(tmp_path / "s")
    for record in records:
        used = {
            client
            for client, batches in zip(record["clients"], record["batches"], strict=True)
            if batches
        }
        if record["round"] >= 8:
            assert not used & {0, 3}
    asked_later = {client for one in records[7:] for client in one["clients"]}
    assert {0, 3} <= asked_later
    assert any(0 in one["clients"] and sum(one["batches"]) for one in records[:7])
    with Store(tmp_path / "s") as store:
        limits = Limits(**store.read_fact("limits"))
    assert not limits.changes_data and limits.clients == 6
    for body in (
        '{"kind": "purge", "rows": [1], "updates": 1}',
        '{"kind": "purge", "clients": [1], "exact": true, "updates": 1}',
        '{"kind": "context", "client": 1, "data": "AAAA", "updates": 1}',
    ):
        with pytest.raises(InvalidInput, match=r"hold their own data|rows must lie in"):
            check_request(parse_request(body), limits)


def test_requests_are_answered_beside_a_server_app_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--api-only` is one process, the rounds are another; they share the folder alone."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder, content = tmp_path / "s", merge(SERVICE, merge(GREEDY, FLOWER))
    with start_service(write_service(tmp_path, content), folder, "--api-only") as answering:
        keep_trying(lambda one: one.get("/status"), folder)
        play_on_flower(folder, {}, 1, **GREEDY)  # what may be asked for is known now
        asked = {"kind": "shift", "updates": 2, "key": "elsewhere"}
        answer = keep_trying(lambda one: one.ask(asked), folder)
        assert answer == {"id": 1, "state": "waiting", "updates_left": 2, "version": None}
        play_on_flower(folder, {}, 30, **GREEDY)
        status = keep_trying(lambda one: one.get("/status"), folder)
        assert (status["round"], status["version"], status["backlog"]) == (30, 1, 0)
        answering.send_signal(signal.SIGTERM)
        answering.communicate()
        assert answering.returncode == 0
