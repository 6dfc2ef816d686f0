"""A server that is killed in the middle of a round: what clients are sent again tells nothing.

A client compares the query of the round that was cut off with the one it gets after the restart.
Where the first weights are drawn anew, or the policy decides anew, the two differ in rounds of one
kind only, and name the action.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")

import torch
from flwr.app import ArrayRecord, Message
from flwr.serverapp.strategy import FedAdam, FedAvg

from covertfl.engines.flower.grid import InProcessGrid
from covertfl.flower import CovertStrategy
from covertfl.runs import checkpoint as checkpoint_file
from covertfl.runs import folder as run_folder
from covertfl.runs.checkpoint import Checkpoint
from covertfl.runs.progress import RunProgress
from covertfl.training import train
from tests.support.attacks import attack_seeds, require_guess
from tests.support.flower_runs import (
    NODES,
    RUN,
    Scheduled,
    Witness,
    make_app,
    make_model,
    make_task,
)
from tests.support.small_runs import HORIZON, make_run, read_rounds

CUTS = ("before the query", "while replies come", "after the replies", "before the checkpoint")
Note = Callable[[str, object], None]


class Cut(BaseException):
    """The end of a process, as far as a test can feel it."""


class CutGrid(InProcessGrid):
    """A grid at which the server ends in a round, before, during or after its exchange."""

    def __init__(self, witness: Witness, cut: str, at: int, first_round: int = 1) -> None:
        super().__init__(make_app(witness), NODES, first_round=first_round)
        self._cut, self._at = cut, at

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Deliver messages, and end where it is due."""
        messages, number = list(messages), self._round
        if number == self._at and self._cut == CUTS[0]:
            raise Cut
        if number == self._at and self._cut == CUTS[1]:
            super().push_messages(messages[:2])
            raise Cut
        names = super().push_messages(messages)
        if number == self._at and self._cut == CUTS[2]:
            raise Cut
        return names


def end_before_checkpoint(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """End the process when the checkpoint of a round is about to be written."""
    write = checkpoint_file.write_checkpoint

    def fatal(folder: Path, checkpoint: Checkpoint, *others: Any) -> int:
        if checkpoint.round == at:
            raise Cut
        return write(folder, checkpoint, *others)

    monkeypatch.setattr(run_folder, "write_checkpoint", fatal)


def end_after(at: int) -> Callable[[RunProgress], None]:
    def end(progress: RunProgress) -> None:
        if progress.round == at:
            raise Cut

    return end


def serve(
    out: Path, grid: InProcessGrid, *, rounds: int = 4, has_buffers: bool = False, **options: Any
) -> None:
    """Run the server app of the example: its first weights are drawn anew at every start."""
    scheme = {**RUN, "horizon": {"rounds": 4, "updates": 2}, **options.pop("changes", {})}
    strategy = CovertStrategy(
        options.pop("make_strategy", FedAvg),
        run=scheme,
        out=out,
        task=make_task(),
        decoy_start="fresh",
        **options,
    )
    # Arrays that are not trained are drawn anew as well.
    buffers = {"scale": torch.rand(2), "count": torch.randint(999, ())} if has_buffers else {}
    first = ArrayRecord({**make_model().state_dict(), **buffers})
    strategy.start(grid=grid, initial_arrays=first, num_rounds=rounds)


def restart(
    out: Path,
    cut: str,
    at: int,
    monkeypatch: pytest.MonkeyPatch,
    *,
    longer: int = 4,
    **options: Any,
) -> tuple[set[bytes], set[bytes]]:
    """Return what clients are sent in a round that is cut off, before and after the restart."""
    before, after = Witness(), Witness()
    with monkeypatch.context() as patch, pytest.raises(Cut):
        if cut == CUTS[3]:
            end_before_checkpoint(patch, at)
        serve(out, CutGrid(before, cut, at), **options)
    with pytest.raises(Cut):
        grid = CutGrid(after, "", at, first_round=at)
        serve(out, grid, rounds=longer, resume=True, on_round=end_after(at), **options)
    return find_queries(before, at), find_queries(after, at)


def find_queries(witness: Witness, number: int) -> set[bytes]:
    return {content for _, sent_in, content in witness.weights if sent_in == number}


@pytest.mark.slow
def test_a_restart_in_round_1_names_no_action(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Note
) -> None:
    runs, right = attack_seeds(), 0
    for number in range(runs):
        learns, cut = number % 2 == 0, CUTS[1 + number // 2 % 3]
        policy = Scheduled(frozenset({5} if learns else ()))  # round 5 of 8 is the first of 4
        sent, again = restart(tmp_path / str(number), cut, 1, monkeypatch, policy=policy)
        assert len(sent) == len(again) == 1
        right += learns == (sent != again)
    require_guess(record_property, "action named by a restart in round 1", right, runs)


@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("cut", CUTS)
def test_the_query_after_a_restart_is_the_one_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: str, learns: bool, at: int
) -> None:
    options: dict[str, Any] = {
        "make_strategy": FedAdam,
        "policy": Scheduled(frozenset({4 + at} if learns else ())),
        "seed": 3,
    }
    sent, again = restart(tmp_path / "run", cut, at, monkeypatch, **options)
    assert len(again) == 1
    assert sent == (set() if cut == CUTS[0] else again)
    [line] = [line for line in read_rounds(tmp_path / "run") if line["round"] == at]
    assert line["action"] == ("learn" if learns else "obfuscate")


@pytest.mark.parametrize("learns", [True, False])
def test_arrays_that_are_not_trained_stay_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learns: bool
) -> None:
    for at in (1, 2):
        policy = Scheduled(frozenset({4 + at} if learns else ()))
        options: dict[str, Any] = {"policy": policy, "has_buffers": True}
        sent, again = restart(tmp_path / str(at), CUTS[2], at, monkeypatch, **options)
        assert sent == again


@pytest.mark.slow
def test_more_rounds_after_a_cut_do_not_change_the_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Note
) -> None:
    runs, changed = max(15, attack_seeds() // 4), 0
    for number in range(runs):
        kind = ("optimal", "random", "minority")[number % 3]
        changes = {"policy": {"kind": kind}}
        sent, again = restart(
            tmp_path / str(number),
            CUTS[1 + number % 3],
            2 + number % 2,
            monkeypatch,
            longer=20,
            changes=changes,
            seed=number,
        )
        changed += sent != again
    record_property("other query after a resume with more rounds", f"{changed} of {runs}")
    assert changed == 0


@pytest.mark.parametrize("kind", ["optimal", "random", "minority"])
def test_a_simulated_run_with_more_rounds_repeats_the_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for seed in range(6):
        out, at = tmp_path / str(seed), 2 + seed % 3
        changes: dict[str, Any] = {"seed": seed, "policy": {"kind": kind}}
        with monkeypatch.context() as patch, pytest.raises(Cut):
            end_before_checkpoint(patch, at)
            train(make_run(HORIZON, **changes), out)
        sent = read_rounds(out, "public/rounds.jsonl")
        assert len(sent) == at
        with pytest.raises(Cut):
            longer = make_run(HORIZON, **changes, rounds=40)
            train(longer, out, resume=True, on_round=end_after(at))
        assert read_rounds(out, "public/rounds.jsonl") == sent
