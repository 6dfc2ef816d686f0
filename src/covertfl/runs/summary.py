"""The summary of a finished run, in memory and as summary.json."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from covertfl.errors import InvalidInput
from covertfl.files.toml import read_text

SUMMARY = "summary.json"


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """Results of a run that has ended; the fields are the keys of summary.json, in order.

    Fields with a default are absent from summary.json where they do not apply.

    Parameters
    ----------
    learner_accuracy : validation accuracy of the true weights, None for a function
    decoy_accuracy : validation accuracy of each decoy's weights; only for tasks with clients
    learner_value : value of the function at the last point; this and the next two only for a
        function
    estimate_value : value at the randomised estimate of Theorem 1 of the paper
    estimate_gradient_norm_squared : squared norm of the gradient there
    updates_done : updates of the true weights
    learning_queries : rounds in which the true weights were sent
    exposure : learning queries / rounds
    completed : whether no update is owed
    updates_missing : updates still owed
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
    """

    learner_accuracy: float | None
    decoy_accuracy: tuple[float, ...] = ()
    learner_value: float | None = None
    estimate_value: float | None = None
    estimate_gradient_norm_squared: float | None = None
    updates_done: int
    rounds: int
    learning_queries: int
    exposure: float
    completed: bool
    updates_missing: int
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
    seconds: float

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> RunSummary:
        """Return the summary with the content of summary.json; unknown keys are ignored."""
        values: dict[str, Any] = {}
        for field in fields(cls):
            if field.name in content:
                value = content[field.name]
                values[field.name] = tuple(value) if isinstance(value, list) else value
            elif field.default is MISSING:
                raise InvalidInput(f"it has no {field.name}")
        if type(values["rounds"]) is not int:
            raise InvalidInput(f"rounds must be a whole number, got {values['rounds']!r:.40}")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of summary.json."""
        content: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.default is MISSING or value != field.default:
                content[field.name] = list(value) if isinstance(value, tuple) else value
        return content


def read_summary(path: str | os.PathLike[str]) -> RunSummary:
    """Return the summary in the folder of a finished run."""
    file = Path(path) / SUMMARY
    text = read_text(file, "the folder of a finished run")
    try:
        content = json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"{file} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise InvalidInput(f"{file} is not the summary of a run: it must hold a JSON object")
    try:
        return RunSummary.from_dict(content)
    except InvalidInput as error:
        raise InvalidInput(f"{file} is not the summary of a run: {error}") from error
