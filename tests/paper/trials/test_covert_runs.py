"""Runs without files are the runs that training makes, to the bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pytest

pytest.importorskip("torch")

from paper.trials.batches import run_walks
from paper.trials.cells import CellStore
from paper.trials.covert_runs import CovertRuns, Eavesdropping, RunOutcome
from paper.trials.scorer import Scorer
from paper.trials.setups import PublicData, Setup, load_task, make_run_content
from paper.trials.trial import Trial, prepare_trial
from paper.trials.walks import Trajectory, walk_truth

from covertfl.auditing.run import RunAudit, audit_run
from covertfl.decision.oracle import compute_stationary_distribution
from covertfl.decision.problem_file import read_preset
from covertfl.kernels.chain import Moves, RatedChain, Stops
from covertfl.kernels.job import Examples, LocalJob, LocalKernel
from covertfl.kernels.weights import Vector
from covertfl.models.export import export_model
from covertfl.runs.build import KernelCache
from covertfl.runs.federation import Federation
from covertfl.runs.files import read_lines
from covertfl.runs.participation import draw_state
from covertfl.runs.run_file import build_run
from covertfl.tasks.scores import score_accuracy
from covertfl.tasks.task import TrainingTask
from covertfl.training import train

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
    summary = train(settings, folder)[0].to_dict()
    records = list(read_lines(folder / "private" / "rounds.jsonl"))
    return audit_run(folder, KernelCache(), names=["majority"]), summary, records


def work_out_one(setup: Setup, policy: str, decoy: str, folder: Path) -> RunOutcome:
    run = prepare_trial(setup, policy, 5, KernelCache())
    worker = CovertRuns(CellStore(folder))
    return worker.work_out([run], [Eavesdropping(PublicData(), decoy)])[0, 0]


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
    found = work_out_one(setup, policy, decoy, tmp_path / "cells")
    assert found.learner == pytest.approx(audited.learner, abs=1e-8)
    accuracy = audited.findings["majority"].accuracy
    assert found.eavesdropper == pytest.approx(accuracy, abs=1e-8)
    assert found.final == found.eavesdropper[-1]
    assert found.peak == max(found.eavesdropper)
    assert found.named == audited.findings["majority"].named
    assert found.completed == summary["completed"]
    assert found.exposure == pytest.approx(summary["exposure"])
    assert found.updates == summary["updates_done"] == sum(entry["updated"] for entry in records)


def test_weights_are_those_of_training(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    train_the_same(SETUP, "optimal", "public", tmp_path / "run")
    export_model(tmp_path / "run", tmp_path / "model.safetensors")
    run = prepare_trial(SETUP, "optimal", 5, KernelCache())
    scorer = Scorer(run.clients.task, run.clients.kernel)
    walk = walk_truth(run.clients, run.schedule, scorer, keeps_weights=True)
    (truth,) = run_walks([(run.clients.kernel, walk)])
    layout = run.clients.layout
    exported = layout.join(load_file(tmp_path / "model.safetensors"))
    assert truth.weights[-1].tobytes() == exported.tobytes()


def test_every_seed_is_scored_on_its_own_validation_set(tmp_path: Path) -> None:
    """Also if another seed is worked out first: its clients may train on what is held out here."""
    kernels = KernelCache()
    runs = [prepare_trial(SETUP, "optimal", seed, kernels) for seed in (4, 5)]
    together = CovertRuns(CellStore(tmp_path)).work_out(runs, [Eavesdropping(PublicData())])
    alone = work_out_one(SETUP, "optimal", "public", tmp_path / "alone")
    assert together[1, 0].learner == alone.learner
    assert together[1, 0].eavesdropper == alone.eavesdropper
    assert together[0, 0].learner[0] != alone.learner[0]


def test_policies_that_act_alike_are_trained_once(tmp_path: Path) -> None:
    kernels = KernelCache()
    (run,) = [prepare_trial(SETUP, "optimal", 5, kernels)]
    trials = [replace(run, policy=name) for name in ("optimal", "other")]
    for decoy in ("public", "adversarial"):
        against = [Eavesdropping(PublicData(), decoy)]
        one = CovertRuns(CellStore(tmp_path / decoy / "one"))
        both = CovertRuns(CellStore(tmp_path / decoy / "both"))
        first = one.work_out([run], against)[0, 0]
        found = both.work_out(trials, against)
        assert both.examples == one.examples > 0
        assert vars(found[0, 0]) == vars(found[1, 0]) == vars(first)


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


def test_cells_are_not_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = work_out_one(SETUP, "optimal", "public", tmp_path)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("trained again")

    monkeypatch.setattr("paper.trials.covert_runs.walk_truth", refuse)
    monkeypatch.setattr("paper.trials.covert_runs.walk_decoy", refuse)
    second = work_out_one(SETUP, "optimal", "public", tmp_path)
    assert vars(second) == vars(first)


@pytest.mark.parametrize("decoy", ["public", "adversarial"])
def test_batches_do_not_matter(decoy: str, tmp_path: Path) -> None:
    """Nor what the policies of a seed have in common: they move both trajectories differently."""
    kernels, names = KernelCache(), ("greedy", "optimal", "random")
    runs = [prepare_trial(SETUP, policy, 28, kernels) for policy in names]
    for learns in (True, False):
        assert len({tuple(run.schedule.list_queries(learns=learns)) for run in runs}) == 3
    against = [Eavesdropping(PublicData(size=size), decoy) for size in (0.5, 1.0)]
    together = CovertRuns(CellStore(tmp_path / "a")).work_out(runs, against)
    apart = CovertRuns(CellStore(tmp_path / "b")).work_out(runs, against, at_once=1)
    assert {place: vars(outcome) for place, outcome in together.items()} == {
        place: vars(outcome) for place, outcome in apart.items()
    }


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


def test_a_dirichlet_split_makes_clients_differ() -> None:
    alike, differing = (load_task(replace(SETUP, split=a), 3, PublicData()) for a in (None, 0.1))

    def largest_share(task: TrainingTask) -> float:
        counts = [
            np.unique(task.train.labels[rows], return_counts=True)[1] for rows in task.clients
        ]
        return float(np.mean([count.max() / count.sum() for count in counts]))

    assert largest_share(differing) > 1.2 * largest_share(alike)


def test_coarse_scores_are_replaced_by_full_ones_where_they_count(tmp_path: Path) -> None:
    run = prepare_trial(SETUP, "optimal", 5, KernelCache())
    against = [Eavesdropping(PublicData())]
    exact = CovertRuns(CellStore(tmp_path)).work_out([run], against)[0, 0]
    coarse = CovertRuns(CellStore(tmp_path), stride=7).work_out([run], against)[0, 0]
    assert coarse.final == pytest.approx(exact.final, abs=1e-6)
    assert coarse.learner[-1] == pytest.approx(exact.learner[-1], abs=1e-6)
    assert coarse.peak <= exact.peak + 1e-6
    assert coarse.eavesdropper != pytest.approx(exact.eavesdropper, abs=1e-6)


class OnDevice:
    """A kernel that predicts, averages results and follows chains for many, as a GPU's does."""

    def __init__(self, kernel: LocalKernel) -> None:
        self._kernel, self.calls = kernel, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def predict_many(self, weights: Any, features: Any) -> Any:
        self.calls += 1
        return np.stack([self._kernel.predict(each, features) for each in weights])

    def average_jobs(self, groups: Sequence[Sequence[LocalJob]]) -> list[Vector]:
        self.calls += 1
        means = []
        for group in groups:
            results, rows = self._kernel.run(group), [len(job.rows) for job in group]
            means.append(np.average(results, axis=0, weights=rows).astype(np.float32))
        return means

    def rate_chains(
        self,
        chains: Sequence[Moves],
        stops: Sequence[Stops],
        *,
        coarse: Examples,
        full: Examples,
        on_examples: Callable[[int], None] | None = None,
    ) -> list[RatedChain]:
        self.calls += 1
        return [
            self._rate_chain(chain, places, coarse, full)
            for chain, places in zip(chains, stops, strict=True)
        ]

    def _rate_chain(
        self, chain: Moves, stops: Stops, coarse: Examples, full: Examples
    ) -> RatedChain:
        held = [chain[0][0].weights]
        for move in chain:
            held += self.average_jobs([[replace(job, weights=held[-1]) for job in move]])
        rated = np.array([self._count_right(held[stop], coarse) for stop in stops.coarse])
        places = {*stops.full, stops.coarse[int(rated.argmax())]}
        exact = {stop: self._count_right(held[stop], full) for stop in places}
        return RatedChain(rated, exact, bool(np.isfinite(held[-1]).all()))

    def _count_right(self, weights: Vector, examples: Examples) -> float:
        outputs = self._kernel.predict(weights, examples.features)
        return score_accuracy(outputs, examples.labels, "multiclass")


