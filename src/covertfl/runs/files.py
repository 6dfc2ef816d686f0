"""The files of runs: where runs are, line files with one JSON object on each line, the summary.

A folder may be that of a run, or hold one sub-folder for each seed.

Records of rounds with few clients hold plain lists, which are easy to read.  With many, clients are
runs of consecutive numbers ("0-9998,10001") or, where that is shorter, a bitmap ("bits:" and
base64, client 0 first), and their batches repeated values ("5*9999,3").  Readers take all forms.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from covertfl.arrays import IntArray
from covertfl.errors import InvalidInput
from covertfl.files.disk import require_regular
from covertfl.files.text import is_number, parse_json, read_object, shorten

# Clients from which records are short, and numbers that a record may stand for.
MANY, MOST = 200, 10_000_000
BITS = "bits:"


def pack_clients(clients: IntArray) -> list[int] | str:
    """Return increasing client numbers, (k,), as a list or in their shortest form."""
    if len(clients) < MANY:
        return [int(client) for client in clients]
    breaks = np.flatnonzero(np.diff(clients) != 1) + 1
    ends = [(int(run[0]), int(run[-1])) for run in np.split(clients, breaks)]
    runs = ",".join(f"{first}-{last}" if last > first else str(first) for first, last in ends)
    there = np.zeros(int(clients[-1]) + 1, dtype=np.bool_)
    there[clients] = True
    bits = BITS + base64.b64encode(np.packbits(there).tobytes()).decode("ascii")
    return min(runs, bits, key=len)


def pack_counts(counts: IntArray) -> list[int] | str:
    """Return numbers of batches, (k,), as a list or as values that repeat."""
    if len(counts) < MANY:
        return [int(count) for count in counts]
    repeats = ((value, len(list(group))) for value, group in itertools.groupby(counts.tolist()))
    return ",".join(f"{value}*{number}" if number > 1 else str(value) for value, number in repeats)


def unpack_clients(packed: Any) -> Any:
    """Return the list of client numbers; what is no text is returned as it is.

    Raises
    ------
    ValueError
        if a text stands for no such list
    """
    if not isinstance(packed, str):
        return packed
    if packed.startswith(BITS):
        content = base64.b64decode(packed.removeprefix(BITS).encode(), validate=True)
        if 8 * len(content) > MOST:
            raise ValueError("too many clients")
        return np.flatnonzero(np.unpackbits(np.frombuffer(content, dtype=np.uint8))).tolist()
    pairs = (item.partition("-") for item in packed.split(","))
    ends = ((_parse(first), _parse(last if dash else first)) for first, dash, last in pairs)
    return _expand([range(first, last + 1) for first, last in ends])


def unpack_counts(packed: Any) -> Any:
    """Return the list of numbers of batches, as `unpack_clients` does."""
    if not isinstance(packed, str):
        return packed
    pairs = (item.partition("*") for item in packed.split(","))
    counted = ((_parse(value), _parse(number if star else "1")) for value, star, number in pairs)
    return _expand(list(_repeat(counted)))


def _repeat(counted: Iterator[tuple[int, int]]) -> Iterator[Sequence[int]]:
    for value, number in counted:
        if number > MOST:
            raise ValueError("too many numbers")
        yield [value] * number


def _expand(parts: Sequence[Sequence[int]]) -> list[int]:
    if sum(map(len, parts)) > MOST:
        raise ValueError("too many numbers")
    return list(itertools.chain.from_iterable(parts))


def _parse(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise ValueError(f"{text[:20]!r} is no number")
    return int(text)


def unpack_record(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record of a round with plain lists; what cannot be read is left as it is."""
    for key, unpack in (("clients", unpack_clients), ("batches", unpack_counts)):
        try:
            record[key] = unpack(record[key])
        except (KeyError, ValueError, binascii.Error):
            continue
    return record


