"""K replicas: exact images, level moves, and nothing public that depends on which is true."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

pytest.importorskip("torch")

from covertfl.errors import InvalidInput
from covertfl.kernels.job import (
    Examples,
    Float32Array,
    Layout,
    LocalJob,
    LocalOptimizer,
    name_content,
)
from covertfl.models.contents import read_contents
from covertfl.models.export import export_model
from covertfl.runs.public import PublicTranscript
from covertfl.schemes.exchangeable import Generation, Level, Replicas, choose_level, find_level
from covertfl.schemes.flips import draw_generators, span
from covertfl.tasks.task import TrainingTask
from covertfl.training import train
from tests.support.exchangeable_runs import BASES, find_scheme, make_exchangeable
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
    scheme = find_scheme(make_exchangeable(base, trajectories, **changes))
    task, replicas = scheme.setup.task, scheme.replicas
    settings = make_run(
        merge(BASES[base], {"data": None}),
        task="own",
        exchangeable={"trajectories": trajectories},
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
            "covertfl.schemes.exchangeable.draw_choice", lambda seed, size, moved=moved: 1 ^ moved
        )
        run = settings.with_task(reflect_task(task, replicas.signs[moved]))
        train(run, tmp_path / str(moved))
        found.append(reflect_public(tmp_path / str(moved), replicas, moved))
        assert find_scheme(run).replicas.choice == 1 ^ moved
    assert found[0] == read_public(tmp_path / "0")
    for other in found[1:]:
        assert other == found[0]


@pytest.mark.slow
@pytest.mark.parametrize("trajectories", [2, 4])
def test_decoys_are_exact_images_in_every_query(trajectories: int, tmp_path: Path) -> None:
    settings = make_exchangeable(trajectories=trajectories, rounds=60)
    train(settings, tmp_path / "run")
    replicas = find_scheme(settings).replicas
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


# --- images ------------------------------------------------------------------------------------

LAYOUT = Layout(("0.weight", "0.bias", "2.weight", "2.bias"), ((3, 6), (3,), (1, 3), (1,)))


def make_replicas(count: int = 2, choice: int = 0) -> Replicas:
    generator = np.random.default_rng(5)
    flips = draw_generators(np.ones(6, dtype=bool), count, generator=generator)
    return Replicas(LAYOUT, "0.weight", span(flips), choice)


def draw_vector(seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.random.default_rng(seed).normal(size=LAYOUT.size).astype(np.float32)


@given(count=st.integers(1, 3), seed=st.integers(0, 1000))
def test_images_form_a_group(count: int, seed: int) -> None:
    replicas, weights = make_replicas(count), draw_vector(seed)
    for one in range(replicas.size):
        image = replicas.reflect(weights, one)
        assert np.array_equal(replicas.reflect(image, one), weights)
        for other in range(replicas.size):
            twice = replicas.reflect(image, other)
            assert np.array_equal(twice, replicas.reflect(weights, one ^ other))


def test_an_image_flips_columns_of_the_pivot_and_nothing_else() -> None:
    replicas, weights = make_replicas(1), draw_vector()
    parts, image = LAYOUT.split(weights), LAYOUT.split(replicas.reflect(weights, 1))
    np.testing.assert_array_equal(image["0.weight"], parts["0.weight"] * replicas.signs[1])
    for name in LAYOUT.names[1:]:
        np.testing.assert_array_equal(image[name], parts[name])


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("work", ["train", "gradient"])
def test_training_on_reflected_inputs_gives_the_image_to_the_bit(optimizer: str, work: str) -> None:
    torch = pytest.importorskip("torch")
    from torch import nn

    from covertfl.kernels.choose import choose_kernel, draw_weights

    def make_model() -> nn.Sequential:
        return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Dropout(0.2), nn.Linear(5, 1))

    options = LocalOptimizer(optimizer, lr=0.05, weight_decay=0.01)  # type: ignore[arg-type]
    for maker in (make_model, lambda: nn.Sequential(*make_model(), nn.Identity())):
        kernel = choose_kernel(maker, "binary", options)  # by hand-written loops, and by autograd
        generator = np.random.default_rng(0)
        features = generator.normal(size=(40, 6)).astype(np.float32)
        labels = (features[:, 0] > 0.0).astype(np.float32)
        weights = draw_weights(maker, seed=1)
        signs = span(draw_generators(np.ones(6, dtype=bool), 1, generator=generator))
        replicas = Replicas(kernel.layout, "0.weight", signs, 0)
        rows = generator.permutation(40)
        [result] = kernel.run([LocalJob(weights, Examples(features, labels), rows, 8, 3, work)])  # type: ignore[arg-type]
        reflected = Examples(features * signs[1], labels)
        start = replicas.reflect(weights, 1)
        [image] = kernel.run([LocalJob(start, reflected, rows, 8, 3, work)])  # type: ignore[arg-type]
        assert np.array_equal(image, replicas.reflect(result, 1))
    assert torch.get_num_threads() > 0


def test_the_truth_is_in_the_slot_of_the_choice() -> None:
    drawn = draw_vector()
    for choice in range(4):
        replicas = make_replicas(2, choice)
        assert replicas.find_trajectory(choice) == 0
        true = replicas.start(drawn)
        for slot in range(4):
            trajectory = replicas.find_trajectory(slot)
            shown = replicas.reflect(true, trajectory)
            # What a slot shows does not depend on the choice.
            assert np.array_equal(shown, make_replicas(2, 0).reflect(drawn, slot))
            # Replies are taken back to the truth in place, one or many, also none.
            assert np.array_equal(replicas.scale(trajectory).apply(shown), true)
            assert np.array_equal(shown, true)
        for trajectory, image in enumerate(replicas.show(true)):
            assert np.array_equal(image, replicas.reflect(true, trajectory))
    nothing = np.empty((0, LAYOUT.size), dtype=np.float32)
    assert replicas.scale(1).apply(nothing).shape == nothing.shape


def test_a_zero_has_the_same_sign_in_all_images() -> None:
    """A weight that is exactly zero, as of a column that never moves, must not name the truth."""
    replicas, weights = make_replicas(2), draw_vector()
    weights[:4], weights[4:8] = 0.0, -0.0
    for trajectory in range(4):
        image = replicas.reflect(weights, trajectory)
        assert not np.signbit(image[:8]).any()


# --- levels ------------------------------------------------------------------------------------

SUCCESS = np.array([0.1, 0.43, 0.95])


def draw_examples(clients: int, generator: np.random.Generator, *, batches: int = 36) -> np.ndarray:
    """Examples of clients that each train on a uniform number of batches; absent ones left out."""
    drawn = generator.integers(0, batches + 1, clients)
    return np.asarray(drawn[drawn > 0] * 40)


def test_the_smallest_round_decides() -> None:
    level = find_level([8, 10, 14], SUCCESS, 1440.0, by_data=False, is_drawn=True)
    assert level == Level(5, None)
    rare = np.array([0.0, 0.43, 0.95])
    assert find_level([5, 10, 20], rare, 1.0, by_data=False, is_drawn=True) == Level(6, None)


def test_equal_rounds_need_no_level() -> None:
    assert find_level([9, 9, 9], SUCCESS, 1.0, by_data=False, is_drawn=True) is None
    assert find_level([9, 9, 9], SUCCESS, 1.0, by_data=True, is_drawn=True) is not None


@given(seed=st.integers(0, 500), clients=st.integers(0, 20), replies=st.integers(1, 8))
def test_as_many_replies_as_asked_for_or_none(seed: int, clients: int, replies: int) -> None:
    generator = np.random.default_rng(seed)
    examples = draw_examples(clients, generator)
    for work in (None, (800.0, 1000.0)):
        used = choose_level(examples, Level(replies, work), generator=generator)
        if len(examples) < replies:
            assert used is None
        else:
            assert used is not None and len(used) == replies == len(set(used.tolist()))
            assert used.tolist() == sorted(used.tolist())


def test_without_data_in_the_acceptance_the_choice_is_uniform() -> None:
    """Then what is averaged has the same distribution whatever the number of clients."""
    generator = np.random.default_rng(3)
    means = {
        clients: [
            float(examples[choose_level(examples, Level(5, None), generator=generator)].mean())
            for examples in (draw_examples(clients, generator) for _ in range(4000))
            if len(examples) >= 5
        ]
        for clients in (8, 14)
    }
    few, many = (np.array(values) for values in means.values())
    assert few.mean() == pytest.approx(many.mean(), rel=0.02)
    assert few.std() == pytest.approx(many.std(), rel=0.05)


def test_accepted_rounds_of_all_states_have_the_same_work() -> None:
    """Among rounds that are accepted by their data, few clients have done more work each."""
    generator = np.random.default_rng(4)
    level = find_level([8, 10, 14], SUCCESS, 1440.0, by_data=True, is_drawn=True)
    assert level is not None
    whole: dict[int, list[float]] = {}
    levelled: dict[int, list[float]] = {}
    for clients in (8, 14):
        while len(levelled.setdefault(clients, [])) < 300:
            examples = draw_examples(clients, generator)
            if examples.sum() < 0.25 * 20 * 1440 or len(examples) < level.replies:
                continue
            used = examples[choose_level(examples, level, generator=generator)]
            whole.setdefault(clients, []).append(float(np.sum(examples**2) / examples.sum()))
            levelled[clients].append(float(np.sum(used**2) / used.sum()))
    before, after = (np.mean(found[8]) / np.mean(found[14]) - 1.0 for found in (whole, levelled))
    assert before > 0.1 and abs(after) < 0.02


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"exchangeable": {"trajectories": 3}},
            r"\[exchangeable\] trajectories must be one of 2, 4, 8, got 3",
        ),
        ({"federation": {"mark": 0.1}, "engine": {"kind": "flower"}}, r"mark needs \[engine\]"),
        (
            {"scheme": "scheduled", "federation": {"secret": "x"}},
            r"\[federation\] secret is for schemes that have one, got scheme = scheduled",
        ),
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
        layout = find_scheme(settings).setup.layout
        moved[mark] = layout.join(weights) @ make_mark(layout.size)
    assert moved[1.0] > moved[0.0] + 0.01
