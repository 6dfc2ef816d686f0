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

from covertfl.decoys.replica import Offsets, Replicas, draw_offsets, draw_order
from covertfl.errors import InvalidInput
from covertfl.kernels.job import Examples
from covertfl.kernels.weights import Float32Array, name_content
from covertfl.models.contents import read_contents
from covertfl.models.export import export_model
from covertfl.runs import generations
from covertfl.runs.generations import Generation
from covertfl.runs.public import PublicTranscript
from covertfl.tasks.task import TrainingTask
from covertfl.training import train
from tests.support.exchangeable_runs import BASES, GUARDS, find_clients, make_exchangeable
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
        tuple(Generation(number, place).find_slot(2, seed=7) for place in range(2))
        for number in range(1000)
    )
    assert set(seen) == {(0, 1), (1, 0)} and 440 < seen[0, 1] < 560


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


def exchange_offsets(size: int, generator: np.random.Generator, moved: int) -> tuple[Offsets, ...]:
    """Draw offsets, which belong to slots, and exchange the slots."""
    drawn = draw_offsets(size, generator=generator)
    return tuple(drawn[slot ^ moved] for slot in range(size))


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
    ("base", "trajectories", "guard", "algorithm"),
    mark_slow(
        [
            *itertools.product(("horizon", "queue"), (2,), GUARDS, ("fedavg", "fedsgd")),
            *(("horizon", 4, guard, "fedavg") for guard in GUARDS),
            ("queue", 4, "listener", "fedsgd"),
        ],
        fast=[("horizon", 2, "listener", "fedavg"), ("queue", 2, "client", "fedsgd")],
    ),
)
def test_another_choice_with_reflected_records_gives_the_same_public_folder(
    base: str,
    trajectories: int,
    guard: str,
    algorithm: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lemma of the theorem, byte for byte: training commutes with T.

    All records of clients are reflected by T_h, and the truth and each decoy exchange slots with
    their images under T_h.  Then every query of every round is the image of what it was.
    """
    changes: dict[str, Any] = {
        "decoy": {"guard": guard},
        "federation": {"algorithm": algorithm, "optimizer": {"lr": 0.01}},
    }
    clients = find_clients(make_exchangeable(base, trajectories, **changes))
    replicas = clients.images
    assert replicas is not None
    settings = make_run(
        merge(BASES[base], {"data": None}),
        task="own",
        policy={"kind": "exchangeable", "trajectories": trajectories},
        **changes,
    )
    draw = draw_order
    found = []
    for moved in range(trajectories):
        monkeypatch.setattr(
            generations,
            "draw_order",
            lambda size, generator, moved=moved: [
                slot ^ moved for slot in draw(size, generator=generator)
            ],
        )
        monkeypatch.setattr(
            "covertfl.runs.decoys.draw_choice", lambda seed, size, moved=moved: 1 ^ moved
        )
        monkeypatch.setattr(
            "covertfl.runs.decoys.draw_offsets",
            lambda size, generator, moved=moved: exchange_offsets(size, generator, moved),
        )
        run = settings.with_task(reflect_task(clients.task, replicas.signs[moved]))
        train(run, tmp_path / str(moved))
        found.append(reflect_public(tmp_path / str(moved), replicas, moved))
        assert find_clients(run).images.choice == 1 ^ moved  # type: ignore[union-attr]
    assert found[0] == read_public(tmp_path / "0")
    for other in found[1:]:
        assert other == found[0]


@pytest.mark.slow
@pytest.mark.parametrize("trajectories", [2, 4])
def test_decoys_are_exact_images_in_every_query(trajectories: int, tmp_path: Path) -> None:
    settings = make_exchangeable(trajectories=trajectories, rounds=60)
    train(settings, tmp_path / "run")
    replicas = find_clients(settings).images
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


# --- guards -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("guard", ["public", "client"])
def test_offsets_are_sent_but_not_part_of_the_model(guard: str, tmp_path: Path) -> None:
    plain, guarded = (
        make_exchangeable(rounds=60, decoy={"guard": kind}) for kind in ("listener", guard)
    )
    for name, settings in (("plain", plain), ("guarded", guarded)):
        train(settings, tmp_path / name)
    replicas = find_clients(guarded).images
    assert replicas is not None and len(replicas.offsets) == 2
    first = [read_rounds(tmp_path / name)[0] for name in ("plain", "guarded")]
    layout, sent = replicas.layout, []
    for name, record in zip(("plain", "guarded"), first, strict=True):
        transcript = PublicTranscript(tmp_path / name / "public")
        sent.append(layout.join(transcript.read_weights(record["weights"])))
    slot = first[1]["trajectory"] ^ replicas.choice
    ratio = layout.split(sent[1])["0.weight"] / layout.split(sent[0])["0.weight"]
    np.testing.assert_allclose(ratio, replicas.offsets[slot].find(0)[2], rtol=1e-5)


@pytest.mark.slow
def test_mixed_noise_has_the_decoys_replies_in_the_common_step(tmp_path: Path) -> None:
    runs = {}
    for guard in ("public", "client"):
        settings = make_exchangeable(rounds=60, decoy={"guard": guard})
        train(settings, tmp_path / guard)
        export_model(tmp_path / guard, tmp_path / f"{guard}.safetensors")
        runs[guard] = read_contents(tmp_path / f"{guard}.safetensors").weights
    assert any(
        not np.allclose(runs["public"][name], runs["client"][name]) for name in runs["public"]
    )


# --- interruptions ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "guard", "algorithm"),
    mark_slow(
        [
            *(("horizon", guard, "fedavg") for guard in GUARDS),
            *(("queue", guard, "fedsgd") for guard in GUARDS),
        ],
        fast=[("horizon", "client", "fedavg"), ("queue", "listener", "fedsgd")],
    ),
)
def test_cut_runs_go_on_to_the_same_bytes(
    base: str, guard: str, algorithm: str, tmp_path: Path
) -> None:
    federation = {"algorithm": algorithm, "optimizer": {"lr": 0.01}}
    settings = make_exchangeable(base, 4, decoy={"guard": guard}, federation=federation)
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
        ({"decoy": {"count": 3}}, r"\[decoy\] count must be 1"),
        ({"decoy": {"gated": False}}, r"\[decoy\] gated = false cannot be used"),
        ({"policy": {"refresh": 5}}, r"\[policy\] refresh needs kind = spga"),
        ({"policy": {"kind": "optimal"}, "decoy": {"kind": "replica"}}, "replica needs"),
        ({"policy": {"kind": "optimal", "trajectories": 2}}, "trajectories needs"),
        ({"policy": {"kind": "optimal"}, "decoy": {"guard": "public"}}, "guard needs"),
        ({"policy": {"kind": "optimal"}, "decoy": {"pivot": "0.weight"}}, "pivot needs"),
        ({"policy": {"kind": "optimal"}, "federation": {"secret": "x"}}, "secret needs"),
        ({"federation": {"mark": 0.1}, "engine": {"kind": "flower"}}, r"mark needs \[engine\]"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        make_run(BASES["horizon"], **changes)


def test_the_count_of_decoys_may_be_given() -> None:
    settings = make_exchangeable(trajectories=4, decoy={"count": 3})
    assert settings.sections.decoy.count == 3 and settings.sections.decoy.guard == "listener"


@pytest.mark.slow
def test_a_marked_reply_moves_the_average_along_the_pattern(tmp_path: Path) -> None:
    """The pattern of an active client is in the true trajectory's moves."""
    from covertfl.runs.clients import make_mark

    moved = {}
    for mark in (0.0, 1.0):
        settings = make_exchangeable(federation={"mark": mark, "participation": [6, 6, 6]})
        train(settings, tmp_path / str(mark))
        export_model(tmp_path / str(mark), tmp_path / f"{mark}.safetensors")
        weights = read_contents(tmp_path / f"{mark}.safetensors").weights
        layout = find_clients(settings).layout
        moved[mark] = layout.join(weights) @ make_mark(layout.size)
    assert moved[1.0] > moved[0.0] + 0.01
