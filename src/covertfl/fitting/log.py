"""Participation logs: which clients took part in past rounds, and with how many examples.

A participation log is a CSV file with a header and one line for each round:

============  ==============================================================================
column        meaning
============  ==============================================================================
`round`       whole numbers that increase by one from line to line
`clients`     number of clients that took part
`examples`    number of training examples behind their replies
`success`     optional; 1 or true if the replies made, or would have made, an update
`arrival`     optional; number of updates that arrived in the round, mostly 0
any other     numbers, such as a data-quality score, from which oracle states can be formed
============  ==============================================================================

Rounds may be missing and cells blank where gaps are skipped.  A round with a blank cell that is
needed counts as a missing one, and no move between states is counted across a gap.

The actions taken in the logged rounds do not matter: neither the oracle's path nor the would-be
success of a round depends on them (section 3.1).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np

from covertfl.arrays import FloatArray, IntArray
from covertfl.decision.arguments import quote, require_type
from covertfl.errors import InvalidInput
from covertfl.files.table import split_rows
from covertfl.files.text import read_text

LARGEST_WHOLE = 2.0**53  # beyond it floats do not represent every whole number
LONGEST_QUOTE = 40  # characters of a cell that a message quotes
MOST_LISTED = 5  # gaps and blank cells that a sentence lists
SKIPPED = "; gaps = skip (--gaps skip) leaves such rounds out"

Gaps = Literal["refuse", "skip"]


@dataclass(frozen=True, eq=False)
class ParticipationLog:
    """The validated rounds of a log.

    Parameters
    ----------
    path : name of the file for messages
    rounds : (n,) round numbers: consecutive, or increasing if gaps are skipped
    columns : (n,) finite numbers of every other column; success is 0 or 1; NaN for a blank cell
    text_columns : why each column without any number cannot be used
    gaps : what is done about missing rounds and blank cells
    """

    path: str
    rounds: IntArray
    columns: Mapping[str, FloatArray]
    text_columns: Mapping[str, str] = field(default_factory=dict)
    gaps: Gaps = "refuse"

    def column(self, name: str) -> FloatArray:
        """Return the numbers of a column; raise `InvalidInput` if it is missing or holds text."""
        require_type(name, str, "column")
        if name in self.text_columns:
            raise InvalidInput(self.text_columns[name])
        if name not in self.columns:
            there = ", ".join(self.columns) or "round only"
            raise InvalidInput(f"{self.path} has no column {name} to use; it has {there}")
        return self.columns[name]

    def keep_complete(self, needed: Iterable[str]) -> ParticipationLog:
        """Return the log without the rounds in which a cell of a needed column is blank."""
        names = [name for name in dict.fromkeys(needed) if name in self.columns]
        kept = np.ones(len(self.rounds), dtype=np.bool_)
        for name in names:
            kept &= ~np.isnan(self.columns[name])
        if not kept.any():
            raise InvalidInput(
                f"{self.path}: every round has a blank cell in one of {', '.join(names)}"
            )
        return replace(
            self,
            rounds=self.rounds[kept],
            columns={name: values[kept] for name, values in self.columns.items()},
        )

    def find_skipped(self, needed: Iterable[str]) -> SkippedRounds:
        """Return the rounds that are missing, and the blank cells of needed columns."""
        after = np.flatnonzero(np.diff(self.rounds) > 1)
        missing = [
            (before + 1, here - 1)
            for before, here in zip(self.rounds[after], self.rounds[after + 1], strict=True)
        ]
        blank = [
            (int(self.rounds[place]), name)
            for name in dict.fromkeys(needed)
            for place in np.flatnonzero(np.isnan(self.columns.get(name, np.empty(0))))
        ]
        return SkippedRounds(
            tuple((int(first), int(last)) for first, last in missing), tuple(sorted(blank))
        )


@dataclass(frozen=True)
class SkippedRounds:
    """What a log lacks.

    Parameters
    ----------
    missing : first and last round of each stretch of rounds without a line
    blank : round and column of each blank cell that was needed
    """

    missing: tuple[tuple[int, int], ...] = ()
    blank: tuple[tuple[int, str], ...] = ()

    @property
    def sentence(self) -> str | None:
        """A sentence for the user, None if nothing is lacking."""
        parts = []
        if self.missing:
            count = sum(last - first + 1 for first, last in self.missing)
            spans = [
                f"{first}" if first == last else f"{first} to {last}"
                for first, last in self.missing
            ]
            parts.append(f"{_count(count, 'round')} without a line ({_list_some(spans)})")
        if self.blank:
            count = len({number for number, _ in self.blank})
            cells = [f"{column} of round {number}" for number, column in self.blank]
            parts.append(f"{_count(count, 'round')} with a blank cell ({_list_some(cells)})")
        if not parts:
            return None
        return f"Skipped {' and '.join(parts)}; no transition is counted across a gap."

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of `covertfl fit --json`."""
        return {
            "missing": [list(span) for span in self.missing],
            "blank": [{"round": number, "column": column} for number, column in self.blank],
        }


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + "s" * (number > 1)


