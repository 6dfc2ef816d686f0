"""The structured policy gradient, compiled, against the same algorithm as plain loops.

The loops below are an independent, literal version of Algorithm 1 with the default changes.  They
draw from the same generators in the same order, so that both produce the same numbers.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace

import numpy as np
from measurement import Timing, format_ratio, time_repeats
from reference_problem import make_queue
from section import Check, Section

from covertfl import QueueProblem
from covertfl.arrays import FloatArray
from covertfl.decision.oracle import compute_stationary_distribution
from covertfl.solvers.spga.experience import Experience
from covertfl.solvers.spga.rules import Rules, extract_rules
from covertfl.solvers.spga.search import SpgaSearch, simulate_source, solve_spga
from covertfl.solvers.spga.settings import Settings, default_settings

RUNS, ITERATIONS, ROLLOUT = 100, 4000, 100
QUICK_RUNS = 10
SLICE_ITERATIONS = 20
CAPACITIES, GROWTH_RUNS = (40, 400, 4_000), 4
LEAST_RATIO = 500.0
MOST_DIFFERENCE = 1e-9
MOST_GROWTH = 1.0
SEED = 1


def choose_settings(problem: QueueProblem) -> Settings:
    """Return the default settings with short rollouts."""
    return replace(default_settings(problem), iterations=ITERATIONS, rollout=ROLLOUT)


def spawn_generators(run: int) -> tuple[np.random.Generator, np.random.Generator]:
    """Return the generators of the search and of the simulator, as `solve_spga` makes them."""
    ours, theirs = np.random.SeedSequence([SEED, run]).spawn(2)
    return np.random.default_rng(ours), np.random.default_rng(theirs)


# --- the same algorithm as plain loops ----------------------------------------------------------


def simulate_rounds(
    problem: QueueProblem, count: int, *, generator: np.random.Generator
) -> Experience:
    """Simulate oracle path, arrivals and would-be successes, one draw at a time."""
    cumulative = np.cumsum(problem.oracle.transition, axis=1)
    distribution = np.cumsum(compute_stationary_distribution(problem.oracle))
    states = np.zeros(count, dtype=np.int64)
    for t in range(count):
        states[t] = np.searchsorted(distribution, generator.random(), side="right")
        distribution = cumulative[states[t]]
    arrival = np.zeros(count, dtype=np.int64)
    for t in range(count):
        if generator.random() < problem.arrival_probs[1]:
            arrival[t] = problem.largest_arrival
    success = np.zeros(count, dtype=np.bool_)
    for t in range(count):
        success[t] = generator.random() < problem.oracle.success[states[t]]
    return Experience(states, arrival, success)


def average_costs(
    rules: Rules,
    parameters: FloatArray,
    temperature: float,
    rounds: Experience,
    draws: FloatArray,
    y: int,
) -> tuple[float, float, int]:
    """Return average privacy and learning cost under policy (14), and the final backlog."""
    privacy, learning = 0.0, 0.0
    for t in range(len(rounds)):
        o, arrived = rounds.oracle_state[t], rounds.arrival[t]
        theta1, theta2, h = parameters[:, o, int(arrived > 0)]
        prob = h / (1.0 + np.exp((theta1 - y) / temperature))
        prob += (1.0 - h) / (1.0 + np.exp((theta2 - y) / temperature))
        learns = y > 0 and draws[t] < prob
        if learns:
            privacy += rules.privacy_cost[o]
        learning += rules.learning_cost[o, int(learns), y]
        y += arrived
        if learns and rounds.success[t]:
            y -= 1
        if y > rules.capacity:
            learning += rules.overflow_cost * (y - rules.capacity)
            y = rules.capacity
    return privacy / len(rounds), learning / len(rounds), y


def keep_in_box(parameters: FloatArray, largest: float) -> FloatArray:
    """Clip thresholds to their box and shares to 0..1."""
    boxed = np.clip(parameters, -0.1 * largest, largest)
    boxed[2] = np.clip(parameters[2], 0.0, 1.0)
    return boxed


@dataclass
class LoopSearch:
    """Algorithm 1 with the default changes, for a queue with a limit on the learning cost."""

    rules: Rules
    settings: Settings
    generator: np.random.Generator
    parameters: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        shape = (3, len(self.rules.privacy_cost), 2)
        self.parameters = np.full(shape, self.settings.first_threshold)
        self.parameters[2] = 0.5
        self.momentum, self.spread, self.average = np.zeros((3, *shape))
        # One unit of h is a tenth.
        self.unit = np.ones(shape)
        self.unit[2] = 0.1
        self.multiplier, self.smoothed = self.settings.first_multiplier, self.rules.limit
        self.averaged, self.backlog = 0, self.settings.start_backlog

    def iterate(self, n: int, rounds: Experience) -> None:
        """Make iteration n on its own rounds."""
        settings, rules = self.settings, self.rules
        done = n / settings.iterations
        draws = np.array([self.generator.random() for _ in range(len(rounds))])
        ratio = settings.last_temperature / settings.first_temperature
        tau = settings.first_temperature * ratio ** min(done / settings.cooled_by, 1.0)
        omega = settings.perturbation / (1.0 + n) ** settings.perturbation_decay
        direction = np.empty(self.parameters.shape)
        for place in np.ndindex(direction.shape):
            direction[place] = 1.0 if self.generator.random() < 0.5 else -1.0
        shift = omega * self.unit * direction
        costs = []
        for moved in (self.parameters, self.parameters + shift, self.parameters - shift):
            boxed = keep_in_box(moved, settings.largest_threshold)
            costs.append(average_costs(rules, boxed, tau, rounds, draws, self.backlog))
        (_, learning, self.backlog), (p1, l1, _), (p2, l2, _) = costs
        self.smoothed += settings.smoothing * (learning - self.smoothed)
        weight = max(0.0, self.multiplier + settings.penalty * (self.smoothed - rules.limit))
        gradient = (p1 - p2 + weight * (l1 - l2)) / (2.0 * omega) * direction
        decay = 1.0 / (1.0 + settings.step_decay * done)
        self._move(n, gradient, settings.step * decay)
        excess = learning - rules.limit
        self.multiplier = max(0.0, self.multiplier + settings.multiplier_step * decay * excess)
        if done >= settings.averages_from:
            self.averaged += 1
            self.average += (self.parameters - self.average) / self.averaged

    def _move(self, n: int, gradient: FloatArray, step: float) -> None:
        """Make a step with momentum, divided by a running root mean square."""
        memory, spread_memory = self.settings.momentum, self.settings.spread_memory
        self.momentum = memory * self.momentum + (1.0 - memory) * gradient
        self.spread = spread_memory * self.spread + (1.0 - spread_memory) * gradient**2
        mean = self.momentum / (1.0 - memory ** (n + 1))
        size = np.sqrt(self.spread / (1.0 - spread_memory ** (n + 1))) + 1e-300
        moved = self.parameters - step * self.unit * mean / size
        self.parameters = keep_in_box(moved, self.settings.largest_threshold)


def run_loops(problem: QueueProblem, settings: Settings, iterations: int) -> FloatArray:
    """Return the parameters after some iterations of one run."""
    ours, theirs = spawn_generators(0)
    search = LoopSearch(extract_rules(problem), settings, ours)
    recorded = simulate_rounds(problem, iterations * settings.rollout, generator=theirs)
    for n in range(iterations):
        part = slice(n * settings.rollout, (n + 1) * settings.rollout)
        rounds = Experience(
            recorded.oracle_state[part], recorded.arrival[part], recorded.success[part]
        )
        search.iterate(n, rounds)
    return search.parameters


# --- the comparison -----------------------------------------------------------------------------


def run_compiled(problem: QueueProblem, settings: Settings, iterations: int) -> FloatArray:
    """Return the parameters after the same iterations by covertfl."""
    ours, theirs = spawn_generators(0)
    search = SpgaSearch(extract_rules(problem), settings, generator=ours)
    search.iterate(simulate_source(problem, settings, generator=theirs), iterations)
    return np.asarray(search.result().history.parameters[-1])


def time_search(
    problem: QueueProblem, settings: Settings, *, runs: int, repeats: int
) -> tuple[Timing, Timing]:
    """Time one call of `solve_spga` on all cores, elapsed and processor time, after compiling."""
    threads = os.cpu_count() or 1
    solve_spga(problem, replace(settings, iterations=2), seed=SEED)
    elapsed, processor = [], []
    for _ in range(repeats):
        started, processor_started = time.perf_counter(), time.process_time()
        solve_spga(problem, settings, seed=SEED, runs=runs, threads=threads)
        elapsed.append(time.perf_counter() - started)
        processor.append(time.process_time() - processor_started)
    return Timing(tuple(elapsed)), Timing(tuple(processor))


def time_loops(problem: QueueProblem, settings: Settings) -> tuple[FloatArray, Timing]:
    """Time a few iterations of one run by the loops."""
    return time_repeats(lambda: run_loops(problem, settings, SLICE_ITERATIONS), repeats=10)


@dataclass(frozen=True)
class Row:
    """Timings of one size."""

    num_states: int
    runs: int
    ours: Timing
    processor: Timing
    loops: Timing | None

    @property
    def scale(self) -> float:
        """Return the work of all runs relative to the timed iterations."""
        return self.runs * ITERATIONS / SLICE_ITERATIONS

    @property
    def ratio(self) -> float:
        """Return the extrapolated time of the loops divided by covertfl's."""
        return self.loops.best * self.scale / self.ours.best if self.loops else float("nan")

    def cells(self) -> tuple[str, ...]:
        """Return the row as text."""
        loops = ("", "", "")
        if self.loops is not None:
            whole = f"{self.loops.best * self.scale:,.0f} s"
            loops = (str(self.loops), whole, format_ratio(self.ratio))
        return (f"{self.num_states:,}", str(self.runs), str(self.ours), str(self.processor), *loops)


