"""Simulated runs of the same settings: in memory as on the disk, kept, private and reused."""

from __future__ import annotations

import dataclasses
import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from covertfl.auditing import rehearsal
from covertfl.auditing.folders import audit_folders
from covertfl.auditing.means import find_means
from covertfl.auditing.rehearsal import (
    REHEARSALS,
    Rehearsals,
    choose_seeds,
    find_obstacle,
    fix_federation,
    make_rehearsed,
    name_settings,
    rehearse,
)
from covertfl.auditing.run import audit_run, load_run
from covertfl.auditing.simulated import resample_clients, simulate, simulate_seeds
from covertfl.errors import InvalidInput
from covertfl.runs.build import KernelCache, build_federation
from covertfl.runs.clients import ClientResponder
from covertfl.runs.settings import LARGEST_SEED
from tests.support.audits import describe_findings
from tests.support.small_runs import make_run, read_folder, run_small

pytestmark = pytest.mark.slow

NAMES = ["majority", "validation", "train-alone"]


def test_a_run_in_memory_is_the_run_on_the_disk(tmp_path: Path) -> None:
    run_small(tmp_path / "run")
    stored = load_run(tmp_path / "run", KernelCache())
    (simulated,) = simulate([build_federation(make_run(), KernelCache())])
    assert len(simulated.queries) == len(stored.queries)
    for mine, theirs in zip(simulated.queries, stored.queries, strict=True):
        assert (mine.round, mine.trajectory, mine.moved) == (
            theirs.round,
            theirs.trajectory,
            theirs.moved,
        )
        assert np.array_equal(mine.weights, theirs.weights)
    without = [{**record, "weights": ""} for record in stored.private]
    assert [{**record, "weights": ""} for record in simulated.private] == without


def test_rehearsals_are_audits_of_runs_with_other_seeds(tmp_path: Path) -> None:
    settings = make_run()
    found = rehearse(settings, 2, Rehearsals(None, KernelCache()), names=NAMES)
    for number, audit in enumerate(found):
        run_small(tmp_path / str(number), seed=settings.seed + 1 + number)
        expected = audit_run(tmp_path / str(number), KernelCache(), names=NAMES)
        assert (audit.num_queries, audit.misplaced) == (expected.num_queries, expected.misplaced)
        for name in NAMES:
            mine, theirs = audit.findings[name], expected.findings[name]
            assert (mine.named, mine.belief, mine.baseline) == (
                theirs.named,
                theirs.belief,
                theirs.baseline,
            )
            assert mine.accuracy is not None and theirs.accuracy is not None
            assert mine.accuracy[-1] == theirs.accuracy[-1]


