"""The rounds of a run as they end: progress reports, and the summary of the finished run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from covertfl.runs.opening import PreparedRun
from covertfl.runs.records import summarise
from covertfl.runs.rounds import Rounds, run_rounds
from covertfl.runs.state import RunState
from covertfl.runs.summary import RunSummary


@dataclass(frozen=True)
class RunProgress:
    """The progress of a run after a round.

    Parameters
    ----------
    run : folder of the run
    seed : seed of the run
    round, rounds : rounds done, and rounds in all
    oracle_state : oracle state of the last round
    backlog : updates owed
    exposure : share of learning queries among the rounds so far
    score : accuracy of the true weights, or the function's value at them
    """

    run: Path
    seed: int
    round: int
    rounds: int
    oracle_state: int
    backlog: int
    exposure: float
    score: float


OnRound = Callable[[RunProgress], None]


def watch_run(
    run: PreparedRun,
    on_round: OnRound | None,
    started: float,
    *,
    after_round: Callable[[RunState], None] | None = None,
) -> Rounds:
    """Run the remaining rounds of a run and write its summary; yield work as `run_rounds` does.

    Parameters
    ----------
    on_round : called with the progress after every round
    started : time.perf_counter() at the start of the run
    after_round : called with the state after every round, after `on_round`
    """

    def report(state: RunState) -> None:
        if on_round is not None:
            on_round(_describe_progress(run, state))
        if after_round is not None:
            after_round(state)

    state = yield from run_rounds(run.federation, run.folder, run.state, after_round=report)
    found = summarise(run.federation, state)
    seconds = time.perf_counter() - started
    run.folder.finish(RunSummary.from_dict({**found, "seconds": seconds}))
    return state


def _describe_progress(run: PreparedRun, state: RunState) -> RunProgress:
    settings = run.federation.settings
    return RunProgress(
        run=run.folder.path,
        seed=settings.seed,
        round=state.round,
        rounds=settings.rounds,
        oracle_state=state.oracle_state,
        backlog=state.queue.backlog,
        exposure=state.exposure,
        score=state.scores[0],
    )