def test_rating_many_weights_at_once_changes_nothing() -> None:
    run = prepare_trial(SETUP, "optimal", 5, KernelCache())
    weights = [run.clients.first_weights(seed) for seed in (1, 2)]
    kernel = OnDevice(run.clients.kernel)
    here = Scorer(run.clients.task, run.clients.kernel, stride=3)
    there = Scorer(run.clients.task, cast(LocalKernel, kernel), stride=3)
    for fully in (True, False):
        assert there.rate(weights, fully=fully) == here.rate(weights, fully=fully)
    assert kernel.calls == 2
    assert here.rate(weights, fully=True) != here.rate(weights, fully=False)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd"])
@pytest.mark.parametrize("stride", [1, 7])
def test_where_means_and_chains_are_worked_out_changes_nothing(
    algorithm: Literal["fedavg", "fedsgd"], stride: int, tmp_path: Path
) -> None:
    kernels, setup = KernelCache(), replace(SETUP, algorithm=algorithm)
    runs = [prepare_trial(setup, policy, 5, kernels) for policy in ("greedy", "optimal")]
    against = [Eavesdropping(PublicData(size=size)) for size in (0.5, 1.0)]
    device = OnDevice(runs[0].clients.kernel)

    def move(run: Trial) -> Trial:
        clients = replace(run.clients, kernel=cast(LocalKernel, device))
        return replace(run, prepare=lambda: replace(run.federation, responder=clients))

    moved = [move(run) for run in runs]
    here = CovertRuns(CellStore(tmp_path / "a"), stride=stride).work_out(runs, against)
    there = CovertRuns(CellStore(tmp_path / "b"), stride=stride).work_out(moved, against)
    assert device.calls > 2
    assert {place: vars(outcome) for place, outcome in here.items()} == {
        place: vars(outcome) for place, outcome in there.items()
    }


