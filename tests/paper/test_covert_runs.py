"""The runs of the tables are those that training makes, and what they have in common is shared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

pytest.importorskip("torch")

from paper import covert_runs
from paper.cells import CellStore
from paper.covert_runs import (
    Batch,
    Condition,
    Listening,
    PublicData,
    RunOutcome,
    Setup,
    compute_outcomes,
    load_task,
    make_run_content,
    train,
)

from covertfl.auditing.run import RunAudit, audit_run
from covertfl.decision.oracle import compute_stationary_distribution
from covertfl.decision.problem_file import read_preset
from covertfl.evaluation.horizon import HorizonEvaluation
from covertfl.runs.files import read_lines
from covertfl.runs.participation import draw_state
from covertfl.runs.settings import build_run
from covertfl.runs.state import start_run
from covertfl.runs.train import KernelCache
from covertfl.training import train as train_run
from tests.support.played_runs import build

SETUP = Setup(
    task="digits",
    reading="sound",
    rounds=14,
    updates=4,
    clients=6,
    participation=(2, 4, 6),
    model="logistic",
    acceptance="model",
)


def train_the_same(
    setup: Setup, policy: str, decoy: str, folder: Path
) -> tuple[RunAudit, dict[str, Any], list[dict[str, Any]]]:
    """The run as a run file describes it, trained and audited in the ordinary way."""
    content = make_run_content(setup, policy, 5, "cpu")
    content["task"], content["data"] = setup.task, {"model": setup.model}
    content["decoy"] = {"kind": decoy, "gated": False}
    settings = build_run(content, "run.toml", folder=Path())
    summary = train_run(settings, folder)[0].to_dict()
    records = list(read_lines(folder / "private" / "rounds.jsonl"))
    return audit_run(folder, KernelCache(), names=["majority"]), summary, records


def compute_one(setup: Setup, policy: str, decoy: str, folder: Path) -> RunOutcome:
    condition = Condition(policy, PublicData(), decoy)
    outcomes, _ = compute_outcomes(setup, [5], [condition], CellStore(folder))
    return outcomes[condition][0]


@pytest.mark.parametrize(
    ("policy", "decoy", "algorithm"),
    [
        ("optimal", "public", "fedavg"),
        ("greedy", "public", "fedsgd"),
        ("random", "public", "fedavg"),
        ("minority", "adversarial", "fedavg"),
    ],
)
def test_outcome_is_that_of_training(
    policy: str, decoy: str, algorithm: Literal["fedavg", "fedsgd"], tmp_path: Path
) -> None:
    setup = replace(SETUP, algorithm=algorithm)
    audited, summary, records = train_the_same(setup, policy, decoy, tmp_path / "run")
    found = compute_one(setup, policy, decoy, tmp_path / "cells")
    assert found.learner == pytest.approx(audited.learner, abs=1e-8)
    accuracy = audited.findings["majority"].accuracy
    assert found.eavesdropper == pytest.approx(accuracy, abs=1e-8)
    assert found.final == found.eavesdropper[-1]
    assert found.peak == max(found.eavesdropper)
    assert found.named == audited.findings["majority"].named
    assert found.completed == summary["completed"]
    assert found.exposure == pytest.approx(summary["exposure"])
    assert found.updates == summary["updates_done"] == sum(entry["updated"] for entry in records)


def train_all(
    setup: Setup, seeds: list[int], conditions: list[Condition], stride: int = 1
) -> tuple[dict[tuple[int, Condition], dict[str, Any]], int]:
    runs = tuple((seed, condition) for seed in seeds for condition in conditions)
    outcomes, examples = train(Batch(setup, runs, "cpu", stride))
    return dict(zip(runs, map(vars, outcomes), strict=True)), examples


@pytest.mark.parametrize("decoy", ["public", "adversarial"])
def test_batches_do_not_matter_and_what_is_common_is_trained_once(decoy: str) -> None:
    """Policies of a seed, and public sets, side by side and one by one; seeds differ in all."""
    policies, publics = ("greedy", "optimal", "random"), (PublicData(size=0.5), PublicData())
    conditions = [Condition(policy, public, decoy) for policy in policies for public in publics]
    together, examples = train_all(SETUP, [28, 4], conditions)
    apart: dict[tuple[int, Condition], dict[str, Any]] = {}
    alone = 0
    for seed in (28, 4):
        for condition in conditions:
            found, trained = train_all(SETUP, [seed], [condition])
            apart |= found
            alone += trained
    assert {place: str(one) for place, one in together.items()} == {
        place: str(one) for place, one in apart.items()
    }
    assert 0 < examples < 0.8 * alone
    learners = {seed: together[seed, conditions[0]]["learner"] for seed in (28, 4)}
    assert learners[28] != learners[4]


def test_policies_that_act_alike_are_trained_once() -> None:
    """The oracle states of seed 5 let both policies act alike in all rounds."""
    for decoy in ("public", "adversarial"):
        one, other = (Condition("optimal", PublicData(), decoy) for _ in range(2))
        found, examples = train_all(SETUP, [5], [one])
        both = train(Batch(SETUP, ((5, one), (5, other)), "cpu", 1))
        assert both[1] == examples > 0
        assert [str(vars(each)) for each in both[0]] == [str(found[5, one])] * 2


def test_part_of_the_images_for_the_course_and_all_of_them_for_the_end() -> None:
    condition = Condition("optimal", PublicData())
    whole, _ = train_all(SETUP, [5], [condition])
    part, _ = train_all(SETUP, [5], [condition], stride=4)
    (fine,), (coarse,) = whole.values(), part.values()
    for name in ("final", "named", "exposure", "completed", "updates"):
        assert coarse[name] == fine[name]
    assert coarse["learner"][-1] == fine["learner"][-1] and coarse["learner"] != fine["learner"]
    assert coarse["final"] <= coarse["peak"] <= fine["peak"]


def test_estimate_by_hand() -> None:
    """True, true (fails), decoy, decoy, decoy: a tie after four rounds, then the decoy."""
    federation = build(rounds=5)
    state = start_run(federation)
    true, decoy = [[np.full(1, n, np.float32) for n in range(4)] for _ in range(2)]
    scores = [[0.2, 0.8], [0.1, 0.4, 0.3, 0.9]]

    def make_state(number: int, updates: int, moves: int) -> Any:
        scheme = replace(
            state.scheme, true=true[updates], decoy=decoy[moves], updates=updates, moves=moves
        )
        queries = (min(number, 2), max(number - 2, 0))
        found = (scores[0][updates], scores[1][moves])
        return replace(
            state, round=number, scheme=scheme, updates=updates, queries=queries, scores=found
        )

    heard = Listening(make_state(0, 0, 0))
    for number, (updates, moves) in enumerate([(1, 0), (1, 0), (1, 1), (1, 2), (1, 3)], start=1):
        heard.hear(make_state(number, updates, moves))
    expected = HorizonEvaluation(0.0, 0.0, 2.0, 0.4, 0.5, 1.0, 0.5, 0.0)
    outcome = heard.judge(None, expected, 5)
    assert outcome.eavesdropper == pytest.approx([0.2, 0.8, 0.8, 0.6, 0.3])
    assert (outcome.peak, outcome.final, outcome.named) == (0.8, 0.3, 0.0)
    assert outcome.learner == [0.8] * 5
    assert outcome.exposure == pytest.approx(0.4)
    assert {place: float(one[0]) for place, one in heard.list_rated().items()} == {
        (0, 0): 0.0,
        (0, 1): 1.0,
        (1, 1): 1.0,
        (1, 2): 2.0,
    }


def test_cells_are_not_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compute_one(SETUP, "optimal", "public", tmp_path)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("trained again")

    monkeypatch.setattr(covert_runs, "train", refuse)
    second = compute_one(SETUP, "optimal", "public", tmp_path)
    assert vars(second) == vars(first)


def test_seeds_have_oracle_paths_of_their_own() -> None:
    """Two seeds agree in a round as often as two independent draws."""
    oracle, seeds, rounds = read_preset("sound/main").problem.oracle, 400, 20
    states = np.empty((seeds, rounds), dtype=int)
    for seed in range(seeds):
        before = -1
        for number in range(rounds):
            before = draw_state(oracle, None, before, number + 1, seed=seed)
            states[seed, number] = before
    stationary = compute_stationary_distribution(oracle)
    for state, prob in enumerate(stationary):
        shares = (states == state).mean(axis=1)
        assert abs(shares.mean() - prob) < 4.5 * shares.std() / np.sqrt(seeds)
    agree = (states[1::2] == states[::2]).mean(axis=1)
    expected = float(stationary @ stationary)
    assert abs(agree.mean() - expected) < 4.5 * agree.std() / np.sqrt(len(agree))


def test_clients_do_not_depend_on_the_public_set() -> None:
    some, other = (load_task(SETUP, 3, PublicData(size=size)) for size in (0.2, 1.0))
    assert len(some.public) < len(other.public)
    for first, second in zip(some.clients, other.clients, strict=True):
        assert np.array_equal(first, second)


def test_thinning_keeps_one_in_so_many() -> None:
    whole, thin = (load_task(replace(SETUP, thinning=n), 3, PublicData()) for n in (1, 4))
    assert [len(rows) for rows in thin.clients] == [-(-len(rows) // 4) for rows in whole.clients]
    assert len(thin.public) == -(-len(whole.public) // 4)
    assert len(thin.validation) == -(-len(whole.validation) // 4)


def test_clients_with_fewer_examples_are_rated_on_all() -> None:
    whole, thin = (load_task(replace(SETUP, client_thinning=n), 3, PublicData()) for n in (1, 4))
    for rows, kept in zip(whole.clients, thin.clients, strict=True):
        assert np.array_equal(kept, rows[::4])
    assert len(thin.validation) == len(whole.validation)
    assert len(thin.public) == len(whole.public)