def _list_some(names: list[str]) -> str:
    more = len(names) - MOST_LISTED
    return ", ".join(names[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class _Table:
    """The cells of a CSV file, with the line on which each row begins."""

    path: str
    header: list[str]
    lines: list[int]
    rows: list[list[str]]

    def cells(self, name: str) -> list[str]:
        """Return the cells of a column, without surrounding blanks."""
        position = self.header.index(name)
        return [row[position].strip() for row in self.rows]


def read_log(path: str | os.PathLike[str], *, gaps: Gaps = "refuse") -> ParticipationLog:
    """Read a participation log and check every cell of it.

    A byte order mark, any kind of line ending and blank lines at the end are accepted.  A column
    of another name in which no cell is a number (a date, a name) is ignored.

    Parameters
    ----------
    gaps : whether missing rounds and blank cells are refused or skipped

    Raises
    ------
    InvalidInput
        if the log is wrong, naming the file and, if there is one, the line, the column and the cell
    """
    if gaps not in get_args(Gaps):
        raise InvalidInput(f"gaps must be {' or '.join(get_args(Gaps))}, got {quote(gaps)}")
    is_whole = gaps == "refuse"
    name = os.fspath(path)
    table = _make_table(split_rows(name, read_text(path, "a participation log")), name, is_whole)
    columns: dict[str, FloatArray] = {}
    text_columns: dict[str, str] = {}
    for name in table.header:
        try:
            columns[name] = _parse_column(table, name, is_whole)
        except InvalidInput as error:
            if name in _PARSERS or any(map(_has_number, table.cells(name))):
                raise
            text_columns[name] = str(error)
    rounds = columns.pop("round").astype(np.int64)
    _check_rounds(table, rounds.tolist(), is_whole)
    rounds.setflags(write=False)
    return ParticipationLog(
        table.path, rounds, MappingProxyType(columns), MappingProxyType(text_columns), gaps
    )


def _make_table(rows: list[tuple[int, list[str]]], path: str, is_whole: bool) -> _Table:
    while rows and _is_blank(rows[-1][1]):
        rows.pop()
    if not rows:
        raise InvalidInput(f"{path} is empty, a header and a line for each round are needed")
    header = [name.strip() for name in rows[0][1]]
    _check_header(header, path)
    kept = [entry for entry in rows[1:] if is_whole or "".join(entry[1]).strip()]
    if not kept:
        raise InvalidInput(f"{path} has a header only, a line for each round is needed")
    table = _Table(path, header, [line for line, _ in kept], [row for _, row in kept])
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
            f"{path} line 1: a column named round is needed, got {_shorten(', '.join(header))!r}"
        )


def _check_row_lengths(table: _Table) -> None:
    for line, row in zip(table.lines, table.rows, strict=True):
        if _is_blank(row):
            raise InvalidInput(
                f"{table.path} line {line}: blank, with more rounds after it{SKIPPED}"
            )
        if len(row) != len(table.header):
            missing = table.header[len(row) :]
            which = f", {missing[0]} is missing" if missing else ""
            raise InvalidInput(
                f"{table.path} line {line}: the header has {len(table.header)} columns, "
                f"got {len(row)}{which}"
            )


def _shorten(text: str) -> str:
    return text if len(text) <= LONGEST_QUOTE else text[: LONGEST_QUOTE - 3] + "..."


def _parse_number(text: str) -> float:
    if not text:
        raise ValueError("must be a number, got a blank cell")
    try:
        value = float(text.replace("_", "?"))  # Python would read 1_000 as a number
    except ValueError:
        raise ValueError(f"must be a number, got {_shorten(text)!r}") from None
    if not math.isfinite(value):
        raise ValueError(f"must be a finite number, got {_shorten(text)!r}")
    return value


def _parse_count(text: str) -> float:
    value = _parse_number(text)
    if value < 0.0:
        raise ValueError(f"must not be negative, got {_shorten(text)!r}")
    return value


def _parse_whole(text: str) -> float:
    value = _parse_count(text)
    if not value.is_integer() or value > LARGEST_WHOLE:
        raise ValueError(f"must be a whole number, got {_shorten(text)!r}")
    return value


def _parse_flag(text: str) -> float:
    flag = {"0": 0.0, "1": 1.0, "false": 0.0, "true": 1.0}.get(text.lower())
    if flag is None:
        came = repr(_shorten(text)) if text else "a blank cell"
        raise ValueError(f"must be 0, 1, true or false, got {came}")
    return flag


_PARSERS: dict[str, Callable[[str], float]] = {
    "round": _parse_whole,
    "clients": _parse_count,
    "examples": _parse_count,
    "success": _parse_flag,
    "arrival": _parse_whole,
}


def _has_number(text: str) -> bool:
    try:
        _parse_number(text)
    except ValueError:
        return False
    return True


def _parse_column(table: _Table, name: str, is_whole: bool) -> FloatArray:
    parse = _PARSERS.get(name, _parse_number)
    values = np.full(len(table.rows), np.nan)
    for index, text in enumerate(table.cells(name)):
        if not (text or is_whole or name == "round"):
            continue
        try:
            values[index] = parse(text)
        except ValueError as error:
            place = f"{table.path} line {table.lines[index]}"
            hint = "" if text or name == "round" else SKIPPED
            raise InvalidInput(f"{place}: {_shorten(name)} {error}{hint}") from None
    values.setflags(write=False)
    return values


def _check_rounds(table: _Table, rounds: list[int], is_whole: bool) -> None:
    """Raise `InvalidInput` for the first round that does not follow the previous one."""
    first_line: dict[int, int] = {rounds[0]: table.lines[0]}
    known = set(rounds)
    for before, here, line in zip(rounds, rounds[1:], table.lines[1:], strict=False):
        place = f"{table.path} line {line}"
        if here in first_line:
            raise InvalidInput(
                f"{place}: round {here} appears twice, first on line {first_line[here]}"
            )
        if here < before or (here > before + 1 and before + 1 in known):
            raise InvalidInput(
                f"{place}: round must go up by one from line to line, "
                f"but round {here} comes after round {before}"
            )
        if is_whole and here > before + 1:
            missing = f"round {before + 1} is"
            if here > before + 2:
                missing = f"rounds {before + 1} to {here - 1} are"
            raise InvalidInput(
                f"{place}: {missing} missing, round {here} comes after round {before}{SKIPPED}"
            )
        first_line[here] = line
