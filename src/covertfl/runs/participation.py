"""The oracle state of a round, who takes part in it with how much data, and if that is enough.

As in the paper's experiments, the oracle state determines the number of clients, and each client
contributes a uniformly random number of batches, from none to all it has.  A client that draws none
is absent, which is not an error.  A round is accepted by `data`, if the examples that arrive reach
a share of all examples, or by `model`, at random with the problem's success probability (deviation
D19 in docs/deviations.md).

A problem may say what its oracle states stand for (`OracleStates`).  Then the examples of a state's
rounds have the mean that it names.  A replayed log's rounds have the states and the acceptance that
`covertfl fit` gives them: by the cuts and the least number of examples that are part of the
problem, or by the log's column `success`.  A problem that does not say what its states stand for
takes the state whose number of clients is nearest.

States and attendance are drawn from the run's seed by round (`seeding`) and do not depend on the
actions, so that a simulated client and a simulated federation draw the same, also after a resume.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from covertfl.arrays import BoolArray, FloatArray, IntArray
from covertfl.decision.oracle import Oracle, compute_stationary_distribution
from covertfl.decision.states import OracleStates
from covertfl.errors import InvalidInput
from covertfl.fitting.log import ParticipationLog, read_log
from covertfl.fitting.oracle import read_success
from covertfl.runs.settings import RunSettings
from covertfl.seeding import Stream, make_generator
from covertfl.tasks.task import TrainingTask


@dataclass(frozen=True, eq=False)
class RecordedRounds:
    """Rounds replayed from a participation log.

    Parameters
    ----------
    clients, states : (T,) number of clients and oracle state of each round
    examples : (T,) number of examples behind the replies, None if the log does not have it
    success : (T,) whether a round is accepted, None if the log does not determine it
    arrivals : (T,) how many updates arrived, None if the log has no such column
    """

    clients: IntArray
    states: IntArray
    examples: FloatArray | None = None
    success: BoolArray | None = None
    arrivals: IntArray | None = None

    def measure_success(self, num_states: int) -> FloatArray | None:
        """Return the shares of accepted rounds, (W,); None if unknown, also in a single state."""
        visits = np.bincount(self.states, minlength=num_states)
        if self.success is None or not np.all(visits):
            return None
        return np.bincount(self.states, self.success, minlength=num_states) / visits


def read_recorded(settings: RunSettings) -> RecordedRounds | None:
    """Return the rounds of a run's participation log, None if the run has none."""
    section = settings.sections.federation
    if section.log is None:
        return None
    states = settings.states
    log = read_log(section.log, gaps="refuse" if states is None or not states.gaps else "skip")
    recorded = replay_log(log, section.participation, states)
    rounds, most = len(recorded.clients), int(recorded.clients.max())
    if rounds < settings.rounds:
        raise InvalidInput(
            f"{section.log} must have at least {settings.rounds} rounds for this run, got {rounds}"
        )
    if most > section.clients:
        raise InvalidInput(
            f"{section.log}: column clients must be at most {section.clients}, the number of "
            f"clients, got {most}"
        )
    return recorded


def replay_log(
    log: ParticipationLog, participation: Sequence[int], states: OracleStates | None = None
) -> RecordedRounds:
    """Return the rounds of a log with the states and the acceptance that a fit gives them.

    Parameters
    ----------
    participation : (W,) clients by oracle state, used if the problem has no `states`, or has other
        states than by clients and the log has no column `clients`

    Rounds with a blank cell are left out, like those without a line.
    """
    log = log.keep_complete(("clients", "examples", "success", "arrival", *_list_column(states)))
    if states is not None and not states.by_clients and "clients" not in log.columns:
        found = states.classify(log.column(states.column))
        clients: FloatArray = np.array(participation, dtype=np.float64)[found]
    else:
        clients = log.column("clients")
    least = None if states is None else states.min_examples
    success = None
    if least is not None or "success" in log.columns:
        success = read_success(log, least)
    for wrong, problem in (
        (clients != np.floor(clients), "clients must be a whole number to be replayed"),
        ((clients == 0) & (success is not None and success), "a success needs clients"),
    ):
        if np.any(wrong):
            place = int(np.argmax(wrong))
            raise InvalidInput(
                f"{log.path}: {problem}, got {clients[place]:g} in round {log.rounds[place]}"
            )
    return RecordedRounds(
        clients.astype(np.int64),
        classify_clients(clients, participation)
        if states is None
        else states.classify(log.column(states.column)),
        log.columns.get("examples"),
        success,
        log.column("arrival").astype(np.int64) if "arrival" in log.columns else None,
    )


