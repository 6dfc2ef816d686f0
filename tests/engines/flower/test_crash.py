"""Servers on Flower that are killed or cannot write: one query a round, whatever clients reply.

Clients of a real federation do not reply twice alike.  Were a round that has been answered repeated
after the next query was sent, that query would change, and two in one round name the action.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")

import numpy as np
from flwr.app import Context, Message
from flwr.serverapp.strategy import FedAdam

from covertfl.engines.flower.grid import InProcessGrid
from covertfl.errors import InvalidInput
from covertfl.runs.checkpoint import read_checkpoint
from covertfl.runs.folder import LINE_FILES
from tests import ROOT
from tests.support.flower_runs import (
    NODES,
    Witness,
    make_app,
    nudge,
    read_round,
    run_covert,
    run_exchangeable,
)
from tests.support.slow_cases import IS_SOAK, mark_slow
from tests.support.small_runs import read_column, read_folder

pytestmark = pytest.mark.slow

KILLS, ROUNDS = 25, 400
CALLS = ("fsync", "fdatasync", "replace", "open", "write", "ftruncate", "lseek")
# Files that name times, or how often a run was started.
NOT_COMPARED = ("private/client_metrics.jsonl",)


def answer_anyhow(message: Message, context: Context) -> dict[str, np.ndarray[Any, Any]]:
    """Reply to the same query with other weights each time."""
    generator = np.random.default_rng()
    return {
        name: (part + 0.1 * generator.standard_normal(part.shape)).astype(part.dtype)
        for name, part in nudge(message, context).items()
    }


def run(kind: str, out: Path, witness: Witness, train: Any, *, resume: bool) -> None:
    """Run eight rounds; those of replicas with all replies accepted."""
    checkpoint = read_checkpoint(out) if resume and (out / "checkpoint").exists() else None
    first = 1 if checkpoint is None else 1 + checkpoint.round
    grid = InProcessGrid(make_app(witness, train), NODES, first_round=first)
    options: dict[str, Any] = {"grid": grid, "resume": resume}
    if kind == "replicas":
        run_exchangeable(out, None, trajectories=2, rounds=8, **options)
    else:
        run_covert(out, FedAdam, [1, 4, 5, 7], **options)


def fail_at(monkeypatch: pytest.MonkeyPatch, name: str, number: int, within: Path) -> list[str]:
    """Make one call of a function fail as on a full disk; return the list of calls.

    Calls that have nothing to do with the run's folder are not counted.
    """
    calls: list[str] = []
    real = getattr(os, name)

    def sometimes(*arguments: Any, **keywords: Any) -> Any:
        target = arguments[0]
        is_open = isinstance(target, int)
        shown = str(Path(f"/proc/self/fd/{target}").readlink() if is_open else target)
        if shown.startswith(str(within)):
            calls.append(shown)
            if len(calls) == number:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments, **keywords)

    monkeypatch.setattr(os, name, sometimes)
    return calls


def read_compared(out: Path) -> dict[str, bytes]:
    return {name: data for name, data in read_folder(out).items() if name not in NOT_COMPARED}


def require_one_query(witness: Witness) -> None:
    sent = defaultdict(set)
    for _, number, content in witness.weights:
        sent[number].add(content)
    assert sorted(sent) == list(range(1, len(sent) + 1))
    assert {len(contents) for contents in sent.values()} == {1}


@pytest.mark.parametrize("kind", ["replicas", "trained"] if IS_SOAK else ["replicas"])
@pytest.mark.parametrize("name", mark_slow(list(CALLS), ["ftruncate"]))
def test_a_disk_full_at_any_moment_is_named_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    run(kind, tmp_path / "whole", Witness(), nudge, resume=False)
    whole, number, failed = read_compared(tmp_path / "whole"), 0, 0
    step = {"fsync": 11, "open": 7, "write": 13, "lseek": 13}.get(name, 3)
    while True:
        number += step
        for train in (nudge, answer_anyhow):
            out, witness = tmp_path / f"{number}-{train.__name__}", Witness()
            with monkeypatch.context() as patch:
                calls = fail_at(patch, name, number, out)
                try:
                    run(kind, out, witness, train, resume=False)
                except InvalidInput as error:
                    failed += 1
                    assert "cannot be written: No space left on device" in str(error)
                    assert str(out) in str(error)
            if len(calls) < number:
                break
            run(kind, out, witness, train, resume=True)
            require_one_query(witness)
            assert read_column(out, "round") == list(range(1, 9))
            if train is nudge:
                assert read_compared(out) == whole
        else:
            continue
        break
    assert failed >= 2 * (number // step - 1) >= 4


# --- the order of what is written -----------------------------------------------------------

Event = tuple[str, str, int]  # what is done, to which file, and with how many bytes


class TracedGrid(InProcessGrid):
    """A grid that writes down when queries are sent and when all replies are there."""

    def __init__(self, events: list[Event]) -> None:
        super().__init__(make_app(), NODES)
        self._events = events

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Deliver messages."""
        self._events.append(("send", "", 0))
        names = super().push_messages(messages)
        self._events.append(("replied", "", 0))
        return names