SETTINGS = "run.toml"
# Line files: what was sent, what was done in each round, updates that were served, scores.
SENT, ROUNDS, UPDATES = "public/rounds.jsonl", "private/rounds.jsonl", "private/updates.jsonl"
METRICS = "metrics.jsonl"


def find_runs(folder: Path) -> list[Path]:
    """Return the runs in a folder: itself, or its sub-folders in the order of their numbers."""
    if not folder.is_dir():
        raise InvalidInput(f"{folder}: no such folder, the folder of a run is needed")
    if _is_run(folder):
        return [folder]
    found = [child for child in folder.iterdir() if child.is_dir() and _is_run(child)]
    if not found:
        raise InvalidInput(f"{folder} holds no run: public/ or rounds.jsonl is needed")
    return sorted(found, key=lambda child: (len(child.name), child.name))


def _is_run(folder: Path) -> bool:
    return (folder / "public").is_dir() or is_public(folder)


def is_public(folder: Path) -> bool:
    """Return whether a folder is itself a public one, of a run or as a client recorded it."""
    return not (folder / "public").is_dir() and (folder / "rounds.jsonl").is_file()


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a line file, in order; InvalidInput names the line that is wrong."""
    require_regular(path, "a line file of a run")
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                record = parse_json(line, f"{path} line {number}")
                if not isinstance(record, dict):
                    raise InvalidInput(f"{path} line {number} must be a JSON object")
                yield record
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror or error}") from error


def read_rounds(folder: Path, *, states: int, trajectories: int) -> Iterator[dict[str, Any]]:
    """Yield the private records of a run's rounds, with all that is used of them checked.

    Clients and batches are lists, also where they were written in a shorter form.

    Parameters
    ----------
    states : number of oracle states (W)
    trajectories : number of trajectories (K)

    Raises
    ------
    InvalidInput
        naming the line and the key, if a value is missing or impossible
    """
    path = folder / ROUNDS
    wanted: dict[str, tuple[Callable[[Any], bool], str]] = {
        "round": (lambda value: _is_below(value, math.inf), "a whole number"),
        "trajectory": (lambda value: _is_below(value, trajectories), f"in 0..{trajectories - 1}"),
        "oracle_state": (lambda value: _is_below(value, states), f"in 0..{states - 1}"),
        "arrival": (lambda value: _is_below(value, math.inf), "a whole number"),
        "accepted": (lambda value: type(value) is bool, "true or false"),
        "action": (lambda value: value in ("learn", "obfuscate"), "learn or obfuscate"),
        "clients": (_is_list_of_clients, "a list of whole numbers"),
    }
    for number, record in enumerate(read_lines(path), start=1):
        unpack_record(record)
        for key, (is_valid, allowed) in wanted.items():
            if not is_valid(record.get(key)):
                raise InvalidInput(
                    f"{path} line {number}: {key} must be {allowed}, "
                    f"got {shorten(record.get(key, 'nothing'))}"
                )
        yield record


def _is_below(value: object, limit: float) -> bool:
    """Return whether a value is a whole number from 0, below a limit; true is not 1."""
    return type(value) is int and 0 <= value < limit


def _is_list_of_clients(value: object) -> bool:
    return isinstance(value, list) and all(_is_below(client, math.inf) for client in value)


SUMMARY = "summary.json"


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """Results of a run that has ended; the fields are the keys of summary.json, in order.

    Fields with a default are absent from summary.json where they do not apply.

    Parameters
    ----------
    learner_accuracy : validation accuracy of the true weights
    learner_balanced_accuracy, learner_auc, learner_f1 : further scores of the true weights
        (`tasks.scores`), absent where they are not defined
    decoy_accuracy : validation accuracy of each decoy's weights
    updates_done : updates of the true weights
    learning_queries : rounds in which the true weights were sent
    exposure : learning queries / rounds
    completed : whether no update is owed
    updates_missing : updates still owed
    replies : replies that were needed or rejected
    rejected_replies, rejected_by_reason : replies that were not valid, in all and by reason
    average_privacy_cost : mean over rounds
    mean_wait : mean rounds from arrival to completion of an update, None without updates
    little_wait : the same by Little's law, from the mean backlog
    success_measured : success probabilities measured for the federation, by oracle state; None if
        they were not measured
    success_printed : success probabilities of the problem
    average_learning_cost : mean over rounds; this and the next five only for a queue
    learning_limit, privacy_limit : the one of the two that the problem sets
    lost_updates : updates that exceeded the queue's capacity
    round_seconds : seconds between the starts of rounds, where they start on a clock
    missed_ticks : starts that were missed because a round took longer
    warnings : reasons to doubt the result, each in a sentence
    """

    learner_accuracy: float
    learner_balanced_accuracy: float | None = None
    learner_auc: float | None = None
    learner_f1: float | None = None
    decoy_accuracy: tuple[float, ...] = ()
    updates_done: int
    rounds: int
    learning_queries: int
    exposure: float
    completed: bool
    updates_missing: int
    replies: int | None = None
    rejected_replies: int
    rejected_by_reason: Mapping[str, int]
    average_privacy_cost: float
    mean_wait: float | None
    little_wait: float | None
    success_measured: tuple[float, ...] | None
    success_printed: tuple[float, ...]
    average_learning_cost: float | None = None
    learning_limit: float | None = None
    privacy_limit: float | None = None
    lost_updates: int | None = None
    tasks_arrived: int | None = None
    tasks_finished: int | None = None
    round_seconds: float | None = None
    missed_ticks: int | None = None
    warnings: tuple[str, ...] = ()
    seconds: float

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> RunSummary:
        """Return the summary with the content of summary.json; unknown keys are ignored."""
        check_values(content)
        values: dict[str, Any] = {}
        for field in fields(cls):
            if field.name in content:
                value = content[field.name]
                values[field.name] = tuple(value) if isinstance(value, list) else value
            elif field.default is MISSING:
                raise InvalidInput(f"it has no {field.name}")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of summary.json."""
        content: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.default is MISSING or value != field.default:
                content[field.name] = list(value) if isinstance(value, tuple) else value
        return content


