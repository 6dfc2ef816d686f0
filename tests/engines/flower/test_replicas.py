"""Exchangeable replicas on Flower: wrapped strategies, failures, cuts, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedMedian, Strategy

from covertfl.engines.flower.array_form import ArrayForm
from covertfl.engines.flower.carrier import Carrier
from covertfl.engines.flower.grid import InProcessGrid, NodeCountGrid
from covertfl.engines.flower.strategy_state import transfer_state
from covertfl.flower import CovertStrategy, Examples
from covertfl.runs.checkpoint import read_checkpoint
from covertfl.runs.settings import build_run
from covertfl.runs.train import RunProgress, find_task
from tests import ROOT
from tests.support.flower_runs import (
    NODES,
    RUN,
    make_app,
    make_task,
    nudge,
    read_round,
    run_exchangeable,
)
from tests.support.slow_cases import mark_slow
from tests.support.small_runs import read_column, read_folder, read_rounds

pytestmark = pytest.mark.slow

Make = Callable[[], Strategy]
WRAPPED: dict[str, Make | None] = {
    "built-in": None,
    "FedAdam": FedAdam,
    "FedAvgM": lambda: FedAvgM(server_momentum=0.9),
    "FedMedian": FedMedian,
}


def set_choice(monkeypatch: pytest.MonkeyPatch, choice: int) -> None:
    monkeypatch.setattr("covertfl.schemes.exchangeable.draw_choice", lambda *_: choice)


def use_all_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every move use all replies, not only as many as those of the smallest round."""
    monkeypatch.setattr("covertfl.schemes.exchangeable.find_level", lambda *_, **__: None)


def move_by_hand(make: Make, out: Path, first: dict[str, Any]) -> dict[str, Any]:
    """What a strategy makes of the replies to the true queries, had nothing else been sent."""
    strategy, parts = make(), first
    contexts = InProcessGrid(make_app(), NODES).contexts
    lines = read_rounds(out)
    used = [line["round"] for line in lines if line["trajectory"] == 0 and line["backlog"]]
    for number, asked in enumerate(used, start=1):
        arrays = ArrayRecord({name: Array(part) for name, part in parts.items()})
        config = ConfigRecord({"server-round": asked})
        strategy.configure_train(number, arrays, config, NodeCountGrid(NODES))
        replies = []
        for context in contexts.values():
            content = RecordDict(
                {"arrays": arrays, "config": ConfigRecord({"server-round": asked})}
            )
            query = Message(content, context.node_id, "train")
            moved = ArrayRecord({k: Array(v) for k, v in nudge(query, context).items()})
            metrics = MetricRecord({"num-examples": 40})
            answer = RecordDict({"arrays": moved, "metrics": metrics})
            replies.append(Message(answer, reply_to=query))
        moved_to, _ = strategy.aggregate_train(number, replies)
        assert moved_to is not None
        parts = {k: array.numpy().astype(np.float32) for k, array in moved_to.items()}
    return parts


@pytest.mark.parametrize("name", [name for name in WRAPPED if name != "built-in"])
def test_the_truth_moves_as_its_strategy_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_all_replies(monkeypatch)
    make, first = WRAPPED[name], []
    assert make is not None

    def note(number: int, arrays: ArrayRecord) -> None:
        if number == 0:
            first.append({key: array.numpy() for key, array in arrays.items()})

    strategy = CovertStrategy(
        make, run={**RUN, "scheme": "exchangeable"}, out=tmp_path, task=make_task(), seed=7
    )
    grid = InProcessGrid(make_app(), NODES)
    result = strategy.start(grid=grid, num_rounds=8, evaluate_fn=note)
    assert read_column(tmp_path, "updated").count(True) == 4
    expected = move_by_hand(make, tmp_path, first[0])
    for key, array in result.arrays.items():
        np.testing.assert_allclose(array.numpy(), expected[key], rtol=1e-4, atol=1e-5)


