"""One reply must not end a run, be taken for another node's, or weigh more than a client may."""

from __future__ import annotations

import json
import resource
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")

from flwr.app import Array, ConfigRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg

from covertfl.engines.flower.grid import FIRST_NODE
from covertfl.engines.flower.strategy_settings import RoundSettings
from tests.support.faulty_grid import FaultyGrid
from tests.support.flower_runs import NODES, ROUNDS, make_app, run_covert
from tests.support.slow_cases import mark_slow
from tests.support.small_runs import Stopped, read_column, read_folder, read_rounds, stop_after
from tests.support.wire_grid import WireGrid

pytestmark = pytest.mark.slow

ATTACKER = 2
LEARNS = [1, 2, 3, 4]
OTHERS = (NODES - 1) * 40


class RaisingGrid(FaultyGrid):
    """A grid whose pull raises over the attacker's reply, after receipt."""

    def __init__(self, error: Exception) -> None:
        super().__init__(make_app(), NODES)
        self._error = error

    def pull_messages(self, message_ids: Any) -> list[Message]:
        replies = super().pull_messages(message_ids)
        if any(reply.metadata.src_node_id == FIRST_NODE + ATTACKER for reply in replies):
            raise self._error
        return replies


ERRORS = {
    "text": UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    "compression": zlib.error("incorrect header check"),
    "key": KeyError("arraychunk_ids"),
    "depth": RecursionError("maximum recursion depth exceeded"),
    "memory": MemoryError(),
    "value": ValueError("Unexpected set of children"),
}


def require_alone(out: Path, reason: str) -> None:
    """Assert that the attacker alone was refused, in all rounds, of both arms."""
    assert read_column(out, "rejected") == [[[ATTACKER, reason]]] * ROUNDS
    assert read_column(out, "examples") == [OTHERS] * ROUNDS
    actions = ["learn" if number in LEARNS else "obfuscate" for number in range(1, ROUNDS + 1)]
    assert read_column(out, "action") == actions
    assert read_column(out, "updated") == [action == "learn" for action in actions]


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_over_one_reply_is_that_nodes(name: str, tmp_path: Path) -> None:
    make = FedAvg if len(name) % 2 else None
    run_covert(tmp_path, make, LEARNS, grid=RaisingGrid(ERRORS[name]))
    require_alone(tmp_path, "unreadable")
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["rejected_by_reason"] == {"unreadable": ROUNDS}


def find_content(objects: dict[str, bytes], kind: bytes) -> tuple[str, bytes]:
    """Return the first uploaded object of a kind."""
    return next(item for item in objects.items() if item[1].startswith(kind + b" "))


def replace_body(content: bytes, body: bytes) -> bytes:
    head, _, _ = content.partition(b"\0")
    kind, children, _ = head.split(b" ")
    return b" ".join([kind, children, str(len(body)).encode()]) + b"\0" + body


def with_body(kind: bytes, body: bytes) -> Callable[[dict[str, bytes]], dict[str, bytes]]:
    def tamper(objects: dict[str, bytes]) -> dict[str, bytes]:
        name, content = find_content(objects, kind)
        return {**objects, name: replace_body(content, body)}

    return tamper


def with_head(kind: bytes, head: bytes) -> Callable[[dict[str, bytes]], dict[str, bytes]]:
    def tamper(objects: dict[str, bytes]) -> dict[str, bytes]:
        name, _ = find_content(objects, kind)
        return {**objects, name: head + b"\0"}

    return tamper


def repeat_chunks(objects: dict[str, bytes]) -> dict[str, bytes]:
    """A megabyte that unpacks to forty gigabytes."""
    place, array = find_content(objects, b"Array")
    chunk = find_content(objects, b"ArrayChunk")
    body = json.loads(array.partition(b"\0")[2])
    body["arraychunk_ids"] = [0] * 40_000
    bomb = replace_body(array, json.dumps(body).encode())
    return {**objects, place: bomb, chunk[0]: replace_body(chunk[1], bytes(10**6))}


def upload_much(objects: dict[str, bytes]) -> dict[str, bytes]:
    name, chunk = find_content(objects, b"ArrayChunk")
    return {**objects, name: replace_body(chunk, bytes(200 * 10**6))}


