"""What clients were sent: all that an eavesdropper may read of a run.

Eavesdroppers are given a `PublicTranscript`, which is made from the public folder alone and cannot
reach anything else of a run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covertfl.errors import InvalidInput
from covertfl.files.disk import read_bytes
from covertfl.kernels.job import Vector, name_content
from covertfl.runs.files import read_lines

LARGEST_ROUND = 2**53  # larger numbers are not exact in JSON as others read it


@dataclass(frozen=True)
class PublicRecord:
    """One query as clients saw it: its client (None for all) and the SHA-256 of the weights."""

    round: int
    client: int | None
    weights: str


class PublicTranscript:
    """The queries of a run, in order, and the weights that were sent, from its public folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self.records = tuple(self._read_records())

    def _read_records(self) -> Iterator[PublicRecord]:
        path = self._folder / "rounds.jsonl"
        for number, record in enumerate(read_lines(path), start=1):
            if set(record) != {"round", "client", "weights"}:
                raise InvalidInput(
                    f"{path} line {number} must have the keys round, client and weights, "
                    f"got {', '.join(record) or 'none'}"
                )
            if not _is_record(record):
                raise InvalidInput(
                    f"{path} line {number} must have whole numbers as round and client (or null) "
                    "and a SHA-256 as weights"
                )
            yield PublicRecord(record["round"], record["client"], record["weights"])

    def read_weights(self, name: str) -> dict[str, Vector]:
        """Return the tensors of a query, by parameter name."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        path = self._folder / "weights" / f"{name}.safetensors"
        if not path.exists():
            raise InvalidInput(
                f"{path}: no such file, a file of weights is needed: these were not kept (`keep` "
                "in the run file) or have been removed, so that the run cannot be audited"
            )
        content = read_bytes(path, "a file of weights")
        if name_content(content) != name:
            raise InvalidInput(f"{path} was changed: its content does not match its name")
        try:
            weights = dict(load(content))
        except SafetensorError as error:
            raise InvalidInput(f"{path} is not a safetensors file: {error}") from error
        if not weights:
            raise InvalidInput(f"{path} must hold the tensors of a model, got none")
        return weights


def _is_record(record: Mapping[str, Any]) -> bool:
    """Return whether a record has values of the right types; true is not a round."""
    weights = record["weights"]
    return (
        type(record["round"]) is int
        and 0 <= record["round"] <= LARGEST_ROUND
        and (record["client"] is None or type(record["client"]) is int)
        and isinstance(weights, str)
        and re.fullmatch("[0-9a-f]{64}", weights) is not None
    )