def measure(*, quick: bool) -> Section:
    """Measure the comparison at the reference size, then larger queues."""
    problem, runs = make_queue(CAPACITIES[0]), QUICK_RUNS if quick else RUNS
    settings = choose_settings(problem)
    literal, loops = time_loops(problem, settings)
    ours = time_search(problem, settings, runs=runs, repeats=3)
    rows = [Row(problem.num_states, runs, *ours, loops)]
    # The same settings at every size: only the number of states changes.
    for capacity in CAPACITIES:
        larger = make_queue(capacity)
        timings = time_search(larger, settings, runs=GROWTH_RUNS, repeats=5)
        rows.append(Row(larger.num_states, GROWTH_RUNS, *timings, None))
    difference = np.abs(literal - run_compiled(problem, settings, SLICE_ITERATIONS)).max()
    return Section(
        "Structured policy gradient: compiled against plain loops",
        ("states", "runs", "covertfl", "processor time", "loops, timed part", "loops, extrapolated",
         "ratio"),
        tuple(row.cells() for row in rows),
        _check(rows, float(difference), quick=quick),
        {f"{row.num_states:,} states, {row.runs} runs": row.ratio for row in rows if row.loops},
        is_guarded=True,
    )  # fmt: skip


def _check(rows: list[Row], difference: float, *, quick: bool) -> tuple[Check, ...]:
    agreement = Check(
        f"in the timed part both end with the same parameters to {MOST_DIFFERENCE:g} "
        f"(largest difference {difference:.1e})",
        difference <= MOST_DIFFERENCE,
    )
    if quick:
        return (agreement,)
    first, sizes = rows[0], rows[1:]
    growth = float(
        np.polyfit(
            np.log([row.num_states for row in sizes]), np.log([row.ours.best for row in sizes]), 1
        )[0]
    )
    return (
        agreement,
        Check(
            f"at least {LEAST_RATIO:.0f} times faster ({format_ratio(first.ratio)})",
            first.ratio >= LEAST_RATIO,
        ),
        Check(
            f"time is at most linear in the number of states (exponent {growth:.2f})",
            growth <= MOST_GROWTH,
        ),
    )
