"""The structured policy gradient (Algorithm 1, equations (14) and (15)).

A queue's policy is searched for in the sigmoid form (14), with 3 x W x 2 parameters: theta_1,
theta_2 and h for each oracle and arrival state.  Costs are averages over stretches of experience;
no transition probability, success or arrival chance is used, only what the rounds cost.  Each
iteration compares two perturbed policies and moves all parameters at once.

Two variants stand behind one function.  `printed_settings` is the algorithm as the paper has it
(deviations D12 to D17 say where it falls short); `default_settings` differs in

- the perturbation: +1 or -1 instead of 0 or 1, and the difference divided by twice its size (D13),
- common random numbers: both policies are tried on the same rounds with the same draws (D13),
- the backlog, which is carried over from one iteration to the next (D14),
- steps divided by a running root mean square of the gradient, with momentum (D17),
- long rollouts, a multiplier scaled by the problem's own costs, and an average of the iterates.

With a constant step (`tracking=True`) it follows a system that changes under it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Event, Lock

import numpy as np

from covertfl.arrays import FloatArray, IntArray
from covertfl.decision.policy import QueueTable, build_mixture_table, build_sigmoid_table
from covertfl.decision.problem import FiniteHorizon, QueueProblem
from covertfl.errors import InvalidInput
from covertfl.solvers.spga.experience import Experience, SimulatedSource, Source
from covertfl.solvers.spga.state import Memory, Rules, Schedule

# Rounds of experience that are asked for at a time: few enough that their memory is used again
# instead of being fetched from the system anew, many enough that the calls cost nothing.
CHUNK_ROUNDS = 50_000
# History is kept in memory, one row an iteration.
MOST_ITERATIONS = 10_000_000
MOST_RUNS = 10_000
# How far thresholds may go beyond the scale on which they are looked for.
BOX = 3.0
# With an endless queue the simulated backlog stops at this many times that scale.
HEADROOM = 50
# Without a capacity, thresholds are looked for up to a backlog that costs this many limits.
LIMITS_TO_LOOK = 4.0
# A cost that is charged in part of the rounds allows larger backlogs.
PARTIAL_CHARGE = 10.0
LARGEST_LOOK = 200.0
# Colder sigmoids are steps, and their odds would not fit into a number.
LEAST_TEMPERATURE = 0.01


@dataclass(frozen=True)
class Settings:
    """How the search runs.

    Parameters
    ----------
    iterations : K, parameter updates
    rollout : T, rounds over which a cost is averaged
    first_temperature, last_temperature : tau of (14), falling geometrically
    cooled_by : share of iterations after which the last temperature is reached
    perturbation, perturbation_decay : omega / n^decay, in units of backlog
    rademacher : signs +1, -1; else 0, 1 as printed
    divides : divide the difference by twice omega
    common_numbers : try both policies on the same rounds with the same draws
    carries_over : go on from the backlog of the iteration before; else from `start_backlog`
    start_backlog : where every rollout begins if nothing is carried over
    step, step_decay : kappa / (1 + decay * share of iterations done)
    printed_step : kappa / n instead
    normalises : divide by a running root mean square of the gradient
    momentum, spread_memory : memory of the running mean and mean square
    multiplier_step, penalty : kappa of the multiplier, rho of (15)
    printed_multiplier : the printed rule, with its parenthesis put right
    first_multiplier : xi_0
    smoothing : weight of the latest constrained cost in the one that the penalty uses
    largest_threshold : edge of the box for theta; its other edge is a tenth below 0
    first_threshold : where theta begins
    averages_from : share of iterations after which iterates are averaged; 1 for the last iterate
    forgetting : least weight of the latest iterate in that average, 0 for a plain mean
    """

    iterations: int
    rollout: int
    first_temperature: float
    last_temperature: float
    cooled_by: float
    perturbation: float
    perturbation_decay: float
    rademacher: bool
    divides: bool
    common_numbers: bool
    carries_over: bool
    start_backlog: int
    step: float
    step_decay: float
    printed_step: bool
    normalises: bool
    momentum: float
    spread_memory: float
    multiplier_step: float
    penalty: float
    printed_multiplier: bool
    first_multiplier: float
    smoothing: float
    largest_threshold: float
    first_threshold: float
    averages_from: float
    forgetting: float

    def __post_init__(self) -> None:
        if not 1 <= self.iterations <= MOST_ITERATIONS:
            raise InvalidInput(
                f"iterations must lie in 1..{MOST_ITERATIONS}, got {self.iterations}"
            )
        if self.rollout < 1:
            raise InvalidInput(f"rollout must be at least 1, got {self.rollout}")
        coldest = min(self.first_temperature, self.last_temperature)
        if not coldest >= LEAST_TEMPERATURE:
            raise InvalidInput(f"temperatures must be at least {LEAST_TEMPERATURE}, got {coldest}")

    @property
    def rounds_per_iteration(self) -> int:
        """Rounds of experience that one iteration takes."""
        return self.rollout if self.common_numbers else 3 * self.rollout


def extract_rules(problem: QueueProblem) -> Rules:
    """What the search knows of a problem: costs and limits, and none of the oracle's chances."""
    capacity = problem.capacity
    if capacity is None:
        capacity = int(HEADROOM * _typical_threshold(problem))
    return Rules(
        privacy_cost=np.array(problem.privacy_cost),
        learning_cost=_charge_rounds(problem, capacity),
        overflow_cost=float(problem.overflow_cost or 0.0),
        capacity=capacity,
        limit=float(problem.limit),
        minimises_privacy=problem.objective == "privacy",
        rounds=0,
        end_cost=np.zeros(capacity + 1),
    )


