"""The structured policy gradient (Algorithm 1, equations (14) and (15)).

A queue's policy is searched for in the sigmoid form (14), with 3 x W x A parameters: theta_1,
theta_2 and h for each oracle state and arrival index.  Costs are averages over stretches of
experience; no transition, success or arrival probability is used, only what the rounds cost.  Each
iteration compares two perturbed policies and moves all parameters at once.  `settings` has the
printed variant of the algorithm and the corrected one.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from threading import Event, Lock
from typing import NamedTuple

import numpy as np

from covertfl.arrays import BoolArray, FloatArray, IntArray
from covertfl.decision.arguments import read_count
from covertfl.decision.problem import FiniteHorizon, Problem
from covertfl.errors import InvalidInput
from covertfl.solvers.spga.experience import Experience, ReplayedLog, SimulatedSource, Source
from covertfl.solvers.spga.result import SpgaHistory, SpgaRun
from covertfl.solvers.spga.rules import Rules, extract_rules
from covertfl.solvers.spga.settings import Settings, settings_for_log

# Rounds of experience that are fetched at a time: few enough that their memory is reused, many
# enough that the cost of the calls is negligible.
CHUNK_ROUNDS = 50_000
MAX_RUNS = 10_000


class Memory(NamedTuple):
    """State of a search between two stretches of experience; all arrays are written to.

    The first four are flat, (3 W A,) by [theta_1, theta_2, h][oracle][arrival].
    """

    parameters: FloatArray
    momentum: FloatArray
    spread: FloatArray
    average: FloatArray
    numbers: FloatArray  # multiplier, smoothed constrained cost, number of iterates averaged
    counters: IntArray  # iteration, backlog


OnIteration = Callable[[int, float, float], None]


class SpgaSearch:
    """A search that can be continued: it keeps its parameters, its multiplier and its backlog.

    It starts from (3, W, A) `parameters` of an earlier search, or from the settings' thresholds.
    """

    def __init__(
        self,
        rules: Rules,
        settings: Settings,
        *,
        generator: np.random.Generator,
        parameters: FloatArray | None = None,
    ) -> None:
        self.rules, self.settings, self._generator = rules, settings, generator
        self._shape = (3, len(rules.privacy_cost), len(rules.arrival_support))
        if parameters is None:
            parameters = np.full(self._shape, settings.first_threshold)
            parameters[2] = 0.5
        self._memory = Memory(
            parameters=parameters.flatten(),
            momentum=np.zeros(parameters.size),
            spread=np.zeros(parameters.size),
            average=np.zeros(parameters.size),
            numbers=np.array([settings.first_multiplier, rules.limit, 0.0]),
            counters=np.array([0, settings.start_backlog], dtype=np.int64),
        )
        self._history = np.empty((settings.iterations, 3 + parameters.size))

    @property
    def iterations(self) -> int:
        """Number of iterations done so far."""
        return int(self._memory.counters[0])

    def iterate(self, source: Source, iterations: int) -> None:
        """Run `iterations` more iterations of Algorithm 1 on experience from a source."""
        from covertfl.solvers.spga.kernel import advance

        wanted = iterations * self.settings.rounds_per_iteration
        rounds = _check_rounds(source.next_rounds(wanted), wanted, len(self.rules.privacy_cost))
        schedule = self.settings.as_tuple()
        advance(self._generator, self.rules, schedule, self._memory, rounds, self._history)

    def result(self) -> SpgaRun:
        """Return what has been found so far."""
        memory, done = self._memory, min(self.iterations, len(self._history))
        found = memory.average if memory.numbers[2] > 0.0 else memory.parameters
        history = self._history[:done]
        return SpgaRun(
            parameters=found.reshape(self._shape).copy(),
            temperature=self.settings.last_temperature,
            multiplier=float(memory.numbers[0]),
            history=SpgaHistory(
                privacy_cost=history[:, 0].copy(),
                learning_cost=history[:, 1].copy(),
                multiplier=history[:, 2].copy(),
                parameters=history[:, 3:].reshape(done, *self._shape).copy(),
            ),
        )


def _check_rounds(
    experience: Experience, wanted: int, num_oracle: int
) -> tuple[IntArray, IntArray, BoolArray]:
    """Return arrays of the types that the loops are compiled for, which check no index.

    Raises `InvalidInput` for rounds that the loops cannot take.
    """
    states = np.ascontiguousarray(experience.oracle_state, dtype=np.int64)
    arrival = np.ascontiguousarray(experience.arrival, dtype=np.int64)
    success = np.ascontiguousarray(experience.success, dtype=np.bool_)
    lengths = {len(states), len(arrival), len(success)}
    if lengths != {wanted}:
        raise InvalidInput(
            f"a source must return the {wanted} rounds asked for, got {min(lengths)}"
        )
    if wanted and not (states.min() >= 0 and states.max() < num_oracle):
        raise InvalidInput(
            f"a source's oracle states must lie in 0..{num_oracle - 1}, "
            f"got {states.min()}..{states.max()}"
        )
    if wanted and arrival.min() < 0:
        raise InvalidInput(f"a source's arrivals must be at least 0, got {arrival.min()}")
    return states, arrival, success


def search_policy(
    rules: Rules,
    source: Source,
    settings: Settings,
    *,
    generator: np.random.Generator,
    on_progress: OnIteration | None = None,
) -> SpgaRun:
    """Search for a policy on experience from any source (Algorithm 1).

    The rounds from `source` are all that the search observes of the oracle.  `on_progress` is
    called with the iterations done and the latest privacy and learning cost.
    """
    search = SpgaSearch(rules, settings, generator=generator)
    chunk = max(1, CHUNK_ROUNDS // settings.rounds_per_iteration)
    while search.iterations < settings.iterations:
        search.iterate(source, min(chunk, settings.iterations - search.iterations))
        if on_progress is not None:
            latest = search._history[search.iterations - 1]
            on_progress(search.iterations, float(latest[0]), float(latest[1]))
    return search.result()


def search_recorded(
    problem: Problem,
    recorded: Experience,
    *,
    iterations: int,
    generator: np.random.Generator,
    on_progress: OnIteration | None = None,
) -> SpgaRun:
    """Search for a policy on recorded rounds, which are replayed (Algorithm 1).

    Only the costs and the limit of the problem are used, none of its probabilities.
    """
    return search_policy(
        extract_rules(problem),
        ReplayedLog(recorded),
        settings_for_log(problem, recorded, iterations=iterations),
        generator=generator,
        on_progress=on_progress,
    )


def simulate_source(
    problem: Problem, settings: Settings, *, generator: np.random.Generator
) -> SimulatedSource:
    """Return a simulator of a problem.

    If a queue's backlog is not carried over, every rollout starts in the best oracle state.
    """
    if isinstance(problem, FiniteHorizon):
        return SimulatedSource(problem.oracle, generator=generator)
    best = problem.oracle.num_states - 1
    return SimulatedSource(
        problem.oracle,
        problem.arrival_probs[1:],
        problem.arrival_support[1:],
        generator=generator,
        first=None if settings.carries_over else best,
        episode=None if settings.carries_over else settings.rollout,
    )


def solve_spga(
    problem: Problem,
    settings: Settings,
    *,
    seed: int,
    runs: int = 1,
    threads: int = 1,
    on_progress: OnIteration | None = None,
) -> list[SpgaRun]:
    """Run independent searches (Algorithm 1) on simulators of a problem.

    Parameters
    ----------
    problem : a queue, or a finite horizon, of which the best stationary thresholds are searched
    seed : seed of all runs; run r depends on it alone, not on the number of runs or threads
    on_progress : called with the iterations done in all runs together and the latest costs of one
    """
    if not 1 <= runs <= MAX_RUNS:
        raise InvalidInput(f"runs must lie in 1..{MAX_RUNS}, got {runs}")
    read_count(threads, "threads")
    rules, done, lock, stopped = extract_rules(problem), [0] * runs, Lock(), Event()

    def run(number: int) -> SpgaRun:
        def report(iterations: int, privacy: float, learning: float) -> None:
            if stopped.is_set():
                raise CancelledError
            if on_progress is not None:
                with lock:
                    done[number] = iterations
                    on_progress(sum(done), privacy, learning)

        for_search, for_source = np.random.SeedSequence([seed, number]).spawn(2)
        return search_policy(
            rules,
            simulate_source(problem, settings, generator=np.random.default_rng(for_source)),
            settings,
            generator=np.random.default_rng(for_search),
            on_progress=report,
        )

    with ThreadPoolExecutor(max_workers=threads) as pool:
        try:
            return list(pool.map(run, range(runs)))
        finally:
            stopped.set()  # after an interrupt, runs in progress stop at their next report