def _list_column(states: OracleStates | None) -> list[str]:
    return [] if states is None else [states.column]


def infer_state(settings: RunSettings, clients: int) -> int:
    """Return the oracle state that a number of clients shows, for states formed by clients."""
    if settings.states is not None:
        return int(settings.states.classify(clients))
    return int(classify_clients(clients, settings.sections.federation.participation))


def classify_clients(clients: npt.ArrayLike, participation: Sequence[int]) -> IntArray:
    """Return the oracle states whose number of clients, increasing by state, is nearest."""
    middles = (np.array(participation[1:]) + np.array(participation[:-1])) / 2.0
    return np.searchsorted(middles, np.asarray(clients), side="left").astype(np.int64)


# Rounds drawn to measure a success probability: its standard error is at most 0.0012.
MEASURED_ROUNDS = 200_000
# The same if no policy is solved with it: the standard error is at most 0.0036.
REPORTED_ROUNDS = 20_000
# The measured probabilities belong to the federation, not to a run, so they have a fixed seed.
MEASURING_SEED = 20
# Draws made at a time, to limit the memory needed with many clients.
DRAWS_AT_A_TIME = 4_000_000


@dataclass(frozen=True, eq=False)
class Clients:
    """The clients of a round, and the data that they hold.

    Parameters
    ----------
    task : with the rows of each client
    ignored : clients that are asked like all others, but whose replies are not used
    """

    task: TrainingTask
    ignored: frozenset[int] = frozenset()

    @cached_property
    def sizes(self) -> IntArray:
        """Number of examples of each client, (n,)."""
        return count_sizes(self.task)