def trace(monkeypatch: pytest.MonkeyPatch, out: Path, **options: Any) -> list[Event]:
    """Run exchangeable replicas; return writes, syncs and replacements in their order."""
    events: list[Event] = []

    def watch(name: str) -> None:
        real = getattr(os, name)

        def traced(*arguments: Any, **keywords: Any) -> Any:
            target = arguments[1] if name == "replace" else arguments[0]
            is_open = isinstance(target, int)
            path = str(Path(f"/proc/self/fd/{target}").readlink() if is_open else target)
            result = real(*arguments, **keywords)
            if path.startswith(str(out)):
                size = len(arguments[1]) if name == "write" else 0
                events.append((name, str(Path(path).relative_to(out)), size))
            return result

        monkeypatch.setattr(os, name, traced)

    for name in ("fsync", "fdatasync", "replace", "write"):
        watch(name)
    run_exchangeable(out, None, grid=TracedGrid(events), **options)
    return events


def split_rounds(events: list[Event]) -> list[list[Event]]:
    """Return what follows each note of a decision, until the next one or the end of the run."""
    noted = [
        place
        for place, (kind, name, _) in enumerate(events)
        if (kind, name) == ("replace", "checkpoint/pending.json")
    ]
    return [events[start:stop] for start, stop in pairwise([*noted, len(events)])]


def test_a_checkpoint_comes_after_what_it_relies_on_and_before_the_next_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = split_rounds(trace(monkeypatch, tmp_path / "run", trajectories=2, rounds=8))
    assert len(rounds) == 8
    for found in rounds:
        done = [event[:2] for event in found]
        # The decision is on the disk before the query is sent.
        assert done.index(("fsync", "checkpoint")) < done.index(("send", ""))
        sealed = done.index(("replace", "checkpoint/state.safetensors"))
        replied = done.index(("replied", ""))
        assert {("fsync", name) for name in LINE_FILES} <= set(done[replied:sealed])
        stored = next(
            place
            for place, (kind, name) in enumerate(done)
            if kind == "fdatasync" and name.startswith("public/weights")
        )
        assert stored < done.index(("fsync", "public/weights")) < sealed
        draft = "checkpoint/.state.safetensors.new"
        written = max(place for place, event in enumerate(done) if event == ("write", draft))
        assert replied < written < done.index(("fdatasync", draft), written) < sealed
        # The name of the checkpoint is on the disk before the next decision is made.
        assert ("fsync", "checkpoint") in done[sealed:]


