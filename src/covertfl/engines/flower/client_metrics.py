"""Metrics that clients reply with in training, by round, kept on the server.

Clients report on the query that they were sent: in rounds of a decoy these are a decoy's metrics.
So they are as secret as the actions, which the private part of the folder has by round.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from flwr.app import MetricRecord

from covertfl.errors import InvalidInput
from covertfl.files.atomic import write_atomically
from covertfl.files.toml import read_text
from covertfl.runs.folder import report_errors

METRICS_FILE = "private/client_metrics.jsonl"


class ClientMetrics:
    """Aggregated metrics by round, in `by_round` and in a file of a run's private folder.

    A resumed run has those of all rounds.
    """

    def __init__(self, folder: Path, by_round: dict[int, MetricRecord]) -> None:
        self._path, self.by_round = folder / METRICS_FILE, by_round
        if self._path.exists():
            by_round |= _read_metrics(self._path)
            self._rewrite()

    def keep(self, round_number: int, metrics: MetricRecord | None) -> None:
        """Store the metrics of a round, if it has any."""
        if metrics is None:
            return
        is_repeated = round_number in self.by_round
        self.by_round[round_number] = metrics
        if is_repeated:  # the round was interrupted after its metrics had come
            self._rewrite()
            return
        with report_errors(self._path):
            opened = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(opened, "w", encoding="utf-8") as file:
                file.write(_format_line(round_number, metrics))

    def _rewrite(self) -> None:
        text = "".join(_format_line(*kept) for kept in self.by_round.items())
        write_atomically(self._path, text, mode=0o600)


def _format_line(round_number: int, metrics: MetricRecord) -> str:
    return json.dumps({"round": round_number, "metrics": dict(metrics)}) + "\n"


def _read_metrics(path: Path) -> dict[int, MetricRecord]:
    try:
        # A line without an end was cut off: its round is repeated.
        lines = read_text(path, "the metrics of clients").split("\n")[:-1]
        records = [json.loads(line) for line in lines]
        return {int(record["round"]): MetricRecord(record["metrics"]) for record in records}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{path} does not hold the metrics of clients: {error}") from error
