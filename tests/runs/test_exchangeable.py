"""Exchangeable runs: nothing public depends on which trajectory is the true one."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from covertfl.decoys.replica import Replicas
from covertfl.runs.generations import Generation

from covertfl.errors import InvalidInput
from covertfl.kernels.job import Examples
from covertfl.kernels.weights import Float32Array, name_content
from covertfl.models.contents import read_contents
from covertfl.models.export import export_model
from covertfl.runs.public import PublicTranscript
from covertfl.tasks.task import TrainingTask
from covertfl.training import train
from tests.support.exchangeable_runs import BASES, find_clients, make_exchangeable
from tests.support.slow_cases import mark_slow
from tests.support.small_runs import Stopped, make_run, merge, read_folder, read_rounds, stop_after
from tests.support.tensors import serialise


def read_public(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted((folder / "public").rglob("*"))
        if path.is_file()
    }


# --- the schedule -----------------------------------------------------------------------------


def list_generations(records: list[dict[str, Any]], trajectories: int) -> list[list[Any]]:
    """Split the private records into generations: each trajectory accepted once."""
    generations: list[list[Any]] = [[]]
    accepted = 0
    for record in records:
        generations[-1].append(record)
        accepted += record["accepted"]
        if accepted == trajectories:
            generations.append([])
            accepted = 0
    return generations


@pytest.mark.slow
@pytest.mark.parametrize("trajectories", [2, 4, 8])
def test_a_generation_queries_each_trajectory_until_it_is_accepted(
    trajectories: int, tmp_path: Path
) -> None:
    settings = make_exchangeable(trajectories=trajectories, rounds=30 * trajectories)
    [summary] = train(settings, tmp_path / "run")
    records = read_rounds(tmp_path / "run")
    *complete, _ = list_generations(records, trajectories)
    assert len(complete) >= 4
    for generation in complete:
        asked = [record["trajectory"] for record in generation]
        firsts = list(dict.fromkeys(asked))
        assert sorted(firsts) == list(range(trajectories))
        # One after the other, the same weights again until they are accepted.
        for trajectory, group in itertools.groupby(generation, lambda each: each["trajectory"]):
            rounds = list(group)
            assert [each["accepted"] for each in rounds[:-1]] == [False] * (len(rounds) - 1)
            assert rounds[-1]["accepted"]
            assert len({each["weights"] for each in rounds}) == 1, trajectory
    moved = [generation[-1]["updated"] for generation in complete]
    assert moved == [True] * 4 + [False] * (len(complete) - 4)
    assert all(not each["updated"] for one in complete for each in one[:-1])
    assert summary.updates_done == 4 and summary.completed
    assert len(summary.decoy_accuracy) == trajectories - 1


def test_orders_are_drawn_anew_and_uniformly() -> None:
    seen = Counter(
        tuple(Generation(number, place).find_slot(3, seed=7) for place in range(3))
        for number in range(3000)
    )
    assert set(seen) == set(itertools.permutations(range(3)))
    assert min(seen.values()) > 420 and max(seen.values()) < 580


def test_the_final_model_is_never_sent(tmp_path: Path) -> None:
    train(make_exchangeable(rounds=60), tmp_path / "run")
    export_model(tmp_path / "run", tmp_path / "model.safetensors")
    final = read_contents(tmp_path / "model.safetensors").weights
    transcript = PublicTranscript(tmp_path / "run" / "public")
    sent = {record.weights for record in transcript.records}
    assert len(sent) == 2 * 4  # of 4 generations, not of the fifth state
    for name in sent:
        weights = transcript.read_weights(name)
        assert any(not np.array_equal(weights[key], final[key]) for key in final)
        assert any(not np.array_equal(np.abs(weights[key]), np.abs(final[key])) for key in final)
    # After the last update both of the last states go on being sent.
    records = read_rounds(tmp_path / "run")
    last = next(number for number, record in enumerate(records) if record["backlog"] == 0)
    assert len({record["weights"] for record in records[last:]}) == 2


def test_a_queue_with_nothing_owed_draws_over_the_present_states(tmp_path: Path) -> None:
    [summary] = train(make_exchangeable("queue"), tmp_path / "run")
    records = read_rounds(tmp_path / "run")
    idle = [record for record in records if record["backlog"] == 0]
    assert summary.updates_done >= 2 and len(idle) > 5
    assert not any(record["updated"] for record in idle)
    assert {record["trajectory"] for record in idle} == {0, 1}
    for before, after in itertools.pairwise(records):
        if before["backlog"] == 0 and after["backlog"] == 0:
            state = {record["weights"] for record in (before, after)}
            assert len(state) <= 2
    served = sum(record["updated"] for record in records)
    assert served == summary.updates_done


def test_a_generation_without_work_is_left_when_work_arrives() -> None:
    idle = replace(Generation(3).enter(0), place=1)
    assert not idle.is_owed
    begun = idle.enter(2)
    assert (begun.number, begun.place, begun.is_owed) == (4, 0, True)
    assert replace(begun, place=1).enter(5).number == 4


@pytest.mark.slow
@pytest.mark.parametrize("base", ["horizon", "queue"])
def test_costs_and_exposure_count_true_queries(base: str, tmp_path: Path) -> None:
    [summary] = train(make_exchangeable(base, trajectories=4, rounds=120), tmp_path / "run")
    records = read_rounds(tmp_path / "run")
    true = [record for record in records if record["trajectory"] == 0]
    costs = {0: 1.8, 1: 0.8, 2: 0.3}
    assert summary.learning_queries == len(true)
    assert summary.exposure == pytest.approx(len(true) / 120) and 0.1 < summary.exposure < 0.4
    paid = sum(costs[record["oracle_state"]] for record in true)
    assert summary.average_privacy_cost == pytest.approx(paid / 120)


# --- exactness --------------------------------------------------------------------------------


def reflect_task(task: TrainingTask, signs: Float32Array) -> TrainingTask:
    train, public, validation = (
        Examples(part.features * signs, part.labels)
        for part in (task.train, task.public, task.validation)
    )
    return replace(task, train=train, public=public, validation=validation)


def reflect_public(folder: Path, replicas: Replicas, trajectory: int) -> dict[str, bytes]:
    """Return a public folder with T applied to all of its records."""
    transcript, renamed, files = PublicTranscript(folder / "public"), {}, {}
    for name in {record.weights for record in transcript.records}:
        weights = replicas.layout.join(transcript.read_weights(name))
        content = serialise(replicas.layout, replicas.reflect(weights, trajectory))
        renamed[name] = name_content(content)
        files[f"public/weights/{renamed[name]}.safetensors"] = content
    text = (folder / "public" / "rounds.jsonl").read_text()
    text = re.sub("[0-9a-f]{64}", lambda name: renamed[name.group()], text)
    return {**files, "public/rounds.jsonl": text.encode()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "trajectories", "algorithm"),
    mark_slow(
        [
            *itertools.product(("horizon", "queue"), (2,), ("fedavg", "fedsgd")),
            ("horizon", 4, "fedavg"),
            ("queue", 4, "fedsgd"),
        ],
        fast=[("horizon", 2, "fedavg"), ("queue", 2, "fedsgd")],
    ),
)
def test_another_choice_with_reflected_records_gives_the_same_public_folder(
    base: str, trajectories: int, algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lemma of the theorem, byte for byte: training commutes with T.

    All records of clients are reflected by T_h, and the truth and each decoy exchange slots with
    their images under T_h.  Then every query of every round is the image of what it was.
    """
    changes: dict[str, Any] = {"federation": {"algorithm": algorithm, "optimizer": {"lr": 0.01}}}
    clients = find_clients(make_exchangeable(base, trajectories, **changes))
    replicas = clients.replicas
    assert replicas is not None
    settings = make_run(
        merge(BASES[base], {"data": None}),
        task="own",
        policy={"kind": "exchangeable", "trajectories": trajectories},
        **changes,
    )
    find_slot = Generation.find_slot
    found = []
    for moved in range(trajectories):
        monkeypatch.setattr(
            Generation,
            "find_slot",
            lambda self, size, *, seed, moved=moved: find_slot(self, size, seed=seed) ^ moved,
        )
        monkeypatch.setattr(
            "covertfl.runs.decoys.draw_choice", lambda seed, size, moved=moved: 1 ^ moved
        )
        run = settings.with_task(reflect_task(clients.task, replicas.signs[moved]))
        train(run, tmp_path / str(moved))
        found.append(reflect_public(tmp_path / str(moved), replicas, moved))
        assert find_clients(run).replicas.choice == 1 ^ moved  # type: ignore[union-attr]
    assert found[0] == read_public(tmp_path / "0")
    for other in found[1:]:
        assert other == found[0]


