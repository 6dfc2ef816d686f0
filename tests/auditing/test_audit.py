"""Audits of finished runs: one, several seeds, parts of a folder, and a client's own recording."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

pytest.importorskip("torch", reason="torch is not installed")
import covertfl as cf
from tests.auditing.test_verdicts import find_wilson
from tests.support.audits import write_public
from tests.support.commands import Run, refuse
from tests.support.small_runs import (
    HORIZON,
    QUEUE,
    Stopped,
    merge,
    read_column,
    read_folder,
    read_rounds,
    run_small,
    stop_after,
)

# What these need is not in a single run without marks: a mark, another run, or runs to train on.
NOT_HERE = {"mark", "two-runs", "trained", "trained-public", "trained-listener"}
BARE = ["majority", "minority", "early-stop", "change-point", "repeat", "step-shape", "rounding"]


def describe(*folders: Path, **options: Any) -> dict[str, Any]:
    content = cf.audit(*folders, **options).to_dict()
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    return content


def describe_beliefs(content: dict[str, Any]) -> dict[str, Any]:
    """Return what is public of the findings; clients know besides when they were asked."""
    kept = ("trajectories", "probability")
    return {
        name: [[entry["belief"][key] for key in kept], entry["accuracy_by_round"]]
        for name, entry in content["eavesdroppers"].items()
        if entry["tier"] != "C"
    }


@pytest.fixture(scope="module")
def audited(finished: Path) -> dict[str, Any]:
    return describe(finished)


# --- one run ----------------------------------------------------------------------------------


def test_beliefs_and_names_against_the_records(finished: Path, audited: dict[str, Any]) -> None:
    actual, found = read_column(finished, "trajectory"), audited["eavesdroppers"]
    share, first_seen = actual.count(0) / len(actual), list(dict.fromkeys(actual))
    assert share != 0.5
    favourite = first_seen.index(0 if share > 0.5 else 1)
    assert found["majority"]["belief"] == {
        "trajectories": [favourite],
        "probability": pytest.approx(max(share, 1.0 - share)),
        "right": share > 0.5,
    }
    assert found["majority"]["names_true"] == float(share > 0.5)
    assert found["minority"]["names_true"] == float(share < 0.5)
    assert found["train-alone"]["names_true"] == 0.5
    assert audited["separation"] == {"trajectories": [2], "right_share": 1.0}
    assert audited["trajectories"] == [
        {
            "queries": actual.count(number),
            "first_round": 1 + actual.index(number),
            "last_round": len(actual) - actual[::-1].index(number),
        }
        for number in first_seen
    ]
    assert set(audited["not_tried"]) == NOT_HERE and audited["runs"] == 1


def test_an_audit_repeats_itself_and_is_written(finished: Path, tmp_path: Path, run: Run) -> None:
    shutil.copytree(finished, tmp_path / "run")
    content = run("audit", tmp_path / "run", "--rehearsals", "0", "--json").content
    written = tmp_path / "run" / "audit.json"
    assert json.loads(written.read_text()) == content == describe(finished)
    # Exposure by round says which queries were true.
    assert stat.S_IMODE(written.stat().st_mode) == 0o600


@pytest.mark.parametrize("base", [HORIZON, QUEUE], ids=["horizon", "queue"])
def test_the_private_folder_says_only_who_was_right(base: dict[str, Any], tmp_path: Path) -> None:
    run_small(tmp_path / "run", base, decoy={"gated": False})
    before = describe(tmp_path / "run")
    assert (before["bound"] is None) == (base is QUEUE)
    for name in ("private", "checkpoint"):
        shutil.rmtree(tmp_path / "run" / name)
    for name in ("metrics.jsonl", "summary.json"):
        (tmp_path / "run" / name).unlink()
    after = describe(tmp_path / "run")
    assert describe_beliefs(after) == describe_beliefs(before)
    assert all(entry["names_true"] is None for entry in after["eavesdroppers"].values())
    assert after["learner"]["exposure_by_round"] is after["learner"]["accuracy_by_round"] is None
    assert after["coalitions"] is after["mismatch"] is None
    assert "Only public records were there: who is right is not known." in after["warnings"]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        # The query of a round is the model after the round before.
        ({"policy": {"kind": "always-learn"}}, {"majority": 1.0, "minority": 1.0}),
        ({"policy": {"kind": "always-obfuscate"}}, {"majority": 0.0, "likelihood": 0.0}),
        # Failed learning queries repeat, and an ungated decoy never does: one is enough.
        ({"policy": {"kind": "greedy"}, "federation": {"acceptance": "model"}}, {"repeat": 1.0}),
        # Every reply is used: nothing fails.
        (
            {
                "policy": {"kind": "random"},
                "federation": {"acceptance": "model"},
                "horizon": {"rounds": 24, "updates": 12},
            },
            {"repeat": 0.5},
        ),
    ],
)
def test_what_policies_give_away(
    settings: dict[str, Any], named: dict[str, float], tmp_path: Path
) -> None:
    run_small(tmp_path / "run", decoy={"gated": False}, **settings)
    found = describe(tmp_path / "run", eavesdroppers=list(named))
    assert {name: each["names_true"] for name, each in found["eavesdroppers"].items()} == named
    if settings["policy"]["kind"] == "always-learn":
        held = found["eavesdroppers"]["majority"]["accuracy_by_round"]
        assert held[1:] == found["learner"]["accuracy_by_round"][:-1]
        assert found["separation"]["trajectories"] == [1]


def test_the_bound_is_that_of_the_problem_and_policy(tmp_path: Path) -> None:
    chosen = cf.Run(**merge(HORIZON, {"federation": {"acceptance": "model"}}))
    chosen.train(tmp_path / "run")
    bound = describe(tmp_path / "run", eavesdroppers=["majority"])["bound"]
    assert isinstance(chosen.problem, cf.FiniteHorizon)
    expected = cf.bound_best_eavesdropper(
        chosen.problem,
        cf.solve(chosen.problem).policy,
        num_samples=2000,
        generator=np.random.default_rng(0),
    )
    assert bound == {"value": expected.value, "interval": [expected.low, expected.high]}
    assert 0.5 <= expected.low <= expected.value <= expected.high <= 1.0


def test_no_bound_for_rounds_or_policies_that_are_not_the_problem_s(tmp_path: Path) -> None:
    rows = "".join(f"{number},{2 + number % 3},100,1\n" for number in range(1, 31))
    (tmp_path / "log.csv").write_text("round,clients,examples,success\n" + rows)
    refreshed: dict[str, Any] = {"policy": {"kind": "spga", "refresh": 10}}
    replayed: dict[str, Any] = {"federation": {"log": str(tmp_path / "log.csv")}}
    for number, changes in enumerate((refreshed, replayed)):
        run_small(tmp_path / str(number), **changes)
        report = describe(tmp_path / str(number), eavesdroppers=["majority"])
        assert report["bound"] is None and report["learner"]["accuracy"] is not None


def test_a_marked_run_has_one_more_client_that_listens(tmp_path: Path) -> None:
    run_small(tmp_path / "run", federation={"mark": 0.2})
    found = describe(tmp_path / "run")
    assert set(found["not_tried"]) == NOT_HERE - {"mark"}
    assert found["eavesdroppers"]["mark"]["tier"] == "C"


def test_who_cannot_choose_guesses_among_all_that_are_known_of(finished: Path) -> None:
    found = describe(finished, eavesdroppers=["train-alone"], trajectories=4)
    assert found["eavesdroppers"]["train-alone"]["names_true"] == 0.25


# --- several runs -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def seeds(finished_seeds: Path) -> list[dict[str, Any]]:
    return [describe(finished_seeds / f"seed-{number}") for number in range(3)]


@pytest.fixture(scope="module")
def report(finished_seeds: Path) -> cf.AuditReport:
    return cf.audit(finished_seeds)


@pytest.fixture(scope="module")
def together(report: cf.AuditReport) -> dict[str, Any]:
    return report.to_dict()


def find_t_interval(values: list[float]) -> list[float]:
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return [np.mean(values) - half, np.mean(values) + half]


def test_figures_are_those_of_the_runs_put_together(
    seeds: list[dict[str, Any]], together: dict[str, Any]
) -> None:
    assert together["runs"] == 3 and together["trajectories"] == []
    alone = together["eavesdroppers"]["train-alone"]["final_accuracy"]
    for name, entry in together["eavesdroppers"].items():
        runs = [one["eavesdroppers"][name] for one in seeds]
        for key in ("names_true", "final_accuracy", "worst_accuracy", "gain", "final_f1"):
            known = [run[key] for run in runs if run[key] is not None]
            assert entry[key] == (pytest.approx(np.mean(known)) if known else None)
        for key in ("final_balanced_accuracy", "final_auc"):
            assert entry[key] == pytest.approx(np.mean([run[key] for run in runs]))
        assert entry["interval"] == pytest.approx(find_wilson(entry["names_true"], 3))
        finals = [run["final_accuracy"] for run in runs]
        assert entry["final_interval"] == pytest.approx(find_t_interval(finals))
        curves = [run["accuracy_by_round"] for run in runs]
        assert entry["accuracy_by_round"] == pytest.approx(np.mean(curves, axis=0))
        assert [max(curve) for curve in curves] == [run["worst_accuracy"] for run in runs]
        assert [curve[-1] for curve in curves] == finals
        assert entry["advantage"] == pytest.approx(entry["final_accuracy"] - alone)
        assert entry["belief"] is entry["simulated"] is None
        assert all(run["final_interval"] is None for run in runs)


def test_figures_of_the_learner_are_those_of_the_runs(
    finished_seeds: Path, together: dict[str, Any]
) -> None:
    folders = [finished_seeds / f"seed-{number}" for number in range(3)]
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in folders]
    learner = together["learner"]
    accuracies = [summary["learner_accuracy"] for summary in summaries]
    assert learner["accuracy"] == pytest.approx(np.mean(accuracies))
    assert learner["interval"] == pytest.approx(find_t_interval(accuracies))
    for key, name in {
        "exposure": "exposure",
        "completion": "completed",
        "balanced_accuracy": "learner_balanced_accuracy",
        "auc": "learner_auc",
    }.items():
        assert learner[key] == pytest.approx(np.mean([summary[name] for summary in summaries]))
    learned = np.array([[r["action"] == "learn" for r in read_rounds(one)] for one in folders])
    shares = np.cumsum(learned, axis=1) / np.arange(1, 13)
    assert learner["exposure_by_round"] == pytest.approx(shares.mean(axis=0))
    assert learner["accuracy_by_round"][-1] == pytest.approx(learner["accuracy"])


def test_coalitions_are_drawn_by_seed(
    finished_seeds: Path, seeds: list[dict[str, Any]], together: dict[str, Any]
) -> None:
    """Of six clients one, two or five; a round is seen if one of them took part."""
    for size in ("1", "2", "5"):
        shares = []
        for number in range(3):
            generator = np.random.default_rng([HORIZON["seed"] + number, int(size)])
            members = set(generator.permutation(6)[: int(size)].tolist())
            asked = read_column(finished_seeds / f"seed-{number}", "clients")
            shares.append(np.mean([bool(members & set(clients)) for clients in asked]))
        found = [one["coalitions"][size]["rounds_seen"] for one in seeds]
        assert found == pytest.approx(shares)
        assert together["coalitions"][size]["rounds_seen"] == pytest.approx(np.mean(shares))
        for name, entry in together["coalitions"][size]["eavesdroppers"].items():
            runs = [one["coalitions"][size]["eavesdroppers"].get(name) for one in seeds]
            named = [run["names_true"] for run in runs if run is not None]
            assert entry["names_true"] == pytest.approx(np.mean(named))
            assert entry["interval"] == pytest.approx(find_wilson(np.mean(named), len(named)))
    everybody = together["coalitions"]["5"]["eavesdroppers"]
    assert list(everybody) == [
        "majority",
        "minority",
        "repeat",
        "step-shape",
        "validation",
        "ensemble",
    ]


def test_runs_of_one_federation_are_shown_to_two_runs(tmp_path: Path) -> None:
    for seed in (0, 1):
        run_small(tmp_path / f"seed-{seed}", seed=seed, data={"seed": 4})
    assert "two-runs" in describe(tmp_path)["eavesdroppers"]


def test_runs_must_differ_in_their_seeds_only(finished_seeds: Path, tmp_path: Path) -> None:
    run_small(tmp_path / "greedy", policy={"kind": "greedy"}, decoy={"gated": False})
    wanted = r"its seed.*\[policy\] kind = 'optimal', got 'greedy'"
    with pytest.raises(cf.InvalidInput, match=wanted):
        cf.audit(finished_seeds, tmp_path / "greedy")
    with pytest.raises(cf.InvalidInput, match="rehearsals must be 0 for several runs, got 2"):
        cf.audit(finished_seeds, rehearsals=2)


# --- public folders ---------------------------------------------------------------------------


def test_a_public_folder_alone(finished: Path, audited: dict[str, Any], tmp_path: Path) -> None:
    shutil.copytree(finished / "public", tmp_path / "only")
    shutil.copytree(finished / "public", tmp_path / "shared" / "public")
    content = describe(tmp_path / "only")
    # The same where the public folder still is in its place, but nothing else.
    assert describe(tmp_path / "shared") == content
    unknown = {"accuracy", "interval", "completion", "exposure"}
    assert {content["learner"][key] for key in unknown} == {None}
    assert list(content["eavesdroppers"]) == BARE
    for name, entry in content["eavesdroppers"].items():
        assert entry["names_true"] is None and entry["final_accuracy"] is None
        expected = audited["eavesdroppers"][name]["belief"]
        assert entry["belief"]["trajectories"] == expected["trajectories"]
        assert entry["belief"]["probability"] == pytest.approx(expected["probability"])
        assert entry["belief"]["right"] is None
        assert entry["verdict"].startswith(("believes in trajectory", "cannot choose"))
    assert content["trajectories"] == audited["trajectories"]
    assert content["not_tried"]["validation"] == "a model and labelled data"
    assert content["tiers"]["A"]["verdict"].startswith("A listener: of 7 eavesdroppers, trajector")
    assert content["bound"] is None and content["mismatch"] is None
    assert content["separation"] == {"trajectories": [2], "right_share": None}
    assert content["warnings"][0].startswith(
        "Only public records were there: who is right, and how good weights are, is not known."
    )


def test_a_public_folder_beside_a_run(finished_seeds: Path, tmp_path: Path) -> None:
    shutil.copytree(finished_seeds / "seed-1" / "public", tmp_path / "public-only")
    content = describe(tmp_path / "public-only", finished_seeds / "seed-0")
    assert content["runs"] == 2 and content["bound"] is not None
    assert content["learner"]["accuracy"] is not None
    assert content["warnings"][0].startswith("Only public records of 1 of the runs were there")


@pytest.mark.parametrize("recorded", ["public", "eavesdropper"])
def test_nothing_is_written_into_a_public_folder(copied: Path, run: Run, recorded: str) -> None:
    if recorded == "eavesdropper":  # as the listening node of a deployment keeps it
        shutil.copytree(copied / "public", copied / recorded)
    before = read_folder(copied)
    assert run("audit", copied / recorded, "--json").content["runs"] == 1
    assert read_folder(copied) == before
    shown = run("audit", copied / recorded).out
    assert "Trajectories found" in shown and "last seen" in shown
    assert "What eavesdroppers believe, 1 run" in shown
    assert "Not tried, needs the scheme: likelihood, attendance." in shown
    assert "cannot be judged" not in shown and "unknown" not in shown
    assert read_folder(copied) == before


def test_what_a_client_of_another_federation_recorded(tmp_path: Path) -> None:
    """Rounds in which it took part only; tensors of another kind, in any order."""
    models = np.random.default_rng(0).normal(size=(2, 20, 3))
    sent: list[dict[str, Any]] = []
    for number, model in enumerate([0, 1, 1, 0, 1]):
        kernel = (models[model] + 0.01 * number).astype(np.float16)
        tensors = {"dense.kernel": kernel, "dense.bias": np.arange(3.0)}
        sent.append(tensors if number % 2 else dict(reversed(tensors.items())))
    folder = write_public(tmp_path / "mine", sent, rounds=[2, 3, 7, 8, 20])
    found = describe(folder)
    beliefs = {name: entry["belief"] for name, entry in found["eavesdroppers"].items()}
    assert beliefs["majority"]["trajectories"] == [1]
    assert beliefs["majority"]["probability"] == pytest.approx(0.6)
    assert beliefs["early-stop"] == {"trajectories": [0], "probability": 1.0, "right": None}
    assert [each["last_round"] for each in found["trajectories"]] == [8, 20]


# --- incomplete and changed folders -----------------------------------------------------------


def test_a_run_that_has_not_ended(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        run_small(tmp_path / "run", on_round=stop_after(7))
    rounds, content = len(read_rounds(tmp_path / "run")), describe(tmp_path / "run")
    assert 1 <= rounds <= 7
    assert any("have not ended" in warning for warning in content["warnings"])
    assert content["learner"]["accuracy"] is None
    assert len(content["learner"]["accuracy_by_round"]) == rounds
    for entry in content["eavesdroppers"].values():
        assert len(entry["accuracy_by_round"]) == rounds


@pytest.mark.parametrize("side", ["public", "private"])
def test_where_one_side_is_ahead(copied: Path, side: str) -> None:
    """A crash may come between two files; in a run that has ended a round is missing."""
    file = copied / side / "rounds.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(cf.InvalidInput, match=r"public as private rounds, got 1[12] and 1[12]"):
        cf.audit(copied)
    (copied / "summary.json").unlink()
    content = describe(copied)
    assert len(content["learner"]["exposure_by_round"]) == 11
    assert len(content["learner"]["accuracy_by_round"]) == 11
    assert all(each["rounds_seen"] <= 1.0 for each in content["coalitions"].values())


@pytest.mark.parametrize(("wrong", "share"), [(1, "91.7%"), (2, "83.3%")])
def test_queries_on_the_wrong_trajectory_are_warned_of(
    copied: Path, wrong: int, share: str
) -> None:
    """With too many of them nobody is judged: the records have other trajectories for some."""
    rounds = read_rounds(copied)
    for record in [one for one in rounds if one["trajectory"] == 1][-wrong:]:
        record["trajectory"] = 0
    text = "".join(json.dumps(record) + "\n" for record in rounds)
    (copied / "private/rounds.jsonl").write_text(text)
    content = describe(copied)
    assert content["separation"]["right_share"] == pytest.approx(1.0 - wrong / 12)
    (warning,) = content["warnings"]
    assert warning.startswith(f"Trajectories were told apart for {share} of queries only")
    verdict = content["eavesdroppers"]["majority"]["verdict"]
    assert verdict.startswith("cannot be judged: only 83% of") == (wrong == 2)


def test_another_oracle_is_warned_of(copied: Path) -> None:
    """The problem has no move between the outer states."""
    rounds = read_rounds(copied)
    for number, record in enumerate(rounds):
        record["oracle_state"] = 2 * (number % 2)
    text = "".join(json.dumps(record) + "\n" for record in rounds)
    (copied / "private/rounds.jsonl").write_text(text)
    content = describe(copied, eavesdroppers=["majority"])
    assert content["mismatch"]["p_value"] == 0.0
    assert content["warnings"][0].startswith(
        "The rounds do not look like the oracle that the policy was solved for"
    )


# --- what is shown ----------------------------------------------------------------------------


def test_tables_for_people(finished: Path, report: cf.AuditReport, run: Run) -> None:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(report)
    text = " ".join(captured.get().split())
    for threat in report.threats:
        assert threat.name in text and threat.verdict in text
    assert "What eavesdroppers get, 3 runs" in text
    shown = run("audit", finished, finished, "--eavesdropper", "majority").out
    assert shown.startswith("What eavesdroppers get, 2 runs")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{}", "--eavesdropper", "listener"], "one of majority, "),
        (["{}/nowhere"], "no such folder"),
        (["{}/public/weights"], "holds no run"),
        ([], "give one or more folders of runs, got none"),
        (["{}", "--matrix", "run.toml"], "--matrix needs --out and no folders of runs"),
    ],
)
def test_what_cannot_be_audited(arguments: list[str], words: str, finished: Path, run: Run) -> None:
    filled = [each.format(finished) for each in arguments]
    assert words in refuse(run("audit", *filled), 2)
