"""Runs that are resumed, extended or replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import covertfl as cf
from covertfl import InvalidInput
from covertfl.files.text import FORMATS
from covertfl.models.export import export_model
from covertfl.report.write import write_report
from covertfl.runs.settings import read_run
from covertfl.training import is_finished, train, train_all
from tests.support.slow_cases import mark_slow
from tests.support.small_runs import (
    HORIZON,
    QUEUE,
    Stopped,
    make_run,
    read_arrays,
    read_column,
    read_folder,
    run_small,
    stop_after,
)

pytest.importorskip("torch")


def test_a_horizon_that_ends_with_updates_owed_says_so_and_goes_on(tmp_path: Path) -> None:
    out, policy = tmp_path / "run", {"kind": "greedy"}
    summary = run_small(out, rounds=3, policy=policy)
    assert not summary.completed
    assert summary.updates_missing == 4 - summary.updates_done > 0
    [longer] = train(make_run(rounds=30, policy=policy), out, resume=True)
    assert longer.completed
    assert longer.rounds == 30
    assert read_column(out, "round") == list(range(1, 31))
    run_small(tmp_path / "at-once", rounds=30, policy=policy)
    assert (
        read_folder(out)["public/rounds.jsonl"]
        == read_folder(tmp_path / "at-once")["public/rounds.jsonl"]
    )
    ended = [read_arrays(path) for path in (out, tmp_path / "at-once")]
    assert all(ended[0][name].tobytes() == ended[1][name].tobytes() for name in ended[0])
    assert read_run(out / "run.toml").rounds == 30


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = run_small(out)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert train(make_run(), out, resume=True) == [first]
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    assert is_finished(make_run(), out)
    assert not is_finished(make_run(rounds=13), out)


def test_more_seeds_are_added_to_finished_ones(tmp_path: Path) -> None:
    train(make_run(), tmp_path, seeds=2)
    before = read_folder(tmp_path)
    train(make_run(), tmp_path, seeds=3, resume=True)
    after = read_folder(tmp_path)
    assert {name: after[name] for name in before} == before
    assert (tmp_path / "seed-2" / "summary.json").exists()


RESUMED = [
    (HORIZON, {"policy": {"kind": "greedy"}}),
    (HORIZON, {"federation": {"algorithm": "fedsgd"}, "decoy": {"kind": "mirrored"}}),
    (HORIZON, {"decoy": {"kind": "adversarial"}, "policy": {"kind": "minority"}}),
    (QUEUE, {"rounds": 12}),
]


@pytest.mark.parametrize(("base", "changes"), mark_slow(RESUMED, RESUMED[3:]))
def test_a_run_that_was_cut_anywhere_ends_the_same(
    tmp_path: Path, base: dict[str, Any], changes: dict[str, Any]
) -> None:
    settings = make_run(base, **changes)
    train(settings, tmp_path / "whole")
    expected = read_folder(tmp_path / "whole")
    for rounds in (1, 6, 11, 12):
        out = tmp_path / f"cut-{rounds}"
        with pytest.raises(Stopped):
            train(settings, out, on_round=stop_after(rounds))
        assert not (out / "summary.json").exists()
        train(settings, out, resume=True)
        assert read_folder(out) == expected


@pytest.mark.slow
@pytest.mark.parametrize("method", ["exact", "search"])
@pytest.mark.parametrize("base", [HORIZON, QUEUE])
def test_a_refreshed_policy_goes_on_where_it_was(
    tmp_path: Path, base: dict[str, Any], method: str
) -> None:
    changes: dict[str, Any] = {"rounds": 40, "federation": {"acceptance": "model"}}
    changes |= {"horizon": {"updates": 20}} if base is HORIZON else {"queue": {"arrival_prob": 0.2}}
    settings = make_run(base, policy={"kind": "spga", "refresh": 7, "live": method}, **changes)
    train(settings, tmp_path / "whole")
    for rounds in (21, 32):
        out = tmp_path / f"cut-{rounds}"
        with pytest.raises(Stopped):
            train(settings, out, on_round=stop_after(rounds))
        train(settings, out, resume=True)
        assert read_folder(out) == read_folder(tmp_path / "whole")
    learn_prob, backlog = (
        read_column(tmp_path / "whole", key) for key in ("learn_prob", "backlog")
    )
    cautious = [float(owed > 0) for owed in backlog]
    assert learn_prob[:21] == cautious[:21]  # 21 is the first multiple of 7 with rounds enough
    if method == "exact":  # the best thresholds that do not depend on the rounds left are 1
        assert learn_prob[21:] != cautious[21:]


def test_resuming_what_is_not_there_begins_it(tmp_path: Path) -> None:
    train(make_run(), tmp_path / "run", resume=True)
    run_small(tmp_path / "whole")
    assert read_folder(tmp_path / "run") == read_folder(tmp_path / "whole")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 4}, "seed = 3, got 4"),
        ({"policy": {"kind": "greedy"}}, "kind = 'optimal', got 'greedy'"),
        ({"data": {"model": "mlp"}}, "model = 'logistic', got 'mlp'"),
        ({"horizon": {"updates": 5}}, "updates = 4, got 5"),
    ],
)
@pytest.mark.parametrize("ended", [True, False])
def test_another_run_is_not_resumed(
    tmp_path: Path, changes: dict[str, Any], said: str, ended: bool
) -> None:
    out = tmp_path / "run"
    if ended:
        run_small(out)
    else:
        with pytest.raises(Stopped):
            run_small(out, on_round=stop_after(4))
    before = read_folder(out)
    with pytest.raises(InvalidInput, match=f"holds another run and cannot be resumed: .*{said}"):
        train(make_run(**changes), out, resume=True)
    assert read_folder(out) == before


def change_format(out: Path, line: str) -> None:
    settings = out / "run.toml"
    settings.write_text(settings.read_text().replace(f"format = {FORMATS['run']}\n", line))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "got nothing: an older version wrote the file"),
        (f"format = {FORMATS['run'] - 1}\n", "an older version wrote the file"),
        (f"format = {FORMATS['run'] + 1}\nunheard_of = 1\n", "a newer version wrote the file"),
    ],
)
def test_a_folder_of_another_format_is_refused(tmp_path: Path, line: str, said: str) -> None:
    out = tmp_path / "run"
    run_small(out)
    change_format(out, line)
    before = read_folder(out)
    for refuse in (
        lambda: train(make_run(), out, resume=True),
        lambda: export_model(out, tmp_path / "model.safetensors"),
        lambda: cf.audit(out),
        lambda: write_report(out, command="report"),
    ):
        with pytest.raises(InvalidInput, match=rf"run\.toml: .*{said}"):
            refuse()
    assert read_folder(out) == before


def test_a_folder_that_exists_is_replaced_by_force_only(tmp_path: Path) -> None:
    run_small(tmp_path / "run")
    before = read_folder(tmp_path / "run")
    with pytest.raises(InvalidInput, match="exists: resume the run in it"):
        run_small(tmp_path / "run", seed=9)
    assert read_folder(tmp_path / "run") == before
    train(make_run(seed=9), tmp_path / "run", force=True)
    run_small(tmp_path / "other", seed=9)
    assert read_folder(tmp_path / "run") == read_folder(tmp_path / "other")


def test_one_folder_in_the_way_stops_all_before_anything_is_made(tmp_path: Path) -> None:
    run_small(tmp_path / "seed-1")
    with pytest.raises(InvalidInput, match="seed-1 exists"):
        train(make_run(), tmp_path, seeds=3)
    assert [path.name for path in tmp_path.iterdir()] == ["seed-1"]


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    settings = make_run()
    with pytest.raises(InvalidInput, match="exists"):
        train_all([(settings, tmp_path / "run"), (settings, tmp_path / "run")])


def test_a_checkpoint_that_was_changed_stops_a_resume(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(Stopped):
        run_small(out, on_round=stop_after(5))
    file = out / "checkpoint/state.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 0x10
    file.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"state\.safetensors is damaged"):
        train(make_run(), out, resume=True)
