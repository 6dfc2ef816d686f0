"""The structured policy gradient: searches, their sources and their history."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from covertfl.decision.problem import FiniteHorizon, LearningCost
from covertfl.errors import InvalidInput
from covertfl.evaluation.queue import evaluate_queue_policy
from covertfl.solvers.spga.experience import Experience, SimulatedSource
from covertfl.solvers.spga.result import SpgaRun
from covertfl.solvers.spga.rules import extract_rules
from covertfl.solvers.spga.score import measure_gap
from covertfl.solvers.spga.search import SpgaSearch, search_policy, solve_spga
from covertfl.solvers.spga.settings import default_settings, horizon_settings, printed_settings
from tests.support.paper_queues import (
    FALLING_COST,
    REFERENCE_RULES,
    TEXT_ORACLE,
    reference_queue,
    unlike_queue,
)

SHORT: dict[str, Any] = {"iterations": 60, "rollout": 200}


# --- the search ---------------------------------------------------------------------------------


def contents(run: SpgaRun) -> list[bytes]:
    history = [getattr(run.history, part.name) for part in fields(run.history)]
    return [part.tobytes() for part in (run.parameters, np.array(run.multiplier), *history)]


def test_results_depend_on_the_seed_alone() -> None:
    problem = reference_queue()
    settings = default_settings(problem, **SHORT)
    one = solve_spga(problem, settings, seed=3, runs=4, threads=1)
    two = solve_spga(problem, settings, seed=3, runs=4, threads=2)
    fewer = solve_spga(problem, settings, seed=3, runs=2, threads=2)
    assert [contents(run) for run in one] == [contents(run) for run in two]
    assert [contents(run) for run in one[:2]] == [contents(run) for run in fewer]
    other = solve_spga(problem, settings, seed=4)
    assert len({contents(run)[0] for run in one + other}) == 5


def test_horizon_results_depend_on_the_seed_alone() -> None:
    problem = FiniteHorizon(TEXT_ORACLE, FALLING_COST, LearningCost("quadratic", 0.6), 12, 5)
    settings = horizon_settings(problem, iterations=30)
    one, two = (
        solve_spga(problem, settings, seed=3, runs=3, threads=threads) for threads in (1, 2)
    )
    assert [contents(run) for run in one] == [contents(run) for run in two]


@pytest.mark.parametrize("variant", ["default", "printed", "tracking"])
def test_parameters_stay_in_their_box(variant: str) -> None:
    problem = reference_queue()
    settings = {
        "default": default_settings(problem, **SHORT),
        "printed": printed_settings(problem, iterations=60),
        "tracking": default_settings(problem, **SHORT, tracking=True),
    }[variant]
    settings = replace(settings, step=50.0)  # far too long, so that the edges are met
    run = solve_spga(problem, settings, seed=1)[0]
    theta, h = run.history.parameters[:, :2], run.history.parameters[:, 2]
    largest = settings.largest_threshold
    assert -0.1 * largest <= theta.min() and theta.max() <= largest
    assert h.min() >= 0.0 and h.max() <= 1.0
    assert theta.max() == largest or theta.min() == -0.1 * largest
    assert np.all(run.history.multiplier >= 0.0)


def test_history_has_a_row_for_each_iteration() -> None:
    problem = reference_queue()
    reported: list[int] = []
    settings = default_settings(problem, **SHORT)
    run = solve_spga(
        problem,
        settings,
        seed=1,
        on_progress=lambda done, _privacy, _learning: reported.append(done),
    )[0]
    assert reported[-1] == 60
    assert run.history.parameters.shape == (60, 3, 3, 2)
    for costs in (run.history.privacy_cost, run.history.learning_cost, run.history.multiplier):
        assert costs.shape == (60,) and np.all(np.isfinite(costs))
    assert run.parameters.shape == (3, 3, 2)
    # The second half of the iterates is averaged.
    assert run.parameters == pytest.approx(run.history.parameters[30:].mean(axis=0))
    last = solve_spga(problem, replace(settings, averages_from=1.0), seed=1)[0]
    assert np.array_equal(last.parameters, last.history.parameters[-1])


def test_printed_multiplier_follows_the_learning_costs() -> None:
    """Equation (15) once more, from the learning costs that a search has seen."""
    problem = reference_queue()
    run = solve_spga(problem, printed_settings(problem, iterations=400), seed=1)[0]
    multiplier, weights, floors = 10.0, [], 0
    for n, learning in enumerate(run.history.learning_cost, start=1):
        excess, step = learning - problem.limit, 0.5 / n
        weights.append(max(0.0, multiplier + 20.0 * excess))
        floor = (1.0 - step / 20.0) * multiplier
        floors += floor > multiplier + step * excess
        multiplier = max(floor, multiplier + step * excess)
    assert run.history.multiplier == pytest.approx(np.array(weights), rel=1e-9)
    assert run.multiplier == pytest.approx(multiplier, rel=1e-9)
    assert 0 < floors < 400


@pytest.mark.parametrize("threads", [1, 2])
def test_progress_is_of_all_runs_together(threads: int) -> None:
    problem = reference_queue()
    reported: list[int] = []
    solve_spga(
        problem,
        default_settings(problem, **SHORT),
        seed=1,
        runs=3,
        threads=threads,
        on_progress=lambda done, _privacy, _learning: reported.append(done),
    )
    assert reported == sorted(reported)
    assert 0 < reported[0] <= 60 and reported[-1] == 180


def test_interrupt_does_not_wait_for_other_runs() -> None:
    """One run stops; the other, which would take minutes, is given up."""
    problem = reference_queue()
    settings = default_settings(problem, iterations=1_000_000, rollout=5_000)

    def interrupt(done: int, _privacy: float, _learning: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solve_spga(problem, settings, seed=1, runs=2, threads=2, on_progress=interrupt)


def test_types_of_a_source_do_not_matter() -> None:
    """Small integers and numbers for successes, as a file may hold them."""
    settings = default_settings(reference_queue(), **SHORT)
    rounds = simulated_rounds(12_000)
    small = Experience(
        rounds.oracle_state.astype(np.int8),
        rounds.arrival.astype(np.float64),
        rounds.success.astype(np.float64),
    )
    found = [
        search_policy(REFERENCE_RULES, Opaque(kept), settings, generator=np.random.default_rng(5))
        for kept in (rounds, small)
    ]
    assert contents(found[0]) == contents(found[1])


def test_search_goes_on_in_pieces() -> None:
    """Iterations in one piece or in several are the same search."""
    problem = reference_queue()
    settings = default_settings(problem, **SHORT)
    found = []
    for pieces in ((60,), (1, 25, 34)):
        source = Opaque(simulated_rounds(12_000))
        search = SpgaSearch(extract_rules(problem), settings, generator=np.random.default_rng(2))
        for piece in pieces:
            search.iterate(source, piece)
        assert search.iterations == 60
        found.append(search.result())
    assert contents(found[0]) == contents(found[1])


def test_refusals_name_what_came() -> None:
    problem = reference_queue()
    settings = default_settings(problem, **SHORT)
    for runs in (0, 10**12):
        with pytest.raises(InvalidInput, match=rf"runs must lie in 1..\d+, got {runs}"):
            solve_spga(problem, settings, seed=1, runs=runs)
    with pytest.raises(InvalidInput, match="threads must be a whole number of at least 1, got 0"):
        solve_spga(problem, settings, seed=1, threads=0)


def test_what_a_source_hands_out_is_checked() -> None:
    """The compiled loops would read beyond their arrays."""
    settings = default_settings(reference_queue(), **SHORT)
    search = SpgaSearch(
        extract_rules(reference_queue()), settings, generator=np.random.default_rng(0)
    )
    states, none, never = (
        np.zeros(200, dtype=np.int64),
        np.zeros(200, dtype=np.int64),
        np.zeros(200, dtype=np.bool_),
    )
    for rounds, sentence in (
        (Experience(states[:9], none[:9], never[:9]), "return the 200 rounds asked for"),
        (Experience(states, none[:9], never), "return the 200 rounds asked for"),
        (Experience(states + 3, none, never), r"lie in 0\.\.2, got 3\.\.3"),
        (Experience(states - 1, none, never), r"lie in 0\.\.2, got -1\.\.-1"),
        (Experience(states, none - 4, never), "at least 0, got -4"),
    ):
        with pytest.raises(InvalidInput, match=sentence):
            search.iterate(_Fixed(rounds), 1)
    assert search.iterations == 0


# --- what the search never sees -----------------------------------------------------------------


def simulated_rounds(count: int) -> Experience:
    return SimulatedSource(TEXT_ORACLE, 0.1, 4, generator=np.random.default_rng(21)).next_rounds(
        count
    )


class _Fixed:
    """Hands out the same rounds whatever is asked for."""

    def __init__(self, rounds: Experience) -> None:
        self._rounds = rounds

    def next_rounds(self, count: int) -> Experience:
        return self._rounds


class Opaque:
    """Recorded rounds behind `next_rounds`; to touch anything else is an error."""

    def __init__(self, recorded: Experience) -> None:
        object.__setattr__(self, "state", [recorded, 0])

    def __getattribute__(self, name: str) -> Any:
        if name != "next_rounds":
            raise AssertionError(f"the search looked at {name}")
        return object.__getattribute__(self, name)

    def next_rounds(self, count: int) -> Experience:
        state = object.__getattribute__(self, "state")
        recorded, start = state
        state[1] = start + count
        at = np.arange(start, start + count) % len(recorded)
        return Experience(recorded.oracle_state[at], recorded.arrival[at], recorded.success[at])


def test_policy_is_found_from_an_opaque_source() -> None:
    """Neither the source nor the rules hold the oracle; what is found is judged with it."""
    settings = default_settings(unlike_queue(), iterations=1000, rollout=2000)
    source = Opaque(simulated_rounds(200_000))
    run = search_policy(REFERENCE_RULES, source, settings, generator=np.random.default_rng(5))
    problem = reference_queue()
    found = run.policy(problem)
    assert measure_gap(problem, found) < 0.03
    assert evaluate_queue_policy(problem, found).learning_cost == pytest.approx(1.0, rel=0.05)
    with pytest.raises(AssertionError, match="looked at transition"):
        _ = source.transition