def _charge_rounds(problem: QueueProblem, capacity: int) -> FloatArray:
    """Learning cost of a round by action, obfuscating first, and backlog."""
    held = problem.learning_cost.at(np.arange(capacity + 1))
    obfuscating = held.copy()
    obfuscating[capacity] += problem.full_cost
    learning = held if problem.learning_cost.charged == "always" else np.zeros(capacity + 1)
    return np.stack([obfuscating, learning])


def extract_horizon_rules(problem: FiniteHorizon) -> Rules:
    """The same for a finite horizon: episodes that begin at full backlog and end with l(y)."""
    return Rules(
        privacy_cost=np.array(problem.privacy_cost),
        learning_cost=np.zeros((2, problem.updates + 1)),
        overflow_cost=0.0,
        capacity=problem.updates,
        limit=0.0,
        minimises_privacy=True,
        rounds=problem.rounds,
        end_cost=problem.terminal_cost(),
    )


def _typical_threshold(problem: QueueProblem) -> float:
    """The scale on which thresholds are looked for, from costs and limit."""
    if problem.objective == "learning":
        look = LARGEST_LOOK
    else:
        partial = problem.learning_cost.charged == "when-obfuscating"
        worth = LIMITS_TO_LOOK * (PARTIAL_CHARGE if partial else 1.0) * problem.limit
        backlog = np.arange(1, int(LARGEST_LOOK) * 10)
        if problem.capacity is not None:
            backlog = backlog[: problem.capacity]
        costly = np.flatnonzero(problem.learning_cost.at(backlog) >= worth)
        look = float(backlog[costly[0]]) if len(costly) else LARGEST_LOOK
    look = max(look, 2.0 * problem.arrival_size, 8.0)
    return look if problem.capacity is None else min(look, float(problem.capacity))


def default_settings(
    problem: QueueProblem, *, iterations: int = 2000, rollout: int = 5000, tracking: bool = False
) -> Settings:
    """The settings that measurement supports (docs/spga.md).

    Parameters
    ----------
    problem : its costs and limit set the scales; its chances are not looked at
    tracking : keep step and temperature constant, to follow a system that changes
    """
    reach = _typical_threshold(problem)
    minimised = float(np.mean(problem.privacy_cost))
    if problem.objective == "learning":
        minimised = float(problem.learning_cost.at(np.array(int(reach / 4.0))))
    price = minimised / max(problem.limit, 1e-12)
    return Settings(
        iterations=iterations,
        rollout=rollout,
        first_temperature=0.3 if tracking else max(reach / 20.0, 0.3),
        last_temperature=0.3,
        cooled_by=0.5,
        perturbation=max(reach / 20.0, 0.5),
        perturbation_decay=0.0 if tracking else 0.1,
        rademacher=True,
        divides=True,
        common_numbers=True,
        carries_over=True,
        start_backlog=0,
        step=reach / 130.0,
        step_decay=0.0 if tracking else 4.0,
        printed_step=False,
        normalises=True,
        momentum=0.9,
        spread_memory=0.99,
        multiplier_step=0.02 * price / max(problem.limit, 1e-12),
        penalty=0.3 * price / max(problem.limit, 1e-12),
        printed_multiplier=False,
        first_multiplier=price,
        smoothing=0.05,
        largest_threshold=BOX * reach,
        first_threshold=reach / 4.0,
        averages_from=0.0 if tracking else 0.5,
        forgetting=0.01 if tracking else 0.0,
    )