@pytest.mark.parametrize("trajectories", [2, 4])
def test_what_is_written_does_not_depend_on_the_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trajectories: int
) -> None:
    """All that differs is whether a generation has ended, which clients see."""
    out, rounds = tmp_path / "run", 2 * trajectories
    options: dict[str, Any] = {"trajectories": trajectories, "rounds": rounds}
    vectors: dict[bool, set[int]] = {False: set(), True: set()}
    queries = set()
    for number, found in enumerate(split_rounds(trace(monkeypatch, out, **options)), start=1):
        sizes = Counter((Path(name).parent.name, size) for kind, name, size in found if size)
        vectors[number % trajectories == 0].add(sizes["checkpoint", 4 * 21])
        queries.add(sum(size * n for (place, size), n in sizes.items() if place == "weights"))
    assert set(read_column(out, "trajectory")) == set(range(trajectories))
    assert len(queries) == 1
    [during], [ended] = vectors[False], vectors[True]
    assert ended == during + 1 == 3


# --- servers that are killed ------------------------------------------------------------------

# Kills servers of its own with signal 9, at random moments of which most are within a round, and
# lets the last one live.  Clients write down what they get, and never reply twice alike.
KILLER = """
import json, os, random, signal, sys, time
from pathlib import Path
from covertfl.engines.flower.grid import InProcessGrid
from covertfl.runs.checkpoint import read_checkpoint
from tests.engines.flower.test_crash import answer_and_log
from tests.support.flower_runs import NODES, make_app, run_exchangeable

out, log, kills, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
chance = random.Random(5)


def start(number, last):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            found = read_checkpoint(out) if (out / "checkpoint").exists() else None
            first = 1 if found is None else found.round + 1
            most = rounds if last else 12
            done = []
            def tell(progress):
                os.write(writing, b".")
                done.append(1)
                if len(done) > most:
                    time.sleep(600.0)
            grid = InProcessGrid(
                make_app(train=answer_and_log(log, number, first)), NODES, first_round=first
            )
            run_exchangeable(
                out, None, trajectories=2, rounds=rounds, grid=grid, resume=True, on_round=tell
            )
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    return child, reading


for number in range(kills):
    child, reading = start(number, False)
    if number > 3:
        os.read(reading, 1)
    time.sleep(chance.uniform(0.0, 0.3 if number <= 3 else 0.05))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(reading)
    if not os.WIFSIGNALED(status):
        sys.exit(f"a server ended by itself, status {status}")
child, reading = start(kills, True)
_, status = os.waitpid(child, 0)
sys.exit(status)
"""


def answer_and_log(log: str, start: int, first: int) -> Any:
    """Return training that writes down each query, with the start and first round of the server."""

    def train(message: Message, context: Context) -> dict[str, np.ndarray[Any, Any]]:
        arrays = next(iter(message.content.array_records.values()))
        content = b"".join(array.data for array in arrays.values()).hex()
        line = json.dumps([start, first, read_round(message), content])
        with Path(log).open("a") as stream:
            stream.write(f"\n{line}\n")  # on a line of its own, even after one that was cut off
        return answer_anyhow(message, context)

    return train


@pytest.mark.slow
def test_25_kills_show_clients_one_query_a_round(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    out, log = tmp_path / "run", tmp_path / "log"
    result = subprocess.run(
        [sys.executable, "-c", KILLER, out, log, str(KILLS), str(ROUNDS)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("]")]
    contents: dict[int, set[str]] = defaultdict(set)
    for _, _, number, content in lines:
        contents[number].add(content)
    assert {len(sent) for sent in contents.values()} == {1}
    assert sorted(contents) == read_column(out, "round") == list(range(1, ROUNDS + 1))
    # A sealed round is never sent again, and none is left out.
    firsts = {start: (first, number) for start, first, number, _ in reversed(lines)}
    assert all(first == number for first, number in firsts.values())
    ends = {start: number for start, _, number, _ in lines}
    for start, (first, _) in firsts.items():
        before = [number for earlier, number in ends.items() if earlier < start]
        assert not before or before[-1] <= first <= before[-1] + 1
    repeated = Counter(first for first, _ in firsts.values() if first > 1)
    assert len(firsts) > KILLS // 2 and len(repeated) > KILLS // 3