def test_outcomes_in_the_store_need_no_preparation(tmp_path: Path) -> None:
    """A second call reads them, and counts the same examples and about the same time."""
    kernels = KernelCache()
    runs = [prepare_trial(SETUP, policy, 5, kernels) for policy in ("greedy", "optimal")]
    against = [Eavesdropping(PublicData(size=size)) for size in (0.5, 1.0)]
    first, again = CellStore(tmp_path), CellStore(tmp_path)
    worker, reader = CovertRuns(first), CovertRuns(again)
    computed = worker.work_out(runs, against)

    def refuse() -> Federation:
        raise AssertionError("nothing is left to prepare")

    read = reader.work_out([replace(run, prepare=refuse) for run in runs], against)
    assert {place: vars(one) for place, one in read.items()} == {
        place: vars(one) for place, one in computed.items()
    }
    assert reader.examples == worker.examples > 0
    assert again.seconds == pytest.approx(first.seconds) and first.seconds > 0.0
    with pytest.raises(AssertionError, match="nothing is left"):
        more = [*against, Eavesdropping(PublicData(size=0.25))]
        reader.work_out([replace(runs[0], prepare=refuse)], more)


def test_a_reply_that_is_not_finite_is_left_out_of_a_mean() -> None:
    run = prepare_trial(SETUP, "optimal", 5, KernelCache())

    class Spoiling(OnDevice):
        def run(self, jobs: Sequence[LocalJob]) -> list[Vector]:
            results = self._kernel.run(jobs)
            return [results[0] * np.float32(np.nan), *results[1:]]

        def average_jobs(self, groups: Sequence[Sequence[LocalJob]]) -> list[Vector]:
            return [np.average(self.run(group), axis=0).astype(np.float32) for group in groups]

    kernel = cast(LocalKernel, Spoiling(run.clients.kernel))
    clients = replace(run.clients, kernel=kernel)
    scorer = Scorer(clients.task, clients.kernel)
    walk = walk_truth(clients, run.schedule, scorer, keeps_weights=True)
    (truth,) = run_walks([(kernel, walk)])
    assert all(np.isfinite(weights).all() for weights in truth.weights)


def test_threads_change_nothing() -> None:
    run = prepare_trial(SETUP, "optimal", 5, KernelCache())
    scorer = Scorer(run.clients.task, run.clients.kernel)

    def walk(threads: int) -> list[Trajectory]:
        walks = [walk_truth(run.clients, run.schedule, scorer) for _ in range(3)]
        return run_walks([(run.clients.kernel, each) for each in walks], threads=threads)

    assert [found.full for found in walk(1)] == [found.full for found in walk(3)]