def settings_for_log(
    problem: QueueProblem, recorded: Experience, *, iterations: int = 2000
) -> Settings:
    """The default, for recorded rounds that are replayed.

    Where more updates arrive in them than could be done, a backlog that is carried over only grows,
    and far beyond all thresholds nothing can be learned about them: rollouts then begin anew.
    """
    settings = default_settings(problem, iterations=iterations)
    if recorded.arrival.sum() < recorded.success.sum():
        return settings
    return replace(settings, carries_over=False, start_backlog=0)


def printed_settings(problem: QueueProblem, *, iterations: int = 4000) -> Settings:
    """The algorithm as printed: step 0.5/n, rho = 20, xi_0 = 10, T = 100, a full queue at first."""
    capacity = float(extract_rules(problem).capacity)
    return Settings(
        iterations=iterations,
        rollout=100,
        first_temperature=1.0,
        last_temperature=1.0,
        cooled_by=1.0,
        perturbation=1.0,
        perturbation_decay=0.0,
        rademacher=False,
        divides=False,
        common_numbers=False,
        carries_over=False,
        start_backlog=int(capacity),
        step=0.5,
        step_decay=0.0,
        printed_step=True,
        normalises=False,
        momentum=0.0,
        spread_memory=0.0,
        multiplier_step=0.5,
        penalty=20.0,
        printed_multiplier=True,
        first_multiplier=10.0,
        smoothing=1.0,
        largest_threshold=capacity,
        first_threshold=capacity / 2.0,
        averages_from=1.0,
        forgetting=0.0,
    )


def horizon_settings(problem: FiniteHorizon, *, iterations: int = 2000) -> Settings:
    """Settings for a finite horizon: fifty episodes a rollout and nothing to constrain."""
    reach = float(problem.updates)
    return Settings(
        iterations=iterations,
        rollout=50 * problem.rounds,
        first_temperature=max(reach / 20.0, 0.3),
        last_temperature=0.3,
        cooled_by=0.5,
        perturbation=max(reach / 20.0, 0.5),
        perturbation_decay=0.1,
        rademacher=True,
        divides=True,
        common_numbers=True,
        carries_over=True,
        start_backlog=problem.updates,
        step=reach / 130.0,
        step_decay=4.0,
        printed_step=False,
        normalises=True,
        momentum=0.9,
        spread_memory=0.99,
        multiplier_step=0.0,
        penalty=0.0,
        printed_multiplier=False,
        first_multiplier=0.0,
        smoothing=0.05,
        largest_threshold=1.2 * reach + 2.0,
        first_threshold=reach / 2.0,
        averages_from=0.5,
        forgetting=0.0,
    )


@dataclass(frozen=True, eq=False)
class SpgaHistory:
    """What a run did, iteration by iteration.

    Parameters
    ----------
    privacy_cost, learning_cost : (K,) averages of the iteration's rollout
    multiplier : (K,) weight of the constrained cost
    parameters : (K, 3, W, 2) after the iteration
    """

    privacy_cost: FloatArray
    learning_cost: FloatArray
    multiplier: FloatArray
    parameters: FloatArray


@dataclass(frozen=True, eq=False)
class SpgaRun:
    """The outcome of one search.

    Parameters
    ----------
    parameters : (3, W, 2) theta_1, theta_2, h of (14)
    temperature : tau of (14)
    multiplier : weight of the constrained cost at the end
    history : what it did
    """

    parameters: FloatArray
    temperature: float
    multiplier: float
    history: SpgaHistory

    def policy(self, problem: QueueProblem) -> QueueTable:
        """The sigmoid policy as a table of a problem with a capacity in numbers."""
        return build_sigmoid_table(problem, self.parameters, self.temperature)

    def rounded_policy(self, problem: QueueProblem) -> QueueTable:
        """The policy rounded to the two-threshold form (13)."""
        first, certain, between = round_parameters(self.parameters)
        return build_mixture_table(problem, first, certain, between)


def round_parameters(parameters: FloatArray) -> tuple[IntArray, IntArray, FloatArray]:
    """The two-threshold form (13) of sigmoid parameters, as the temperature goes to 0.

    Returns
    -------
    (W, 2) first threshold, threshold of certain learning, chance in between
    """
    theta1, theta2, h = parameters
    low, high = np.minimum(theta1, theta2), np.maximum(theta1, theta2)
    between = np.where(theta1 <= theta2, h, 1.0 - h)
    first, certain = (np.maximum(np.ceil(edge), 1.0).astype(np.int64) for edge in (low, high))
    # A threshold that hardly any weight stands behind is none.
    first = np.where(between < 1e-3, certain, first)
    certain = np.where(between > 1.0 - 1e-3, first, certain)
    return first, certain, between