def count_sizes(task: TrainingTask) -> IntArray:
    """Return the number of examples of each client, (n,)."""
    return np.array([len(rows) for rows in task.clients], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Attendance:
    """The clients that a query is sent to.

    Parameters
    ----------
    clients : (k,) numbers of the clients, increasing
    batches : (k,) batches that each client trains on; 0 if it is absent
    """

    clients: IntArray
    batches: IntArray


def count_batches(sizes: IntArray, batch_size: int) -> IntArray:
    """Return the number of batches of clients with `sizes` examples.

    Examples that do not fill a batch are left over; a client with less than one batch has one short
    batch.
    """
    return np.where(sizes > 0, np.maximum(sizes // batch_size, 1), 0)


def count_examples(batches: IntArray, sizes: IntArray, batch_size: int) -> IntArray:
    """Return the number of examples in `batches` batches of clients with `sizes` examples."""
    return np.minimum(batches * batch_size, sizes)


def draw_attendance(
    sizes: IntArray,
    count: int,
    batch_size: int,
    *,
    generator: np.random.Generator,
    mean: float | None = None,
) -> Attendance:
    """Draw `count` clients and the batches of each, uniformly between the bounds of its batches.

    Parameters
    ----------
    mean : expected number of examples of all of them together, see `bound_batches`
    """
    clients = draw_clients(len(sizes), count, generator=generator)
    low, high = bound_batches(sizes[clients], count, batch_size, mean)
    return Attendance(clients, generator.integers(low, high + 1))


def draw_clients(num_clients: int, count: int, *, generator: np.random.Generator) -> IntArray:
    """Draw `count` of the clients, (count,) numbers that increase."""
    if count > num_clients:
        raise InvalidInput(f"participation must be at most {num_clients} clients, got {count}")
    return np.sort(generator.permutation(num_clients)[:count])


def bound_batches(
    sizes: IntArray, count: int, batch_size: int, mean: float | None
) -> tuple[IntArray, IntArray]:
    """Return the least and the largest number of batches of clients with `sizes` examples.

    A uniform number between them has the mean that `mean` examples of `count` clients need, as far
    as the client has so many; from none to all it has if `mean` is None.
    """
    most = count_batches(sizes, batch_size)
    if mean is None or count == 0:
        return np.zeros_like(most), most
    twice = np.rint(np.minimum(2.0 * mean / (count * batch_size), 2.0 * most)).astype(np.int64)
    return np.maximum(twice - most, 0), np.minimum(twice, most)


def accepts_data(examples: int, total: int, min_share: float) -> bool:
    """Return whether the examples that arrived are at least a share of all, and more than none."""
    # Divide rather than multiply: 0.07 * 100 is more than 7 in floating point.
    return examples > 0 and examples / total >= min_share


@dataclass(frozen=True, eq=False)
class Acceptance:
    """When a round is a success.

    Parameters
    ----------
    success : (W,) probability by oracle state, for acceptance by model
    recorded : rounds that are replayed, None if they are drawn
    """

    settings: RunSettings
    success: FloatArray
    recorded: RecordedRounds | None = None

    def has_quorum(self, replies: int) -> bool:
        """Return whether a round has as many valid replies as it needs in any case."""
        return replies >= (self.settings.sections.federation.min_replies or 0)

    def accepts(self, sizes: IntArray, oracle_state: int, number: int, examples: int) -> bool:
        """Return whether a round with some examples of clients with (n,) sizes is a success."""
        if examples == 0:
            return False
        if self.recorded is not None and self.recorded.success is not None:
            return bool(self.recorded.success[number - 1])
        if self.settings.sections.federation.acceptance == "data":
            total = int(sizes.sum())
            return accepts_data(examples, total, find_least_share(self.settings, total))
        seed = self.settings.hidden_seed
        draw = make_generator(seed, Stream.ACCEPTANCE, number).random()
        return bool(draw < self.success[oracle_state])


def find_least_share(settings: RunSettings, total: int) -> float:
    """Return the share of all examples that acceptance by data needs.

    It is the run file's `min_share`, or the number of examples that the problem's states name.
    """
    states = settings.states
    if states is None or states.min_examples is None:
        return settings.sections.federation.min_share
    return states.min_examples / max(total, 1)


def _require_examples(settings: RunSettings, total: int) -> None:
    """Raise InvalidInput if all examples together are fewer than a round needs."""
    states, section = settings.states, settings.sections.federation
    least = 0.0 if states is None or states.min_examples is None else states.min_examples
    if section.acceptance == "data" and least > total:
        raise InvalidInput(
            f"{settings.name}: [states] min_examples must be at most {total}, the number of "
            f"examples of all clients, got {least:g}"
        )


def measure_federation(
    task: TrainingTask, settings: RunSettings, recorded: RecordedRounds | None
) -> FloatArray | None:
    """Return the success probabilities of a run's federation, by oracle state.

    They are the shares of its log where that determines the acceptance; None if it lacks a state.
    """
    if recorded is not None and recorded.success is not None:
        return recorded.measure_success(settings.problem.oracle.num_states)
    section, sizes = settings.sections.federation, tuple(map(len, task.clients))
    _require_examples(settings, sum(sizes))
    return _measure_sizes(
        sizes,
        tuple(section.participation),
        section.batch_size,
        find_least_share(settings, sum(sizes)),
        REPORTED_ROUNDS if section.acceptance == "model" else MEASURED_ROUNDS,
        None if settings.states is None else settings.states.examples,
        section.min_replies or 1,
    )


@lru_cache(maxsize=64)
def _measure_sizes(
    sizes: tuple[int, ...],
    present: tuple[int, ...],
    batch_size: int,
    share: float,
    rounds: int,
    means: tuple[float, ...] | None,
    min_replies: int,
) -> FloatArray:
    """Measure success once for all runs with clients of the same sizes."""
    return measure_success(
        np.array(sizes),
        present,
        batch_size,
        share,
        generator=np.random.default_rng(MEASURING_SEED),
        rounds=rounds,
        means=means,
        min_replies=min_replies,
    )


def measure_success(
    sizes: IntArray,
    participation: Sequence[int],
    batch_size: int,
    min_share: float,
    *,
    generator: np.random.Generator,
    rounds: int = MEASURED_ROUNDS,
    means: Sequence[float] | None = None,
    min_replies: int = 1,
) -> FloatArray:
    """Estimate the (W,) probabilities that a round is accepted by its data: g of this federation.

    Parameters
    ----------
    sizes : (n,) examples of each client
    participation : (W,) clients that take part, by oracle state
    min_share : share of all examples that is enough
    rounds : rounds drawn for each oracle state
    means : (W,) expected examples by oracle state, None if clients draw from none to all they have
    min_replies : clients with at least one example that a round needs in any case
    """
    at_once, total = max(DRAWS_AT_A_TIME // len(sizes), 1), int(sizes.sum())
    probs = []
    for state, count in enumerate(participation):
        low, high = bound_batches(sizes, count, batch_size, None if means is None else means[state])
        accepted, left = 0, rounds if count else 0
        while left > 0:
            draws = min(at_once, left)
            keys = generator.random((draws, len(sizes)))
            # The clients with the smallest keys are a uniform choice of `count` clients.
            chosen = keys <= np.partition(keys, count - 1, axis=1)[:, count - 1 : count]
            batches = generator.integers(low, high + 1, size=keys.shape) * chosen
            each = count_examples(batches, sizes, batch_size)
            examples = each.sum(axis=1)
            is_good = examples / total >= min_share
            is_good &= np.count_nonzero(each, axis=1) >= min_replies
            accepted += int(np.count_nonzero((examples > 0) & is_good))
            left -= draws
        probs.append(accepted / rounds)
    return np.array(probs)


def draw_state(
    oracle: Oracle, recorded: RecordedRounds | None, before: int, round_number: int, *, seed: int
) -> int:
    """Draw the oracle state of a round from that of the round before, or replay a recorded one.

    In the first round `before` is -1, and the state has the stationary distribution.
    """
    if recorded is not None:
        return int(recorded.states[round_number - 1])
    is_first = before < 0
    probs = compute_stationary_distribution(oracle) if is_first else oracle.transition[before]
    draw = make_generator(seed, Stream.ORACLE, round_number).random()
    state = int(np.searchsorted(np.cumsum(probs), draw, side="right"))
    return min(state, oracle.num_states - 1)


@dataclass(eq=False)
class SimulatedParticipation:
    """Oracle states and attendance of a run by round; `sizes` are the clients' (n,) examples."""

    settings: RunSettings
    sizes: IntArray
    recorded: RecordedRounds | None = None
    _path: list[int] = field(default_factory=list, repr=False)

    def state_at(self, round_number: int) -> int:
        """Return the oracle state of a round; states of earlier rounds are drawn first."""
        oracle, seed = self.settings.problem.oracle, self.settings.seed
        while len(self._path) < round_number:
            before = self._path[-1] if self._path else -1
            number = len(self._path) + 1
            self._path.append(draw_state(oracle, self.recorded, before, number, seed=seed))
        return self._path[round_number - 1]

    def attend(self, round_number: int) -> Attendance:
        """Return who takes part in a round, and with how many batches."""
        return self.draw_clients(self.state_at(round_number), round_number)

    def draw_clients(self, oracle_state: int, round_number: int) -> Attendance:
        """Draw who takes part in a round with this oracle state, and with which data."""
        generator = make_generator(self.settings.seed, Stream.PARTICIPATION, round_number)
        section, states = self.settings.sections.federation, self.settings.states
        size = section.batch_size
        if self.recorded is not None:
            return attend_recorded(
                self.sizes, size, self.recorded, round_number, generator=generator
            )
        mean = None
        if states is not None and states.examples is not None:
            mean = states.examples[oracle_state]
        count = section.participation[oracle_state]
        return draw_attendance(self.sizes, count, size, generator=generator, mean=mean)


def attend_recorded(
    sizes: IntArray,
    batch_size: int,
    recorded: RecordedRounds,
    round_number: int,
    *,
    generator: np.random.Generator,
) -> Attendance:
    """Draw the clients of a recorded round and divide its examples among them, in whole batches.

    Which clients take part is drawn.  Every one trains on at least one batch if there are enough;
    the other batches are a uniform choice among those that the clients have.  Clients that have
    fewer examples than were recorded train on all they have.
    """
    place = round_number - 1
    clients = draw_clients(len(sizes), int(recorded.clients[place]), generator=generator)
    most = count_batches(sizes[clients], batch_size)
    if recorded.examples is None:
        wanted = int(generator.integers(0, most + 1).sum())
    else:
        wanted = round(float(recorded.examples[place]) / batch_size)
    if recorded.success is not None and recorded.success[place]:
        wanted = max(wanted, 1)  # an accepted round has a reply
    first = np.minimum(most, 1)
    spare = min(wanted, int(most.sum())) - int(first.sum())
    if spare < 0:
        return Attendance(clients, generator.multivariate_hypergeometric(first, wanted))
    return Attendance(clients, first + generator.multivariate_hypergeometric(most - first, spare))
