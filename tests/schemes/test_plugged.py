"""A scheme from outside trains, resumes, is audited and served, on both engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from covertfl.auditing.folders import audit_folders
from covertfl.errors import InvalidInput
from covertfl.runs.public import PublicTranscript
from covertfl.service.loop import as_service
from covertfl.training import train
from tests.support.commands import invoke, refuse
from tests.support.played_services import SERVICE, list_requests, play_service, read_run_files
from tests.support.small_runs import (
    HORIZON,
    Stopped,
    make_run,
    read_arrays,
    read_folder,
    read_rounds,
    run_small,
    stop_after,
)
from tests.support.still_scheme import UNWANTED

STILL: dict[str, Any] = {"scheme": "tests.support.still_scheme:Still", "still": {"depth": 3}}
FLOWER: dict[str, Any] = {"engine": {"kind": "flower", "mode": "in-process"}}
ENGINES = {"simulated": {}, "flower": FLOWER}


@pytest.mark.parametrize("engine", ENGINES)
def test_it_trains_and_resumes_to_the_same_bytes(tmp_path: Path, engine: str) -> None:
    changes = {**STILL, **ENGINES[engine]}
    summary = run_small(tmp_path / "whole", **changes)
    assert (summary.updates_done, summary.learning_queries, summary.exposure) == (0, 0, 0.0)
    with pytest.raises(Stopped):
        run_small(tmp_path / "cut", on_round=stop_after(5), **changes)
    train(make_run(HORIZON, **changes), tmp_path / "cut", resume=True)
    assert read_folder(tmp_path / "cut") == read_folder(tmp_path / "whole")


def test_clients_are_sent_zeros_alone_and_both_engines_agree(tmp_path: Path) -> None:
    for engine, changes in ENGINES.items():
        run_small(tmp_path / engine, **STILL, **changes)
        public = PublicTranscript(tmp_path / engine / "public")
        [name] = {record.weights for record in public.records}
        assert all(not part.any() for part in public.read_weights(name).values())
        assert read_arrays(tmp_path / engine)["true"].any()
    one, other = (read_folder(tmp_path / engine) for engine in ENGINES)
    for name in ("public/rounds.jsonl", "private/rounds.jsonl", "metrics.jsonl"):
        assert one[name] == other[name]


@pytest.mark.parametrize("engine", ENGINES)
def test_it_refuses_replies(tmp_path: Path, engine: str) -> None:
    summary = run_small(tmp_path / "run", **STILL, **ENGINES[engine])
    refused = [entry for record in read_rounds(tmp_path / "run") for entry in record["rejected"]]
    assert refused and all(entry == [UNWANTED, "unwanted"] for entry in refused)
    assert summary.rejected_by_reason == {"unwanted": len(refused)}


def test_it_is_audited(tmp_path: Path) -> None:
    run_small(tmp_path / "run", **STILL)
    found = audit_folders([tmp_path / "run"], rehearsals=2).to_dict()
    assert found["scheme"] == STILL["scheme"]
    assert found["learner"]["exposure"] == 0.0
    assert found["eavesdroppers"]["majority"]["names_true"] == 0.0


@pytest.mark.parametrize("engine", ENGINES)
def test_it_is_served(tmp_path: Path, engine: str) -> None:
    """Requests wait for ever, since nothing is learned; data change in any round."""
    asked: dict[int, Any] = {
        1: [{"kind": "shift", "updates": 2}],
        4: [{"kind": "purge", "clients": [1], "updates": 1}],
        6: [2],
    }
    if engine == "simulated":
        play_service(tmp_path / "s", asked, 12, **STILL)
    else:
        pytest.importorskip("flwr")
        from tests.service.test_flower import play_on_flower

        play_on_flower(tmp_path / "s", asked, 12, **STILL)
    assert [one.state for one in list_requests(tmp_path / "s")] == ["serving", "cancelled"]
    records = read_rounds(tmp_path / "s")
    assert len(records) == 12 and not any("data" in record for record in records)
    assert records[-1]["backlog"] == 2
    assert "versions/0/state.safetensors" in read_run_files(tmp_path / "s")


def test_its_section_is_checked(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"\[still\] depth must be a whole number, got 'deep'"):
        make_run(**{**STILL, "still": {"depth": "deep"}})
    with pytest.raises(InvalidInput, match=r"\[policy\] belongs to scheme = scheduled"):
        make_run(**STILL, policy={"kind": "greedy"})
    with pytest.raises(InvalidInput, match="unknown key still"):
        make_run(still={"depth": 3})


@pytest.mark.parametrize(
    ("scheme", "sentence"),
    [
        ("still", "scheme must be one of scheduled, exchangeable, the name of an installed"),
        ("tests.support.still_scheme:StillSection", "must be a class derived from"),
        ("tests.support.still_scheme:Moving", "has no Moving"),
        ("tests.support.no_such:Still", "cannot be imported"),
    ],
)
def test_what_is_no_scheme_is_refused(tmp_path: Path, scheme: str, sentence: str) -> None:
    file = tmp_path / "run.toml"
    file.write_text(f'task = "digits"\nscheme = "{scheme}"\n')
    told = refuse(invoke("train", file, "--out", tmp_path / "out"), 2)
    assert sentence in told
    assert str(file) in told and not (tmp_path / "out").exists()


def test_a_service_of_it_needs_a_queue() -> None:
    assert as_service(make_run(SERVICE, **STILL)).sections.scheme == STILL["scheme"]
    with pytest.raises(InvalidInput, match=r"needs a problem with \[queue\]"):
        as_service(make_run(HORIZON, **STILL, service={}))


def test_the_owner_keeps_what_it_began_with(tmp_path: Path) -> None:
    weights = []
    for rounds in (2, 9):
        run_small(tmp_path / str(rounds), **STILL, rounds=rounds)
        weights.append(read_arrays(tmp_path / str(rounds))["true"])
    assert np.array_equal(weights[0], weights[1])