Progress = Callable[[int, float, float], None]


class SpgaSearch:
    """A search that can go on: it remembers its parameters, its multiplier and its backlog.

    Parameters
    ----------
    rules : costs and limit
    settings : how it runs
    generator : source of all randomness of the search
    """

    def __init__(self, rules: Rules, settings: Settings, *, generator: np.random.Generator) -> None:
        self.rules, self.settings, self._generator = rules, settings, generator
        parameters = np.full((3, len(rules.privacy_cost), 2), settings.first_threshold)
        parameters[2] = 0.5
        self._memory = Memory(
            parameters=parameters.ravel(),
            momentum=np.zeros(parameters.size),
            spread=np.zeros(parameters.size),
            average=np.zeros(parameters.size),
            numbers=np.array([settings.first_multiplier, rules.limit, 0.0]),
            counters=np.array([0, settings.start_backlog], dtype=np.int64),
        )
        self._history = np.empty((settings.iterations, 3 + parameters.size))
        self._trial: tuple[object, ...] | None = None

    @property
    def iterations(self) -> int:
        """Iterations done so far."""
        return int(self._memory.counters[0])

    def iterate(self, source: Source, iterations: int) -> None:
        """Run some more iterations on experience from a source."""
        from covertfl.solvers.spga.kernel import advance, make_trial

        if self._trial is None:
            self._trial = make_trial(self.rules)
        wanted = iterations * self.settings.rounds_per_iteration
        experience = _unify(source.next_rounds(wanted))
        _require_rounds(experience, wanted, len(self.rules.privacy_cost))
        advance(
            self._generator,
            self.rules,
            _schedule(self.settings),
            self._memory,
            self._trial,
            (experience.oracle_state, experience.arrival, experience.success),
            self._history,
        )

    def result(self) -> SpgaRun:
        """What has been found so far."""
        memory, done = self._memory, min(self.iterations, len(self._history))
        found = memory.average if memory.numbers[2] > 0.0 else memory.parameters
        shape = (3, len(self.rules.privacy_cost), 2)
        history = self._history[:done]
        return SpgaRun(
            parameters=found.reshape(shape).copy(),
            temperature=self.settings.last_temperature,
            multiplier=float(memory.numbers[0]),
            history=SpgaHistory(
                privacy_cost=history[:, 0].copy(),
                learning_cost=history[:, 1].copy(),
                multiplier=history[:, 2].copy(),
                parameters=history[:, 3:].reshape(done, *shape).copy(),
            ),
        )


def _unify(experience: Experience) -> Experience:
    """Arrays of the types that the loops are compiled for, whatever a source has them in."""
    return Experience(
        np.ascontiguousarray(experience.oracle_state, dtype=np.int64),
        np.ascontiguousarray(experience.arrival, dtype=np.int64),
        np.ascontiguousarray(experience.success, dtype=np.bool_),
    )


def _require_rounds(experience: Experience, wanted: int, num_oracle: int) -> None:
    """The compiled loops check no index, so what a source hands out is checked before them."""
    states, arrival = experience.oracle_state, experience.arrival
    lengths = {len(states), len(arrival), len(experience.success)}
    if lengths != {wanted}:
        raise InvalidInput(
            f"a source must hand out the {wanted} rounds asked for, got {min(lengths)}"
        )
    if wanted and not (states.min() >= 0 and states.max() < num_oracle):
        raise InvalidInput(
            f"a source's oracle states must lie in 0..{num_oracle - 1}, "
            f"got {states.min()}..{states.max()}"
        )
    if wanted and arrival.min() < 0:
        raise InvalidInput(f"a source's arrivals must be at least 0, got {arrival.min()}")


def _schedule(settings: Settings) -> Schedule:
    return Schedule(*(getattr(settings, name) for name in Schedule._fields))


