"""The summary of a finished run, in memory and as summary.json."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from covertfl.errors import InvalidInput
from covertfl.files.text import is_number, read_object, shorten

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
