"""Simulated runs of the same settings: audited as trained ones, kept, private and reused."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import covertfl as cf
from covertfl.auditing.rehearsal import choose_seeds, fix_federation, name_settings
from covertfl.auditing.run import load_run
from covertfl.auditing.simulated import resample_clients
from covertfl.runs.train import KernelCache, build_federation
from tests.support.small_runs import HORIZON, make_run, read_folder, read_rounds, run_small

NAMES = ["majority", "validation", "train-alone"]


def read_kept(run: Path) -> tuple[Path, Any]:
    (file,) = (run / "private/rehearsals").iterdir()
    return file, json.loads(file.read_text())


def test_rehearsals_are_audits_of_runs_with_the_next_seeds(copied: Path, tmp_path: Path) -> None:
    before = read_folder(copied)
    report = cf.audit(copied, rehearsals=2, eavesdroppers=NAMES)
    for number in (1, 2):
        run_small(
            tmp_path / f"next/seed-{number}", seed=HORIZON["seed"] + number, decoy={"gated": False}
        )
    expected = cf.audit(tmp_path / "next", eavesdroppers=NAMES)
    for name in NAMES:
        threat, trained = report.find(name), expected.find(name)
        assert threat.simulated is not None
        # Simulated runs are scored at the end only, so that there is no curve.
        unknown = {"peak_accuracy": None, "accuracy_by_round": None}
        assert threat.simulated == replace(trained, **unknown)  # type: ignore[arg-type]
    majority = report.find("majority")
    assert "on 2 simulated runs of the same settings it is right in" in majority.verdict
    written = read_folder(copied).keys() - before.keys()
    assert {str(Path(name).parent) for name in written} == {"private/rehearsals"}


def test_results_are_kept_for_the_owner_and_only_what_is_missing_is_simulated(copied: Path) -> None:
    first = cf.audit(copied, rehearsals=2, eavesdroppers=NAMES)
    file, content = read_kept(copied)
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    seeds = [str(HORIZON["seed"] + number) for number in (1, 2, 3)]
    assert list(content) == seeds[:2]
    # What is kept is believed, and not simulated again.
    changed = {**content, seeds[0]: {**content[seeds[0]], "misplaced": 12}}
    file.write_text(json.dumps(changed))
    more = cf.audit(copied, rehearsals=3, eavesdroppers=NAMES).find("majority").simulated
    assert more is not None and more.num_runs == 3 and more.placed == pytest.approx(2 / 3)
    assert list(read_kept(copied)[1]) == seeds
    # A damaged file is made anew.
    file.write_text("[1]")
    assert cf.audit(copied, rehearsals=2, eavesdroppers=NAMES).threats == first.threats
    assert read_kept(copied)[1] == content


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("run.toml", "the settings are not in a public folder"),
        ("summary.json", "the run has not ended"),
    ],
)
def test_nothing_is_simulated_where_it_cannot_be(copied: Path, missing: str, words: str) -> None:
    (copied / missing).unlink()
    notes = cf.audit(copied, rehearsals=2, eavesdroppers=["majority"]).notes
    assert f"No runs of the same settings were simulated: {words}." in notes
    assert not (copied / "private/rehearsals").exists()


def test_the_key_is_everything_but_the_seed_and_the_engine() -> None:
    settings = make_run()
    assert name_settings(settings) == name_settings(settings.with_seed(99))
    assert name_settings(settings) != name_settings(make_run(policy={"kind": "greedy"}))
    assert name_settings(settings) == name_settings(make_run(engine={"kind": "flower"}))


def test_seeds_stay_in_their_range() -> None:
    assert choose_seeds(make_run(), 2, 1) == [HORIZON["seed"] + 1, HORIZON["seed"] + 2]
    assert choose_seeds(make_run().with_seed(2**63 - 1), 3, 1) == [0, 1, 2]


def test_clients_resampled_from_the_public_set_hold_as_many_rows() -> None:
    federation = build_federation(make_run(), KernelCache())
    clients, made = federation.clients, resample_clients(federation).clients
    assert made.sizes.tolist() == clients.sizes.tolist()
    public = {row.tobytes() for row in clients.task.public.features}
    assert {row.tobytes() for row in made.task.train.features} <= public
    assert made.task.public is clients.task.public


def test_a_fixed_federation_has_the_same_clients_whatever_the_seed() -> None:
    settings, tasks = fix_federation(make_run()), []
    for seed in (settings.seed, settings.seed + 1):
        tasks.append(build_federation(settings.with_seed(seed), KernelCache()).task)
    for mine, theirs in zip(*(task.clients for task in tasks), strict=True):
        assert np.array_equal(mine, theirs)
    assert fix_federation(settings) is settings


@pytest.mark.slow
@pytest.mark.parametrize("source", ["public", "federation"])
def test_figures_to_train_on_are_collected_once(source: Any, copied: Path) -> None:
    pytest.importorskip("sklearn")
    names = ["trained-listener", "trained-public", "trained"]
    first = cf.audit(copied, eavesdroppers=names, trained=4, trained_on=source)
    assert [threat.name for threat in first.threats] == ["trained", *names[:2]]
    (file,) = (copied / "private/rehearsals").iterdir()
    assert file.name.endswith(f"-{source}-4.npz")
    kept = dict(np.load(file))
    assert kept["figures"].shape == (len(kept["truth"]), 2, len(kept["names"]))
    assert 2 <= len(kept["truth"]) <= 4 and np.isfinite(kept["figures"]).all()
    # What is kept is read: with the answers exchanged, it learns the opposite.
    np.savez(file, **{**kept, "truth": 1 - kept["truth"]})
    other = cf.audit(copied, eavesdroppers=names, trained=4, trained_on=source)
    assert other.threats != first.threats
    file.write_bytes(b"PK nothing")
    again = cf.audit(copied, eavesdroppers=names, trained=4, trained_on=source)
    assert again.threats == first.threats
    assert cf.audit(copied).not_tried["trained"] == "figures of runs with known answers"


@pytest.mark.slow
def test_too_few_runs_to_train_on_are_refused(tmp_path: Path) -> None:
    run_small(tmp_path / "run", policy={"kind": "always-learn"})
    with pytest.raises(cf.InvalidInput, match="at least 2 simulated runs"):
        cf.audit(tmp_path / "run", trained=2)


def test_what_is_known_of_a_marked_run(tmp_path: Path) -> None:
    run_small(tmp_path / "run", federation={"mark": 0.2})
    means = load_run(tmp_path / "run", KernelCache()).means
    assert means.mark is not None and np.linalg.norm(means.mark) == pytest.approx(1.0)
    rounds = read_rounds(tmp_path / "run")
    asked = [record["round"] for record in rounds if 0 in record["clients"]]
    assert means.attended == frozenset(asked)
    assert means.pivot == "0.weight" and means.trajectories == 2 and means.axes is not None
    run_small(tmp_path / "mapped", data={"map": "public"})
    mapped = load_run(tmp_path / "mapped", KernelCache()).means
    assert mapped.mark is None and mapped.axes is not None
    assert np.array_equal(mapped.axes, np.eye(len(means.axes)))


@pytest.mark.slow
def test_exchangeable_runs_bound_everybody_by_a_guess(tmp_path: Path) -> None:
    run_small(tmp_path / "run", scheme="exchangeable")
    found = cf.audit(tmp_path / "run", rehearsals=2, eavesdroppers=["majority", "likelihood"])
    bound, threat = found.bound, found.find("likelihood")
    assert bound is not None and (bound.value, bound.low, bound.high) == (0.5, 0.5, 0.5)
    assert threat.names_true == 0.5 and threat.conviction is not None
    assert threat.conviction.probability == 0.5
    assert threat.simulated is not None and threat.simulated.num_runs == 2