UPLOADS: dict[str, tuple[Callable[[dict[str, bytes]], dict[str, bytes]], str]] = {
    "not text": (with_body(b"Array", b'{"dtype": "\xff\xfe"}'), "unreadable"),
    "not json": (with_body(b"ArrayRecord", b"["), "unreadable"),
    "deep json": (with_body(b"Array", b"[" * 10**5), "unreadable"),
    "not a record": (with_body(b"RecordDict", b"7"), "unreadable"),
    "protobuf": (with_body(b"MetricRecord", b"\xff" * 99), "unreadable"),
    "head is not text": (with_head(b"Array", b"\xff\xff\xff"), "unreadable"),
    "unknown type": (with_head(b"Array", b"Pickle  0"), "unreadable"),
    "unknown child": (with_head(b"RecordDict", b"RecordDict " + b"a" * 64 + b" 0"), "unreadable"),
    "own child": (lambda objects: {name: b"Array " + name.encode() + b" 0\0" for name in objects},
                  "unreadable"),
    "bomb": (repeat_chunks, "too large"),
    "200 MB": (upload_much, "too large"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", mark_slow(UPLOADS, fast=[name for name in UPLOADS if name != "200 MB"])
)
def test_what_a_node_uploads_reaches_nobody_else(name: str, tmp_path: Path) -> None:
    """Through Flower's own HTTP grid, from bytes."""
    change, reason = UPLOADS[name]

    def tamper(client: int, objects: dict[str, bytes]) -> dict[str, bytes]:
        return change(objects) if client == ATTACKER else objects

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    make = FedAvg if len(name) % 2 else None
    run_covert(tmp_path, make, LEARNS, grid=WireGrid(make_app(), NODES, tamper=tamper))
    require_alone(tmp_path, reason)
    if name == "bomb":  # in kibibytes: it was not unpacked
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 10**6


@pytest.mark.slow
def test_what_is_announced_and_never_sent_does_not_stop_the_clock(tmp_path: Path) -> None:
    """Flower itself waits for hours, whatever the timeout of the round."""

    def tamper(client: int, objects: dict[str, bytes]) -> dict[str, bytes]:
        if client != ATTACKER:
            return objects
        gone, _ = find_content(objects, b"ArrayChunk")
        return {name: content for name, content in objects.items() if name != gone}

    grid = WireGrid(make_app(), NODES, tamper=tamper)
    run_covert(tmp_path, None, LEARNS, grid=grid, start={"timeout": 0.3})
    require_alone(tmp_path, "client error")


def test_an_honest_reply_is_the_same_through_the_wire(tmp_path: Path) -> None:
    run_covert(tmp_path / "here", FedAvg, LEARNS)
    grid = WireGrid(make_app(), NODES, tamper=lambda _, objects: objects)
    run_covert(tmp_path / "wire", FedAvg, LEARNS, grid=grid)
    assert read_folder(tmp_path / "here") == read_folder(tmp_path / "wire")


def spoil_with(change: Callable[[Message], None]) -> Any:
    def spoil(number: int, client: int, reply: Message) -> Message:
        if client == ATTACKER and reply.has_content():
            change(reply)
        return reply

    return spoil


def fill_metrics(reply: Message) -> None:
    many = [0.0] * 10**7
    reply.content["metrics"] = MetricRecord({"num-examples": 40, "train_loss": many})


def fill_arrays(reply: Message) -> None:
    arrays = next(iter(reply.content.array_records.values()))
    arrays["0.weight"] = Array("float32", (4, 3), "numpy.ndarray", bytes(200 * 10**6))


def fill_note(reply: Message) -> None:
    reply.content["note"] = ConfigRecord({"text": bytes(200 * 10**6)})


@pytest.mark.parametrize("fill", [fill_metrics, fill_arrays, fill_note])
@pytest.mark.slow
def test_a_large_reply_is_neither_converted_nor_kept(fill: Any, tmp_path: Path) -> None:
    message: list[Message] = []

    def spoil(number: int, client: int, reply: Message) -> Message:
        if client != ATTACKER:
            return reply
        if not message:
            fill(reply)
            message.append(reply)
            tracemalloc.start()
        reply.content = message[0].content
        return reply

    try:
        run_covert(tmp_path, FedAvg, LEARNS, grid=FaultyGrid(make_app(), NODES, spoil=spoil))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    require_alone(tmp_path, "too large")
    assert peak < 20 * 10**6


# --- who it is from ---------------------------------------------------------------------------


@pytest.mark.parametrize("source", [FIRST_NODE, 1, 0, -1, 2**63, "1000", None])
def test_another_source_is_a_fault_of_the_node_that_was_asked(source: Any, tmp_path: Path) -> None:
    def forge(reply: Message) -> None:
        reply.metadata.__dict__["_src_node_id"] = source

    run_covert(tmp_path, None, LEARNS, grid=ForgingGrid(forge))
    require_alone(tmp_path, "wrong sender")


class ForgingGrid(FaultyGrid):
    """A grid in which the attacker changes its message after the SuperLink has checked it."""

    def __init__(self, forge: Callable[[Message], None]) -> None:
        super().__init__(make_app(), NODES)
        self._forge = forge
        self.sent: dict[int, str] = {}

    def push_messages(self, messages: Any) -> Any:
        messages = list(messages)
        names = list(super().push_messages(messages))
        self.sent = {message.metadata.dst_node_id: name
                     for message, name in zip(messages, names, strict=True)}  # fmt: skip
        return names

    def pull_messages(self, message_ids: Any) -> list[Message]:
        replies = super().pull_messages(message_ids)
        for reply in replies:
            if reply.metadata.src_node_id == FIRST_NODE + ATTACKER:
                self._forge(reply)
        return replies


@pytest.mark.parametrize("victim", range(NODES - 1))
def test_nobody_answers_for_another(victim: int, tmp_path: Path) -> None:
    """The attacker's message claims to be the victim's, whose own counts all the same."""
    victim = victim if victim < ATTACKER else victim + 1

    def forge(reply: Message) -> None:
        reply.metadata.__dict__["_reply_to_message_id"] = grid.sent[FIRST_NODE + victim]
        reply.metadata.__dict__["_src_node_id"] = FIRST_NODE + victim
        reply.content["metrics"] = MetricRecord({"num-examples": 1, "train_loss": 0.5})

    grid = ForgingGrid(forge)
    run_covert(tmp_path, None, LEARNS, grid=grid)
    require_alone(tmp_path, "stale round")


def test_the_same_answer_twice_counts_once(tmp_path: Path) -> None:
    class Twice(FaultyGrid):
        def pull_messages(self, message_ids: Any) -> list[Message]:
            return [reply for reply in super().pull_messages(message_ids) for _ in range(2)]

    run_covert(tmp_path / "twice", None, LEARNS, grid=Twice(make_app(), NODES))
    run_covert(tmp_path / "once", None, LEARNS)
    assert read_folder(tmp_path / "twice") == read_folder(tmp_path / "once")


# --- how much it weighs -----------------------------------------------------------------------


def claim(counts: Callable[[int], int]) -> Any:
    """The attacker claims a number of examples that depends on the round."""

    def spoil(number: int, client: int, reply: Message) -> Message:
        if client == ATTACKER:
            claimed = counts(number)
            reply.content["metrics"] = MetricRecord({"num-examples": claimed, "train_loss": 0.5})
        return reply

    return FaultyGrid(make_app(), NODES, spoil=spoil)


def find_share(out: Path) -> float:
    """Return the largest share of the attacker in a round's examples."""
    return max(1 - OTHERS / float(examples) for examples in read_column(out, "examples"))


@pytest.mark.parametrize("claimed", [41, 80, 81, 120, 399, 400])
def test_a_claim_has_at_most_twice_the_weight_of_an_estimate(claimed: int, tmp_path: Path) -> None:
    run_covert(tmp_path, FedAvg, LEARNS, grid=claim(lambda _: claimed))
    assert find_share(tmp_path) <= 0.4  # 10 times the estimate was accepted before: 0.77
    if claimed > 80:
        require_alone(tmp_path, "too many examples")


def test_a_client_cannot_raise_its_own_bound(tmp_path: Path) -> None:
    counts = [80, 160, 120, 240, 80, 160, 80, 160]
    run_covert(tmp_path, FedAvg, LEARNS, grid=claim(lambda number: counts[number - 1]))
    expected = [[] if count <= 80 else [[ATTACKER, "too many examples"]] for count in counts]
    assert read_column(tmp_path, "rejected") == expected


def test_a_client_is_held_to_its_own_median(tmp_path: Path) -> None:
    """Little in most rounds and much in a chosen one: twice its median, not twice the largest."""
    counts = [10, 12, 10, 20, 24, 25, 21, 80]
    grid = claim(lambda number: counts[number - 1])
    run_covert(tmp_path, None, LEARNS, grid=grid)
    rejected = [bool(entry) for entry in read_column(tmp_path, "rejected")]
    # Medians of what was accepted before: 10 of three, 11 of four, 11 of four, 11, 12.
    assert rejected == [False, False, False, False, True, True, False, True]


def test_the_task_knows_its_clients(tmp_path: Path) -> None:
    run_covert(
        tmp_path, None, LEARNS, grid=claim(lambda _: 60),
        round_settings=RoundSettings(most_examples=50),
    )  # fmt: skip
    require_alone(tmp_path, "too many examples")


@pytest.mark.parametrize("make", [None, FedAvg])
def test_bounds_survive_a_restart(make: Any, tmp_path: Path) -> None:
    counts = [10, 12, 10, 20, 24, 25, 21, 80]

    def count(number: int) -> int:
        return counts[number - 1]

    run_covert(tmp_path / "whole", make, LEARNS, grid=claim(count))
    out = tmp_path / "cut"
    with pytest.raises(Stopped):
        run_covert(out, make, LEARNS, grid=claim(count), on_round=stop_after(4))
    grid = claim(count)
    grid._round = 5
    run_covert(out, make, LEARNS, grid=grid, resume=True)
    assert read_folder(out) == read_folder(tmp_path / "whole")
    assert len(read_rounds(out)) == ROUNDS
