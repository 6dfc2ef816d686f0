"""What a service writes down beside requests: versions, rounds, facts and warnings."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from covertfl.runs.folder import DATABASE
from covertfl.service.schema import connect, migrate, transaction


@dataclass(frozen=True)
class Version:
    """A model that was released: by which request, after which version and round."""

    version: int
    parent: int | None
    round: int
    request: int | None
    metrics: Mapping[str, Any]
    released: float
    withdrawn: int | None = None


class Journal:
    """An open database, without its requests.

    Parameters
    ----------
    folder : of the service
    is_durable : whether committed transactions are on the disk, see `schema.connect`
    creates : whether the database is made, or brought up to date
    """

    def __init__(self, folder: Path, *, is_durable: bool = True, creates: bool = False) -> None:
        self.path = folder / DATABASE
        self.connection = connect(self.path, is_durable=is_durable, creates=creates)
        try:
            if creates:
                self.path.chmod(0o600)
                migrate(self.connection, self.path)
        except BaseException:
            self.connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database."""
        self.connection.close()

    def list_versions(self) -> list[Version]:
        """Return all versions, oldest first."""
        rows = self.connection.execute("SELECT * FROM versions ORDER BY version")
        return [Version(**{**dict(row), "metrics": json.loads(row["metrics"])}) for row in rows]

    def find_latest(self) -> int | None:
        """Return the number of the latest version, None if there is none."""
        [number] = self.connection.execute("SELECT MAX(version) FROM versions").fetchone()
        return None if number is None else int(number)

    def withdraw(self, versions: Sequence[int], request: int) -> None:
        """Mark versions that a purge has withdrawn."""
        with transaction(self.connection, self.path):
            self.connection.executemany(
                "UPDATE versions SET withdrawn = ? WHERE version = ? AND withdrawn IS NULL",
                [(request, version) for version in versions],
            )

    def add_round(self, number: int, record: Mapping[str, Any]) -> None:
        """Store the record of a round, again if the round was repeated."""
        with transaction(self.connection, self.path):
            self.connection.execute(
                "INSERT OR REPLACE INTO rounds VALUES (?, ?, ?)",
                (number, time.time(), json.dumps(dict(record), allow_nan=False)),
            )

    def list_rounds(self, *, limit: int, before: int | None = None) -> list[dict[str, Any]]:
        """Return the records of the latest rounds, or of those before one, oldest first."""
        rows = self.connection.execute(
            "SELECT * FROM rounds WHERE round < ? ORDER BY round DESC LIMIT ?",
            (2**62 if before is None else before, limit),
        ).fetchall()
        return [
            {"round": row["round"], "time": row["time"], **json.loads(row["record"])}
            for row in reversed(rows)
        ]

    def keep_fact(self, name: str, value: Any) -> None:
        """Store a JSON value under a name."""
        with transaction(self.connection, self.path):
            self.connection.execute(
                "INSERT OR REPLACE INTO facts VALUES (?, ?)",
                (name, json.dumps(value, allow_nan=False)),
            )

    def read_fact(self, name: str) -> Any:
        """Return the value under a name, None if there is none."""
        row = self.connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else json.loads(row[0])

    def warn(self, round_number: int, kind: str, text: str) -> None:
        """Store a warning, once for a round and kind."""
        with transaction(self.connection, self.path):
            self.connection.execute(
                "INSERT OR REPLACE INTO warnings VALUES (?, ?, ?)", (round_number, kind, text)
            )

    def list_warnings(self, *, limit: int) -> list[dict[str, Any]]:
        """Return the latest warnings, newest first."""
        rows = self.connection.execute(
            "SELECT * FROM warnings ORDER BY round DESC LIMIT ?", (limit,)
        )
        return [dict(row) for row in rows]

    def count_changes(self) -> int:
        """Return a number that grows with every change of a request, a version or a warning."""
        row = self.connection.execute("SELECT number FROM changes").fetchone()
        return int(row[0])