def search_policy(
    rules: Rules,
    source: Source,
    settings: Settings,
    *,
    generator: np.random.Generator,
    on_progress: Progress | None = None,
) -> SpgaRun:
    """Search for a policy on experience from any source (Algorithm 1).

    Parameters
    ----------
    rules : costs and limit, from `extract_rules`
    source : where rounds come from; all that is ever seen of the oracle
    progress : told iterations done, latest privacy and learning cost
    """
    search = SpgaSearch(rules, settings, generator=generator)
    chunk = max(1, CHUNK_ROUNDS // settings.rounds_per_iteration)
    while search.iterations < settings.iterations:
        search.iterate(source, min(chunk, settings.iterations - search.iterations))
        if on_progress is not None:
            latest = search._history[search.iterations - 1]
            on_progress(search.iterations, float(latest[0]), float(latest[1]))
    return search.result()


def simulate_source(
    problem: QueueProblem, settings: Settings, *, generator: np.random.Generator
) -> SimulatedSource:
    """A simulator of a problem; where nothing is carried over, rollouts begin in the best state."""
    best = problem.oracle.num_states - 1
    return SimulatedSource(
        problem.oracle,
        problem.arrival_prob,
        problem.arrival_size,
        generator=generator,
        first=None if settings.carries_over else best,
        episode=None if settings.carries_over else settings.rollout,
    )


def solve_spga(
    problem: QueueProblem,
    settings: Settings,
    *,
    seed: int,
    runs: int = 1,
    threads: int = 1,
    on_progress: Progress | None = None,
) -> list[SpgaRun]:
    """Independent searches on simulators of a problem; the same for any number of threads.

    Parameters
    ----------
    seed : of all runs; run r is the same whatever the number of runs
    progress : told of the iterations done in all runs together, and the latest costs of one
    """
    return _search_many(
        extract_rules(problem),
        lambda generator: simulate_source(problem, settings, generator=generator),
        settings,
        seed=seed,
        runs=runs,
        threads=threads,
        on_progress=on_progress,
    )


def solve_spga_horizon(
    problem: FiniteHorizon,
    settings: Settings,
    *,
    seed: int,
    runs: int = 1,
    threads: int = 1,
    on_progress: Progress | None = None,
) -> list[SpgaRun]:
    """The best stationary thresholds of a horizon, searched on a simulator of it."""
    return _search_many(
        extract_horizon_rules(problem),
        lambda generator: SimulatedSource(problem.oracle, generator=generator),
        settings,
        seed=seed,
        runs=runs,
        threads=threads,
        on_progress=on_progress,
    )


def _search_many(
    rules: Rules,
    make_source: Callable[[np.random.Generator], Source],
    settings: Settings,
    *,
    seed: int,
    runs: int,
    threads: int,
    on_progress: Progress | None,
) -> list[SpgaRun]:
    if not 1 <= runs <= MOST_RUNS:
        raise InvalidInput(f"runs must lie in 1..{MOST_RUNS}, got {runs}")
    if threads < 1:
        raise InvalidInput(f"threads must be at least 1, got {threads}")
    done, lock, stopped = [0] * runs, Lock(), Event()

    def run(number: int) -> SpgaRun:
        def report(iterations: int, privacy: float, learning: float) -> None:
            if stopped.is_set():
                raise CancelledError
            if on_progress is not None:
                with lock:
                    done[number] = iterations
                    on_progress(sum(done), privacy, learning)

        ours, theirs = np.random.SeedSequence([seed, number]).spawn(2)
        return search_policy(
            rules,
            make_source(np.random.default_rng(theirs)),
            settings,
            generator=np.random.default_rng(ours),
            on_progress=report,
        )

    with ThreadPoolExecutor(max_workers=threads) as pool:
        try:
            return list(pool.map(run, range(runs)))
        finally:
            stopped.set()  # an interrupt does not wait for runs that are under way


def without(settings: Settings, change: str) -> Settings:
    """Default settings with one change taken back, for the ablation."""
    undo = ABLATIONS.get(change)
    if undo is None:
        raise InvalidInput(f"change must be one of {', '.join(ABLATIONS)}, got {change!r}")
    return replace(settings, **undo(settings))  # type: ignore[arg-type]


ABLATIONS: dict[str, Callable[[Settings], dict[str, object]]] = {
    "rademacher signs": lambda _: {"rademacher": False},
    "common random numbers": lambda _: {"common_numbers": False},
    "carrying the backlog over": lambda s: {
        "carries_over": False,
        "start_backlog": int(s.largest_threshold),
    },
    "normalised steps and momentum": lambda _: {"normalises": False},
    "averaged iterates": lambda _: {"averages_from": 1.0},
    "long rollouts": lambda _: {"rollout": 100},
    "falling temperature": lambda s: {"last_temperature": s.first_temperature},
}
