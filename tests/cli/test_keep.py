"""Runs that keep the weights of some rounds or of none: trained, resumed, and refused by audit."""

from __future__ import annotations

from pathlib import Path

import pytest

import covertfl as cf
from tests.support.commands import Run, refuse
from tests.support.small_runs import HORIZON, Stopped, merge, read_folder, read_rounds, stop_after

pytest.importorskip("torch")

PUBLIC = "public/rounds.jsonl"


def list_weights(out: Path) -> set[str]:
    return {path.stem for path in (out / "public/weights").iterdir()}


@pytest.mark.parametrize("keep", ["hashes", 2])
def test_a_run_without_all_weights_is_resumed_and_not_audited(
    tmp_path: Path, run: Run, keep: int | str
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "run"
    kept_run = cf.Run(**merge(HORIZON, {"keep": keep}))
    cf.Run(**HORIZON).train(whole)
    with pytest.raises(Stopped):
        kept_run.train(out, on_round=stop_after(4))
    kept_run.train(out, resume=True)
    sent = [line["weights"] for line in read_rounds(out, PUBLIC)]
    assert list_weights(out) == (set() if keep == "hashes" else set(sent[-2:]))
    others = ("public/weights", "run.toml")
    kept, all_kept = (
        {name: data for name, data in read_folder(path).items() if not name.startswith(others)}
        for path in (out, whole)
    )
    assert kept == all_kept  # lines, checkpoint and results are the same
    said = refuse(run("audit", out, "--rehearsals", "0"), 2)
    assert "these were not kept (`keep` in the run file)" in said
    assert run("audit", whole, "--rehearsals", "0", "--json").status == 0


@pytest.mark.parametrize("value", ['"none"', "0", "-3", "1.5", "true", "[1]"])
def test_other_values_are_refused(tmp_path: Path, run: Run, value: str) -> None:
    (tmp_path / "run.toml").write_text(f'keep = {value}\ntask = "digits"\nrounds = 4\n')
    said = refuse(run("train", tmp_path / "run.toml", "--out", tmp_path / "run"), 2)
    assert 'keep must be "all", "hashes" or a number of rounds, at least 1, got' in said