def test_results_are_kept_and_only_what_is_missing_is_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, settings = Rehearsals(tmp_path / "kept", KernelCache()), make_run()
    first = rehearse(settings, 2, kept, names=NAMES)
    (file,) = (tmp_path / "kept").iterdir()
    assert stat.S_IMODE((tmp_path / "kept").stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    simulated: list[int] = []
    real = simulate_seeds

    def watch(settings: Any, seeds: Any, *rest: Any, **options: Any) -> Any:
        simulated.extend(seeds)
        return real(settings, seeds, *rest, **options)

    monkeypatch.setattr(rehearsal, "simulate_seeds", watch)
    again = rehearse(settings, 3, kept, names=NAMES)
    assert simulated == [settings.seed + 3]
    assert list(map(describe_findings, again[:2])) == list(map(describe_findings, first))
    # A damaged file is made anew.
    file.write_text("[1]")
    (anew,) = rehearse(settings, 1, kept, names=NAMES)
    assert describe_findings(anew) == describe_findings(first[0])
    assert set(json.loads(file.read_text())) == {str(settings.seed + 1)}


def test_the_key_is_everything_but_the_seed_and_the_engine() -> None:
    settings = make_run()
    assert name_settings(settings) == name_settings(settings.with_seed(99))
    assert name_settings(settings) != name_settings(make_run(policy={"kind": "greedy"}))
    flower = make_run(engine={"kind": "flower"})
    assert name_settings(settings) == name_settings(flower)


def test_seeds_stay_in_their_range() -> None:
    last = make_run().with_seed(LARGEST_SEED)
    assert choose_seeds(last, 3, 1) == [0, 1, 2]


def test_an_audit_of_one_run_says_what_its_rules_achieve(copied: Path) -> None:
    before = read_folder(copied)
    report = audit_folders([copied], rehearsals=3, names=NAMES)
    (threat,) = (one for one in report.threats if one.name == "majority")
    assert threat.simulated is not None and threat.simulated.num_runs == 3
    assert "on 3 simulated runs of the same settings it is right in" in threat.verdict
    written = read_folder(copied).keys() - before.keys()
    assert {str(Path(name).parent) for name in written} == {REHEARSALS}
    assert audit_folders([copied], rehearsals=3, names=NAMES).threats == report.threats


def test_nothing_is_simulated_where_it_cannot_be(copied: Path, tmp_path: Path) -> None:
    assert find_obstacle(copied) is None
    notes = audit_folders([copied / "public"], rehearsals=2).notes
    assert (
        "No runs of the same settings were simulated: the settings are not in a public folder."
    ) in notes
    (copied / "summary.json").unlink()
    assert find_obstacle(copied) == "the run has not ended"
    with pytest.raises(InvalidInput, match="rehearsals must be 0 for several runs, got 2"):
        audit_folders([copied, copied], rehearsals=2)


def test_clients_resampled_from_the_public_set_hold_as_many_rows() -> None:
    federation = build_federation(make_run(), KernelCache())
    clients, made = federation.responder, resample_clients(federation).responder
    assert isinstance(clients, ClientResponder) and isinstance(made, ClientResponder)
    assert made.sizes.tolist() == clients.sizes.tolist()
    public = {row.tobytes() for row in clients.task.public.features}
    assert {row.tobytes() for row in made.task.train.features} <= public
    assert made.task.public is clients.task.public


def test_a_fixed_federation_has_the_same_clients_whatever_the_seed() -> None:
    settings = fix_federation(make_run())
    tasks = []
    for seed in (settings.seed, settings.seed + 1):
        responder = build_federation(settings.with_seed(seed), KernelCache()).responder
        assert isinstance(responder, ClientResponder)
        tasks.append(responder.task)
    for mine, theirs in zip(*(task.clients for task in tasks), strict=True):
        assert np.array_equal(mine, theirs)
    assert fix_federation(settings) is settings


@pytest.mark.parametrize("source", ["public", "federation"])
def test_figures_to_train_on_are_collected_once(source: Any, tmp_path: Path) -> None:
    kept, settings = Rehearsals(tmp_path, KernelCache()), fix_federation(make_run())
    made = make_rehearsed(settings, 4, kept, source=source)
    assert made.figures.shape[1:] == (2, len(made.names)) and len(made.truth) <= 4
    assert np.isfinite(made.figures).all()
    (file,) = tmp_path.iterdir()
    assert file.name == f"{name_settings(settings)}-{source}-4.npz"
    again = make_rehearsed(settings, 4, kept, source=source)
    assert np.array_equal(again.figures, made.figures) and again.names == made.names
    assert np.array_equal(again.truth, made.truth)
    file.write_bytes(b"PK nothing")
    anew = make_rehearsed(settings, 4, kept, source=source)
    assert np.array_equal(anew.figures, made.figures)


def test_trained_takes_part_only_where_it_was_trained(copied: Path) -> None:
    pytest.importorskip("sklearn")
    names = {threat.name for threat in audit_folders([copied], trained=4).threats}
    assert {"trained", "trained-public", "trained-listener"} <= names
    names = {threat.name for threat in audit_folders([copied]).threats}
    assert not {"trained", "trained-public", "trained-listener"} & names


def test_too_few_runs_to_train_on_are_refused() -> None:
    settings = fix_federation(make_run(policy={"kind": "always-learn"}))
    with pytest.raises(InvalidInput, match="at least 2 simulated runs"):
        make_rehearsed(settings, 2, Rehearsals(None, KernelCache()))


def test_means_of_a_marked_run_have_the_pattern(tmp_path: Path) -> None:
    run_small(tmp_path / "run", federation={"mark": 0.2})
    run = load_run(tmp_path / "run", KernelCache())
    assert run.means.mark is not None
    assert np.linalg.norm(run.means.mark) == pytest.approx(1.0)
    plain = build_federation(make_run(), KernelCache())
    assert find_means(plain).mark is None
    asked = frozenset(record["round"] for record in run.private if 0 in record["clients"])
    assert run.means.attended == asked and find_means(plain).attended is None
    assert run.clients is not None and run.means.fresh is not None
    assert len(run.means.fresh) == len(run.clients.task.clients[0])
    assert run.means.pivot == "0.weight" and run.means.trajectories == 2
    assert run.means.axes is not None
    mapped = build_federation(make_run(data={"map": "public"}), KernelCache())
    axes = find_means(mapped).axes
    assert axes is not None and np.array_equal(axes, np.eye(len(run.means.axes)))


def test_runs_of_one_federation_are_shown_to_two_runs(tmp_path: Path) -> None:
    for seed in (0, 1):
        run_small(tmp_path / f"seed-{seed}", seed=seed, data={"seed": 4})
    report = audit_folders([tmp_path])
    assert "two-runs" in {threat.name for threat in report.threats}


def test_exchangeable_runs_bound_everybody_by_a_guess(tmp_path: Path) -> None:
    run_small(
        tmp_path / "run",
        policy={"kind": "exchangeable", "trajectories": 2},
        decoy={"kind": "replica"},
    )
    run = load_run(tmp_path / "run", KernelCache())
    assert run.means.scheme is not None and run.means.scheme.exchangeable
    bound = audit_folders([tmp_path / "run"]).bound
    assert bound is not None and (bound.value, bound.low, bound.high) == (0.5, 0.5, 0.5)


def test_a_tie_of_all_counts_as_a_guess_among_k(copied: Path) -> None:
    run = load_run(copied, KernelCache())
    found = audit_folders([copied], names=["train-alone"], trajectories=4)
    assert dataclasses.replace(run, trajectories=4).means.trajectories == 4
    assert found.threats[0].names_true == 0.25 and found.threats[0].guess == 0.25