def check_values(content: Mapping[str, Any]) -> None:
    """Raise InvalidInput, naming the key, if a value of a summary is not of its field's type."""
    for field in fields(RunSummary):
        kind = str(field.type).removesuffix(" | None")
        is_valid, allowed = KINDS[kind]
        value = content.get(field.name)
        if value is None and (kind != field.type or field.name not in content):
            continue
        if not is_valid(value):
            raise InvalidInput(f"{field.name} must be {allowed}, got {shorten(value)}")


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0  # type(), because true is an int as well


def _is_row(value: object) -> bool:
    return isinstance(value, list | tuple) and all(map(is_number, value))


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(entry, str) for entry in value)


def _is_tally(value: object) -> bool:
    return isinstance(value, Mapping) and all(map(_is_count, value.values()))


# By the type of a field: the check of a value, and what is allowed.
KINDS: dict[str, tuple[Callable[[object], bool], str]] = {
    "int": (_is_count, "a whole number"),
    "float": (is_number, "a number"),
    "bool": (lambda value: type(value) is bool, "true or false"),
    "tuple[float, ...]": (_is_row, "a list of numbers"),
    "tuple[str, ...]": (_is_list_of_texts, "a list of texts"),
    "Mapping[str, int]": (_is_tally, "whole numbers by reason"),
}


def read_summary(path: str | os.PathLike[str]) -> RunSummary:
    """Return the summary in the folder of a finished run."""
    file = Path(path) / SUMMARY
    content = read_object(file, "the folder of a finished run")
    try:
        return RunSummary.from_dict(content)
    except InvalidInput as error:
        raise InvalidInput(f"{file} is not the summary of a run: {error}") from error