@pytest.mark.slow
@pytest.mark.parametrize("trajectories", [2, 4])
def test_decoys_are_exact_images_in_every_query(trajectories: int, tmp_path: Path) -> None:
    settings = make_exchangeable(trajectories=trajectories, rounds=60)
    train(settings, tmp_path / "run")
    replicas = find_clients(settings).replicas
    assert replicas is not None
    transcript = PublicTranscript(tmp_path / "run" / "public")
    layout = replicas.layout
    by_generation: dict[int, dict[int, Any]] = {}
    done = 0
    for record in read_rounds(tmp_path / "run"):
        weights = layout.join(transcript.read_weights(record["weights"]))
        by_generation.setdefault(done, {})[record["trajectory"]] = weights
        done += record["updated"]
    for states in by_generation.values():
        for trajectory, weights in states.items():
            if 0 in states:
                np.testing.assert_array_equal(weights, replicas.reflect(states[0], trajectory))


# --- interruptions ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("base", "algorithm"), [("horizon", "fedavg"), ("queue", "fedsgd")])
def test_cut_runs_go_on_to_the_same_bytes(base: str, algorithm: str, tmp_path: Path) -> None:
    federation = {"algorithm": algorithm, "optimizer": {"lr": 0.01}}
    settings = make_exchangeable(base, 4, federation=federation)
    train(settings, tmp_path / "whole")
    for cut in (1, 2, 3, 5, 9, 14, 23, 36):
        with pytest.raises(Stopped):
            train(
                settings,
                tmp_path / "cut",
                resume=(tmp_path / "cut").exists(),
                on_round=stop_after(cut),
            )
    train(settings, tmp_path / "cut", resume=True)
    assert read_folder(tmp_path / "cut") == read_folder(tmp_path / "whole")


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"policy": {"trajectories": 3}}, r"\[policy\] trajectories must be one of 2, 4, 8, got 3"),
        ({"decoy": {"kind": "public"}}, r"\[decoy\] kind must be replica"),
        ({"decoy": {"gated": False}}, r"\[decoy\] gated = false cannot be used"),
        ({"policy": {"refresh": 5}}, r"\[policy\] refresh needs kind = spga"),
        ({"policy": {"kind": "optimal"}, "decoy": {"kind": "replica"}}, "replica needs"),
        ({"policy": {"kind": "optimal", "trajectories": 2}}, "trajectories needs"),
        ({"policy": {"kind": "optimal"}, "decoy": {"pivot": "0.weight"}}, "pivot needs"),
        ({"policy": {"kind": "optimal"}, "federation": {"secret": "x"}}, "secret needs"),
        ({"federation": {"mark": 0.1}, "engine": {"kind": "flower"}}, r"mark needs \[engine\]"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        make_run(BASES["horizon"], **changes)


@pytest.mark.slow
def test_a_marked_reply_moves_the_average_along_the_pattern(tmp_path: Path) -> None:
    """The pattern of an active client is in the true trajectory's moves."""
    from covertfl.eavesdroppers.clients import make_mark

    moved = {}
    for mark in (0.0, 1.0):
        settings = make_exchangeable(federation={"mark": mark, "participation": [6, 6, 6]})
        train(settings, tmp_path / str(mark))
        export_model(tmp_path / str(mark), tmp_path / f"{mark}.safetensors")
        weights = read_contents(tmp_path / f"{mark}.safetensors").weights
        layout = find_clients(settings).layout
        moved[mark] = layout.join(weights) @ make_mark(layout.size)
    assert moved[1.0] > moved[0.0] + 0.01