class Fussy(FedAvg):
    """Does not aggregate, or not to anything finite, where a client asks for it."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        messages = list(replies)
        wish = max(float(m.content.metric_records["metrics"]["wish"]) for m in messages)
        if wish == 1.0:
            raise AggregationError("as asked")
        arrays, metrics = super().aggregate_train(server_round, messages)
        if wish == 2.0:
            assert arrays is not None
            arrays = ArrayRecord({k: Array(a.numpy() * np.inf) for k, a in arrays.items()})
        return (None, None) if wish == 3.0 else (arrays, metrics)


def wish_for(wishes: dict[int, float]) -> InProcessGrid:
    """A grid whose client 1 asks for a failure in some rounds."""

    class Grid(InProcessGrid):
        def _deliver(self, message: Message) -> Message | None:
            reply = super()._deliver(message)
            assert reply is not None
            is_asking = message.metadata.dst_node_id % 1000 == 1
            wish = wishes.get(read_round(message), 0.0) if is_asking else 0.0
            reply.content.metric_records["metrics"]["wish"] = wish
            return reply

    return Grid(make_app(), NODES)


@pytest.mark.parametrize("trajectories", [2, 4])
def test_failures_are_judged_alike(
    trajectories: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_all_replies(monkeypatch)
    wishes = {1: 1.0, 3: 2.0, 4: 3.0, 7: 1.0, 8: 1.0}
    asked = []
    for choice in range(trajectories):
        set_choice(monkeypatch, choice)
        out = tmp_path / str(choice)
        run_exchangeable(out, Fussy, trajectories=trajectories, grid=wish_for(wishes))
        accepted = dict(zip(read_column(out, "round"), read_column(out, "accepted"), strict=True))
        assert {number for number in accepted if not accepted[number]} == set(wishes)
        asked.append([trajectory ^ choice for trajectory in read_column(out, "trajectory")])
        assert any(read_column(out, "updated"))
    assert all(slots == asked[0] for slots in asked)
    failed = [read_column(tmp_path / str(n), "trajectory")[0] for n in range(trajectories)]
    assert sorted(failed) == list(range(trajectories))


class Cut(BaseException):
    """The end of a process, as far as a test can feel it."""


@pytest.mark.parametrize(
    ("trajectories", "name"),
    mark_slow([(case, name) for case in (2, 4) for name in WRAPPED], fast=[(2, "FedAdam")]),
)
def test_the_same_bytes_after_cuts(name: str, trajectories: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"trajectories": trajectories}
    run_exchangeable(tmp_path / "whole", WRAPPED[name], **options)
    assert read_column(tmp_path / "whole", "updated").count(True) == 3

    for stop in range(1, 16):

        def cut(progress: RunProgress, stop: int = stop) -> None:
            if progress.round == stop:
                raise Cut

        grid = InProcessGrid(make_app(), NODES, first_round=stop)
        cuts = {**options, "grid": grid, "on_round": cut, "resume": stop > 1}
        with pytest.raises(Cut):
            run_exchangeable(tmp_path / "cut", WRAPPED[name], **cuts)
    grid = InProcessGrid(make_app(), NODES, first_round=16)
    run_exchangeable(tmp_path / "cut", WRAPPED[name], **options, grid=grid, resume=True)
    whole, resumed = read_folder(tmp_path / "whole"), read_folder(tmp_path / "cut")
    assert set(whole) == set(resumed)
    for file in whole:
        assert whole[file] == resumed[file], file


@pytest.mark.parametrize("name", ["built-in", "FedAdam"])
def test_checkpoints_do_not_grow_by_the_choice(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[list[int]] = []
    for choice in range(4):
        set_choice(monkeypatch, choice)
        sizes.append([])

        def measure(progress: RunProgress) -> None:
            checkpoint = read_checkpoint(progress.run)
            assert checkpoint is not None
            sizes[-1].append(sum(array.nbytes for array in checkpoint.arrays.values()))

        options: dict[str, Any] = {"trajectories": 4, "on_round": measure}
        run_exchangeable(tmp_path / str(choice), WRAPPED[name], **options)
    assert all(other == sizes[0] for other in sizes)


@pytest.mark.parametrize("trajectories", [2, 4])
def test_all_queries_are_encoded_in_the_round_in_which_all_move(
    trajectories: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    rounds, write, ask = [0], ArrayForm.write, Carrier.ask

    def count(self: ArrayForm, weights: Any) -> Any:
        written.append(rounds[-1])
        return write(self, weights)

    def watch(self: Carrier, number: int, *given: Any) -> Any:
        before = len(written)
        replies = ask(self, number, *given)
        assert len(written) == before
        rounds.append(number)
        return replies

    monkeypatch.setattr(ArrayForm, "write", count)
    monkeypatch.setattr(Carrier, "ask", watch)
    run_exchangeable(tmp_path, None, trajectories=trajectories)
    moved = [line["round"] for line in read_rounds(tmp_path) if line["updated"]]
    # The final model is encoded, but never sent.
    assert {number: written.count(number) for number in written} == {
        0: trajectories, **dict.fromkeys(moved[:-1], trajectories), moved[-1]: 1
    }  # fmt: skip


def test_a_copy_of_a_strategy_shares_nothing_that_changes() -> None:
    class Nested(FedAvg):
        def __init__(self) -> None:
            super().__init__()
            self.inside, self.seen, self.act = FedAdam(), [1], self.configure_train

    source, target = Nested(), Nested()
    source.seen.append(2)
    source.inside.m_t = {"w": np.ones(2)}
    vars(target)["extra"] = 1
    own = target.inside
    transfer_state(source, target)
    assert target.seen == [1, 2] and target.seen is not source.seen
    assert target.inside is own and not hasattr(target, "extra")
    assert np.array_equal(own.m_t["w"], [1, 1])  # type: ignore[index]
    assert own.m_t is not source.inside.m_t
    assert target.act == target.configure_train


def test_the_example_of_the_manual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clients' map and the server's are the same."""
    monkeypatch.chdir(tmp_path)
    section = (ROOT / "docs" / "flower.md").read_text().split("## Exchangeable replicas")[1]
    code = section.split("```python")[1].split("```")[0]
    public, task = make_task().public, make_task()
    names: dict[str, Any] = {
        "Examples": Examples,
        "public_features": public.features,
        "public_labels": public.labels,
        "features": public.features,
    }
    exec(code, names)
    run = {**RUN, "task": "own", "scheme": "exchangeable"}
    run["federation"] = {**RUN["federation"], "clients": NODES}
    settings = build_run(run, "run", folder=tmp_path).with_task(task)
    mapped = find_task(settings).public.features
    assert np.array_equal(names["inputs"], mapped)
