"""Data quality as the oracle: noisier labels in worse states, acceptance by noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covertfl.errors import InvalidInput
from covertfl.runs.build import KernelCache, build_federation
from covertfl.runs.clients import ClientResponder
from covertfl.runs.responder import ClientWork
from covertfl.training import train
from tests.support.small_runs import (
    FUNCTION_QUEUE,
    HORIZON,
    Stopped,
    make_run,
    merge,
    read_column,
    read_folder,
    run_small,
    stop_after,
)

pytest.importorskip("torch")

FEDERATION: dict[str, Any] = {
    "participation": [6, 6, 6],
    "label_noise": [0.8, 0.5, 0.0],
    "acceptance": "noise",
    "max_noise": 0.45,
    "optimizer": {"name": "adam", "lr": 0.02},
}
NOISY: dict[str, Any] = {
    "states": {"column": "quality", "cuts": [0.3, 0.7]},
    "federation": FEDERATION,
    "horizon": {"rounds": 30, "updates": 6},
}


def make_clients(**changes: Any) -> ClientResponder:
    responder = build_federation(make_run(**merge(NOISY, changes)), KernelCache()).responder
    assert isinstance(responder, ClientResponder)
    return responder


def test_a_job_has_the_wrong_labels_that_are_counted() -> None:
    clients = make_clients()
    labels = clients.task.train.labels
    half = len(labels) // 2
    shares = []
    for number, state in enumerate((0, 1, 2, 0, 1, 2), start=1):
        attendance = clients.draw_clients(state, number)
        work = ClientWork(number, clients.first_weights(0), attendance)
        jobs = clients.make_jobs(work)
        wrong = [int(np.sum(labels[job.rows] != labels[job.rows % half])) for job in jobs]
        assert attendance.wrong is not None
        assert wrong == attendance.wrong[attendance.batches > 0].tolist()
        noise = clients.measure_noise(state, number)
        assert noise == sum(wrong) / sum(len(job.rows) for job in jobs)
        shares.append(noise)
    assert shares[2] == shares[5] == 0.0
    assert min(shares[0], shares[3]) > 0.45


def test_acceptance_is_by_noise_whatever_is_sent(tmp_path: Path) -> None:
    """The policy decides which weights are sent, and nothing else in the records of a round."""
    for kind in ("always-learn", "always-obfuscate", "optimal"):
        run_small(tmp_path / kind, **NOISY, policy={"kind": kind})
    same = ("oracle_state", "clients", "batches", "examples", "noise", "accepted")
    learned, obfuscated, optimal = (
        [read_column(tmp_path / kind, key) for key in same]
        for kind in ("always-learn", "always-obfuscate", "optimal")
    )
    assert learned == obfuscated == optimal
    assert learned[5] == [noise <= 0.45 for noise in learned[4]]
    assert len(set(learned[5])) == 2


def test_the_problem_is_solved_with_the_measured_success(tmp_path: Path) -> None:
    summary = run_small(tmp_path / "run", **NOISY)
    measured = summary.success_measured
    assert measured is not None and measured[0] < 0.01 and measured[2] == 1.0
    clients = make_clients()
    np.testing.assert_array_equal(clients.success, measured)
    rounds = range(1, 801)
    accepted = [clients.is_accepted(1, number, 1) for number in rounds]
    assert np.mean(accepted) == pytest.approx(measured[1], abs=4 * np.sqrt(0.25 / 800))


@pytest.mark.slow
def test_learning_in_quiet_rounds_beats_learning_in_noisy_ones(tmp_path: Path) -> None:
    """`random` has the same number of updates, placed at random, and uses every reply."""
    found = {
        kind: [
            run_small(tmp_path / f"{kind}-{seed}", **NOISY, seed=seed, policy={"kind": kind})
            for seed in range(3)
        ]
        for kind in ("optimal", "random")
    }
    quiet, noisy = ([run.learner_accuracy or 0.0 for run in runs] for runs in found.values())
    assert np.mean(quiet) > np.mean(noisy) + 0.05


def test_a_run_with_noise_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    settings = make_run(**NOISY)
    train(settings, tmp_path / "through")
    with pytest.raises(Stopped):
        train(settings, tmp_path / "cut", on_round=stop_after(11))
    train(settings, tmp_path / "cut", resume=True)
    assert read_folder(tmp_path / "cut") == read_folder(tmp_path / "through")


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd"])
def test_flower_trains_on_the_same_wrong_labels(tmp_path: Path, algorithm: str) -> None:
    pytest.importorskip("flwr")
    changes = merge(NOISY, {"federation": {"algorithm": algorithm}, "horizon": {"rounds": 10}})
    for kind in ("simulated", "flower"):
        train(make_run(**changes, engine={"kind": kind}), tmp_path / kind)
    simulated, flower = (
        read_folder(tmp_path / kind) | {"run.toml": b""} for kind in ("simulated", "flower")
    )
    assert simulated == flower
    assert len(set(read_column(tmp_path / "flower", "noise"))) > 2


@pytest.mark.parametrize(
    ("base", "changes", "said"),
    [
        (HORIZON, {"federation": {"label_noise": [0.4, 0.2]}}, "3 numbers, .* got 2"),
        (HORIZON, {"federation": {"label_noise": [0.1, 0.2, 0.0]}}, "must not increase"),
        (HORIZON, {"federation": {"label_noise": [0.4, 1.2, 0.0]}}, "at most 1.0, got 1.2"),
        (HORIZON, {"federation": {"acceptance": "noise"}}, "go together"),
        (HORIZON, {"federation": {"max_noise": 0.2}}, "go together"),
        (HORIZON, {"federation": {"acceptance": "noise", "max_noise": 0.2}}, "go together"),
        (FUNCTION_QUEUE, {"federation": {"label_noise": [0.1, 0.1, 0.0]}}, "simulated clients"),
        (
            HORIZON,
            {
                "federation": {"label_noise": [0.1, 0.1, 0.0]},
                "engine": {"kind": "flower", "mode": "deployment"},
            },
            "label_noise needs simulated clients",
        ),
    ],
)
def test_noise_that_cannot_be_is_refused(
    base: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said) as caught:
        make_run(base, **changes)
    assert "\n" not in str(caught.value)
