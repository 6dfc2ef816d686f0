"""A log of past rounds, and the Markov oracle that is fitted to it (formula F11).

A participation log is a CSV file with a header and one line for each round:

============  ==============================================================================
column        meaning
============  ==============================================================================
`round`       whole numbers that go up by one from line to line
`clients`     how many clients took part
`examples`    how many training examples their replies stand for
`success`     optional; 1 or true where the replies made, or would have made, an update
`arrival`     optional; updates that fell due in the round, 0 in most
any other     numbers, such as a data-quality score, to form the oracle's states from
============  ==============================================================================

Which actions were taken in the logged rounds does not matter: neither the oracle's path nor the
would-be success of a round depends on them (section 3.1).
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from covertfl.errors import InvalidInput
from covertfl.intervals import wilson_interval
from covertfl.oracle import (
    DominanceViolation,
    FloatArray,
    IntArray,
    Oracle,
    find_dominance_violation,
)

DEFAULT_NUM_STATES = 3  # bad, middling and good rounds, as in the paper
LARGEST_WHOLE = 2.0**53  # beyond it a float no longer tells neighbours apart
JEFFREYS = 0.5  # what the prior adds to every count
LONGEST_QUOTE = 40  # characters of a cell that a message repeats


@dataclass(frozen=True, eq=False)
class ParticipationLog:
    """The rounds of a log, checked.

    Parameters
    ----------
    path : the file, as messages name it
    rounds : (n,) consecutive round numbers
    columns : (n,) finite numbers of every other column; success is 0 or 1
    text_columns : for each column without a single number, why it cannot be used
    """

    path: str
    rounds: IntArray
    columns: Mapping[str, FloatArray]
    text_columns: Mapping[str, str] = field(default_factory=dict)

    def column(self, name: str) -> FloatArray:
        """The numbers of a column; `InvalidInput` if it is not there or holds text."""
        if name in self.text_columns:
            raise InvalidInput(self.text_columns[name])
        if name not in self.columns:
            there = ", ".join(self.columns) or "round only"
            raise InvalidInput(f"{self.path} has no column {name} to use; it has {there}")
        return self.columns[name]


# --- reading -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Table:
    """The cells of a CSV file, with the line on which each row begins."""

    path: str
    header: list[str]
    lines: list[int]
    rows: list[list[str]]

    def cells(self, name: str) -> list[str]:
        position = self.header.index(name)
        return [row[position].strip() for row in self.rows]


def read_log(path: str | os.PathLike[str]) -> ParticipationLog:
    """Read a participation log and check every cell of it.

    A byte order mark, any kind of line ending and blank lines at the end are accepted.  A column
    without a meaning of its own in which no cell is a number (a date, a name) is set aside.

    Raises
    ------
    InvalidInput
        naming the file and, where there is one, the line, the column and what stands there
    """
    table = _split_rows(_read_text(os.fspath(path)), os.fspath(path))
    columns: dict[str, FloatArray] = {}
    text_columns: dict[str, str] = {}
    for name in table.header:
        try:
            columns[name] = _parse_column(table, name)
        except InvalidInput as error:
            if name in _PARSERS or any(map(_is_number, table.cells(name))):
                raise
            text_columns[name] = str(error)
    rounds = columns.pop("round").astype(np.int64)
    _check_rounds(table, rounds.tolist())
    rounds.setflags(write=False)
    return ParticipationLog(
        table.path, rounds, MappingProxyType(columns), MappingProxyType(text_columns)
    )


def read_example_log() -> ParticipationLog:
    """The log that ships with covertfl: 600 rounds of 20 simulated clients."""
    with resources.as_file(resources.files("covertfl.data") / "participation.csv") as path:
        return read_log(path)


def _read_text(path: str) -> str:
    try:
        content = Path(path).read_bytes()
    except IsADirectoryError as error:
        raise InvalidInput(
            f"{path} is a directory, a participation log must be a CSV file"
        ) from error
    except FileNotFoundError as error:
        raise InvalidInput(f"{path} does not exist, a participation log is needed") from error
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidInput(
            f"{path} line {line}: a participation log must be UTF-8 text, "
            f"got the byte 0x{content[error.start]:02x}"
        ) from error


def _split_rows(text: str, path: str) -> _Table:
    lines: list[int] = []
    rows: list[list[str]] = []
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    begin = 1
    try:
        for row in reader:
            lines.append(begin)
            rows.append(row)
            begin = reader.line_num + 1
    except csv.Error as error:
        raise InvalidInput(f"{path} line {begin}: not a row of a CSV file ({error})") from error
    while rows and _is_blank(rows[-1]):
        rows.pop()
    if not rows:
        raise InvalidInput(f"{path} is empty, a header and a line for each round are needed")
    header = [name.strip() for name in rows[0]]
    _check_header(header, path)
    if len(rows) == 1:
        raise InvalidInput(f"{path} has a header only, a line for each round is needed")
    table = _Table(path, header, lines[1 : len(rows)], rows[1:])
    _check_row_lengths(table)
    return table


def _is_blank(row: list[str]) -> bool:
    return len(row) < 2 and not "".join(row).strip()


def _check_header(header: list[str], path: str) -> None:
    for position, name in enumerate(header, start=1):
        if not name:
            raise InvalidInput(f"{path} line 1: column {position} must have a name, got a blank")
        if name in header[: position - 1]:
            raise InvalidInput(
                f"{path} line 1: column {_shorten(name)} appears twice, "
                f"in positions {header.index(name) + 1} and {position}"
            )
    if "round" not in header:
        raise InvalidInput(
            f"{path} line 1: a column named round is needed, got {_quote(', '.join(header))}"
        )


def _check_row_lengths(table: _Table) -> None:
    for line, row in zip(table.lines, table.rows, strict=True):
        if _is_blank(row):
            raise InvalidInput(f"{table.path} line {line}: blank, with more rounds after it")
        if len(row) != len(table.header):
            missing = table.header[len(row) :]
            which = f", {missing[0]} is missing" if missing else ""
            raise InvalidInput(
                f"{table.path} line {line}: the header has {len(table.header)} columns, "
                f"got {len(row)}{which}"
            )


def _shorten(text: str) -> str:
    return text if len(text) <= LONGEST_QUOTE else text[: LONGEST_QUOTE - 3] + "..."


def _quote(text: str) -> str:
    return repr(_shorten(text))


def _parse_number(text: str) -> float:
    if not text:
        raise ValueError("must be a number, got a blank cell")
    try:
        value = float(text.replace("_", "?"))  # Python would read 1_000 as a number
    except ValueError:
        raise ValueError(f"must be a number, got {_quote(text)}") from None
    if not math.isfinite(value):
        raise ValueError(f"must be a finite number, got {_quote(text)}")
    return value


def _parse_count(text: str) -> float:
    value = _parse_number(text)
    if value < 0.0:
        raise ValueError(f"must not be negative, got {_quote(text)}")
    return value


def _parse_whole(text: str) -> float:
    value = _parse_count(text)
    if not value.is_integer() or value > LARGEST_WHOLE:
        raise ValueError(f"must be a whole number, got {_quote(text)}")
    return value


def _parse_flag(text: str) -> float:
    flag = {"0": 0.0, "1": 1.0, "false": 0.0, "true": 1.0}.get(text.lower())
    if flag is None:
        came = _quote(text) if text else "a blank cell"
        raise ValueError(f"must be 0, 1, true or false, got {came}")
    return flag


_PARSERS: dict[str, Callable[[str], float]] = {
    "round": _parse_whole,
    "clients": _parse_count,
    "examples": _parse_count,
    "success": _parse_flag,
    "arrival": _parse_whole,
}


def _is_number(text: str) -> bool:
    try:
        _parse_number(text)
    except ValueError:
        return False
    return True


def _parse_column(table: _Table, name: str) -> FloatArray:
    parse = _PARSERS.get(name, _parse_number)
    values = np.empty(len(table.rows))
    for index, text in enumerate(table.cells(name)):
        try:
            values[index] = parse(text)
        except ValueError as error:
            place = f"{table.path} line {table.lines[index]}"
            raise InvalidInput(f"{place}: {_shorten(name)} {error}") from None
    values.setflags(write=False)
    return values


def _check_rounds(table: _Table, rounds: list[int]) -> None:
    """Raise for the first round that does not follow the one before it."""
    first_line: dict[int, int] = {rounds[0]: table.lines[0]}
    for before, here, line in zip(rounds, rounds[1:], table.lines[1:], strict=False):
        place = f"{table.path} line {line}"
        if here in first_line:
            raise InvalidInput(
                f"{place}: round {here} appears twice, first on line {first_line[here]}"
            )
        if here < before or (here > before + 1 and before + 1 in rounds):
            raise InvalidInput(
                f"{place}: round must go up by one from line to line, "
                f"but round {here} comes after round {before}"
            )
        if here > before + 1:
            missing = f"round {before + 1} is"
            if here > before + 2:
                missing = f"rounds {before + 1} to {here - 1} are"
            raise InvalidInput(
                f"{place}: {missing} missing, round {here} comes after round {before}"
            )
        first_line[here] = line


# --- fitting -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ArrivalFit:
    """How updates fall due, read from the `arrival` column.

    Parameters
    ----------
    arrival_prob : share of rounds with an arrival (delta)
    interval : 95% Wilson interval of it
    arrival_size : mean size of an arrival, rounded to a whole number (M)
    sizes_vary : True where arrivals differ in size, so that one size is a simplification
    num_arrivals : rounds with an arrival
    """

    arrival_prob: float
    interval: tuple[float, float]
    arrival_size: int
    sizes_vary: bool
    num_arrivals: int


@dataclass(frozen=True, eq=False)
class FittedOracle:
    """An oracle estimated from a log, with what the estimate rests on (F11).

    Parameters
    ----------
    oracle : observed shares as P^O and g
    column : the column that forms the states
    cuts : (W - 1,) increasing; a round's state is the number of cuts at or below its value
    min_examples : examples that make a success; None where the success column decided
    num_rounds : rounds in the log
    visits : (W,) rounds in each state
    transition_counts : (W, W) moves from row to column, num_rounds - 1 in all
    transition_interval : (W, W, 2) 95% Wilson interval of each chance on its own
    success_counts : (W, 2) successes and trials in each state
    success_interval : (W, 2) 95% Wilson interval of each success chance
    arrival : None where the log has no arrival column or no arrival happened
    dominance_violation : first pair of rows of the estimate that breaks M1, if any
    """

    oracle: Oracle
    column: str
    cuts: tuple[float, ...]
    min_examples: float | None
    num_rounds: int
    visits: IntArray
    transition_counts: IntArray
    transition_interval: FloatArray
    success_counts: IntArray
    success_interval: FloatArray
    arrival: ArrivalFit | None
    dominance_violation: DominanceViolation | None


def fit_oracle(
    log: ParticipationLog,
    *,
    column: str = "clients",
    num_states: int | None = None,
    cuts: Sequence[float] | None = None,
    min_examples: float | None = None,
) -> FittedOracle:
    """Estimate P^O and g by counting (the maximum likelihood estimate; F11).

    Parameters
    ----------
    column : the column that forms the states; a higher value is a better state
    num_states : W >= 2 states, as equally filled as ties allow; 3 where no cuts are given
    cuts : increasing values at which a new state begins; not together with num_states
    min_examples : a round with at least this many examples is a success; where it is given it
        goes before a success column, where it is not the log must have one

    Raises
    ------
    InvalidInput
        where the log cannot tell: no such column, no success, fewer than two states, a state
        without a round or without a round after it
    """
    values = log.column(column)
    if cuts is not None and num_states is not None:
        raise InvalidInput("states and cuts exclude each other: give one of the two")
    if cuts is not None:
        chosen = _check_cuts(cuts)
    else:
        wanted = DEFAULT_NUM_STATES if num_states is None else num_states
        chosen = _choose_cuts(log, column, wanted)
    states = np.searchsorted(chosen, values, side="right")
    visits = np.bincount(states, minlength=len(chosen) + 1)
    _require_visited(log, column, chosen, visits)
    moves = _count_moves(states, len(visits))
    _require_followed(log, column, chosen, moves)
    succeeded = _read_success(log, min_examples)
    successes = np.bincount(states[succeeded], minlength=len(visits))
    oracle = Oracle(moves / moves.sum(axis=1, keepdims=True), successes / visits)
    return FittedOracle(
        oracle=oracle,
        column=column,
        cuts=chosen,
        min_examples=min_examples,
        num_rounds=len(values),
        visits=visits,
        transition_counts=moves,
        transition_interval=_stack_interval(moves, moves.sum(axis=1, keepdims=True)),
        success_counts=np.stack([successes, visits], axis=1),
        success_interval=_stack_interval(successes, visits),
        arrival=_fit_arrival(log),
        dominance_violation=find_dominance_violation(oracle),
    )


def _stack_interval(successes: IntArray, trials: IntArray) -> FloatArray:
    return np.stack(wilson_interval(successes, trials), axis=-1)


def _count_moves(states: IntArray, num_states: int) -> IntArray:
    moves = np.zeros((num_states, num_states), dtype=np.int64)
    np.add.at(moves, (states[:-1], states[1:]), 1)
    return moves


def _read_success(log: ParticipationLog, min_examples: float | None) -> npt.NDArray[np.bool_]:
    if min_examples is None:
        if "success" not in log.columns:
            raise InvalidInput(
                f"{log.path} has no column success: give --min-examples, "
                "the number of examples from which a round is a success"
            )
        return log.column("success") > 0.0
    if not (math.isfinite(min_examples) and min_examples > 0.0):
        raise InvalidInput(f"min-examples must be a number above 0, got {min_examples:g}")
    return log.column("examples") >= min_examples


def _fit_arrival(log: ParticipationLog) -> ArrivalFit | None:
    sizes = log.columns.get("arrival", np.empty(0))
    happened = sizes[sizes > 0.0]
    if not len(happened):
        return None
    low, high = wilson_interval(len(happened), len(sizes))
    return ArrivalFit(
        arrival_prob=len(happened) / len(sizes),
        interval=(float(low), float(high)),
        arrival_size=math.floor(float(happened.mean()) + 0.5),
        sizes_vary=bool(np.ptp(happened) > 0.0),
        num_arrivals=len(happened),
    )


# --- states --------------------------------------------------------------------------------------


def _check_cuts(cuts: Sequence[float]) -> tuple[float, ...]:
    chosen = tuple(float(cut) for cut in cuts)
    came = ", ".join(f"{cut:g}" for cut in chosen)
    if not chosen:
        raise InvalidInput("cuts must hold at least one value, so that there are two states")
    if not all(map(math.isfinite, chosen)):
        raise InvalidInput(f"cuts must be finite numbers, got {came}")
    if any(second <= first for first, second in itertools.pairwise(chosen)):
        raise InvalidInput(f"cuts must increase, got {came}")
    return chosen


def _choose_cuts(log: ParticipationLog, column: str, num_states: int) -> tuple[float, ...]:
    if num_states < 2:
        raise InvalidInput(f"states must be at least 2, got {num_states}")
    distinct, counts = np.unique(log.column(column), return_counts=True)
    if len(distinct) == 1:
        raise InvalidInput(
            f"{log.path}: column {column} is {distinct[0]:g} in every round, "
            "which makes one state, and an oracle needs at least two"
        )
    if len(distinct) < num_states:
        raise InvalidInput(
            f"{log.path}: column {column} has {len(distinct)} different values, "
            f"which make at most {len(distinct)} states, got states {num_states}"
        )
    return tuple(float(distinct[start]) for start in _split_evenly(counts, num_states))


def _split_evenly(counts: IntArray, num_groups: int) -> list[int]:
    """Cut a row of piles into neighbouring groups, the least sum of squared sizes.

    Parameters
    ----------
    counts : (d,) size of each pile, at least 1; piles stay whole
    num_groups : 2 .. d

    Returns
    -------
    the first pile of each group but the first
    """
    ends = np.concatenate([[0.0], np.cumsum(counts, dtype=np.float64)])
    best = ends**2
    origins = []
    for groups in range(2, num_groups + 1):
        best, origin = _add_group(best, ends, groups)
        origins.append(origin)
    starts = [len(counts)]
    for origin in reversed(origins):
        starts.append(int(origin[starts[-1]]))
    return starts[:0:-1]


def _add_group(best: FloatArray, ends: FloatArray, groups: int) -> tuple[FloatArray, IntArray]:
    """One step of the recursion: the least cost of the first b piles in `groups` groups.

    The best place for the last group to begin does not fall as b grows (the square of a size is
    convex), so halving the range of b halves the places to try: d log d work in place of d^2.
    """
    last = len(ends) - 1
    cost = np.full(len(ends), np.inf)
    origin = np.zeros(len(ends), dtype=np.int64)
    pending = [(groups, last, groups - 1, last - 1)]
    while pending:
        low, high, first, final = pending.pop()
        if low > high:
            continue
        middle = (low + high) // 2
        places = slice(first, min(final, middle - 1) + 1)
        tried = best[places] + (ends[middle] - ends[places]) ** 2
        found = first + int(tried.argmin())
        cost[middle], origin[middle] = tried[found - first], found
        pending += [(low, middle - 1, first, found), (middle + 1, high, found, final)]
    return cost, origin


def _describe_state(column: str, cuts: tuple[float, ...], state: int) -> str:
    low = f"{cuts[state - 1]:g} <= " if state else ""
    high = f" < {cuts[state]:g}" if state < len(cuts) else ""
    return f"state {state} ({low}{column}{high})"


def _require_visited(
    log: ParticipationLog, column: str, cuts: tuple[float, ...], visits: IntArray
) -> None:
    came = ", ".join(f"{cut:g}" for cut in cuts)
    filled = np.flatnonzero(visits)
    if len(filled) == 1:
        raise InvalidInput(
            f"{log.path}: cuts {came} put every round into "
            f"{_describe_state(column, cuts, int(filled[0]))}, and an oracle needs two states"
        )
    for state in np.flatnonzero(visits == 0):
        values = log.column(column)
        raise InvalidInput(
            f"{log.path}: cuts {came} leave {_describe_state(column, cuts, int(state))} without "
            f"a round, {column} runs from {values.min():g} to {values.max():g}"
        )


def _require_followed(
    log: ParticipationLog, column: str, cuts: tuple[float, ...], moves: IntArray
) -> None:
    for state in np.flatnonzero(moves.sum(axis=1) == 0):
        raise InvalidInput(
            f"{log.path}: {_describe_state(column, cuts, int(state))} occurs in the last round "
            f"only (round {log.rounds[-1]}), so that nothing says what follows it; "
            "give other cuts or fewer states"
        )


# --- uncertainty ---------------------------------------------------------------------------------


def _as_counts(values: npt.ArrayLike, name: str) -> FloatArray:
    try:
        counts = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} must be numbers in rows of one length") from error
    if counts.ndim != 2:
        raise InvalidInput(f"{name} must be rows of numbers")
    for row, column in np.argwhere(~(np.isfinite(counts) & (counts >= 0.0))):
        raise InvalidInput(
            f"{name} row {row} must hold counts of at least 0, "
            f"got {counts[row, column]:g} in column {column}"
        )
    return counts


def _check_success_counts(counts: FloatArray, num_states: int) -> None:
    if counts.shape != (num_states, 2):
        raise InvalidInput(
            f"success_counts must have successes and trials for each of the {num_states} oracle "
            f"states, got {counts.shape[0]} x {counts.shape[1]}"
        )
    for state, (successes, trials) in enumerate(counts):
        if successes > trials:
            raise InvalidInput(
                f"success_counts row {state} must not have more successes than trials, "
                f"got {successes:g} of {trials:g}"
            )


def sample_oracles(
    transition_counts: npt.ArrayLike,
    success_counts: npt.ArrayLike,
    num_samples: int,
    *,
    generator: np.random.Generator,
) -> list[Oracle]:
    """Draw oracles that the counts allow, to carry their uncertainty further (F11 into F5).

    The law is the posterior under Jeffreys' prior: every row of P^O is Dirichlet(counts + 1/2),
    every g(o) is Beta(successes + 1/2, failures + 1/2), all independent.  A move that was never
    seen keeps a small chance, because the counts do not rule it out.

    Parameters
    ----------
    transition_counts : (W, W) moves from row to column, at least 0
    success_counts : (W, 2) successes and trials in each state
    num_samples : how many oracles, at least 1
    generator : source of all randomness

    Returns
    -------
    `num_samples` oracles of W states
    """
    moves = _as_counts(transition_counts, "transition_counts")
    if moves.shape[0] != moves.shape[1] or not moves.size:
        raise InvalidInput(
            f"transition_counts must be square, got {moves.shape[0]} x {moves.shape[1]}"
        )
    outcomes = _as_counts(success_counts, "success_counts")
    _check_success_counts(outcomes, len(moves))
    if num_samples < 1:
        raise InvalidInput(f"num_samples must be at least 1, got {num_samples}")
    # A Dirichlet draw is a row of gamma draws divided by its sum.
    weights = generator.standard_gamma(moves + JEFFREYS, size=(num_samples, *moves.shape))
    rows = weights / weights.sum(axis=2, keepdims=True)
    successes, failures = outcomes[:, 0], outcomes[:, 1] - outcomes[:, 0]
    chances = generator.beta(
        successes + JEFFREYS, failures + JEFFREYS, size=(num_samples, len(moves))
    )
    return [Oracle(row, chance) for row, chance in zip(rows, chances, strict=True)]
