"""The simulated engine for one run whose clients may change between two rounds."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from covertfl.engines.simulated import carry_out
from covertfl.runs.driver import drive
from covertfl.runs.federation import Federation
from covertfl.runs.records import PlayedRound
from covertfl.runs.responder import Work


def play(federation: Federation, rounds: Generator[Work, Any, PlayedRound]) -> PlayedRound:
    """Carry out a round on the simulated engine."""
    [played] = drive([rounds], lambda waiting: answer_work(federation, waiting))
    return played


def answer_work(federation: Federation, waiting: Mapping[int, Work]) -> dict[int, Any]:
    """Carry out what rounds of a federation wait for."""
    work = [(federation.responder, asked) for asked in waiting.values()]
    return dict(zip(waiting, carry_out(work), strict=True))
