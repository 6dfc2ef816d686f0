"""What a service remembers: requests, versions, rounds and warnings, in one SQLite database.

The rounds of the service and its HTTP interface are different processes and share the database.  A
request is on the disk before it is acknowledged.  Which round a request joins, is served from, or
leaves the queue in is written before that round is decided, and never changed afterwards, so that a
round that was interrupted is repeated with the same requests.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from covertfl.errors import InvalidInput
from covertfl.runs.folder import DATABASE
from covertfl.service.requests import RequestBody, State, count_rows
from covertfl.service.schema import connect, create, transaction

# Columns of requests in lists, which would hold gigabytes otherwise.
BRIEF = (
    "id, key, kind, json_remove(body, '$.rows') AS body, NULL AS data, received, state, size, "
    "left, served, admitted, removed, begun, finished, version, num_rows, membership"
)


class Conflict(InvalidInput):
    """A request that is refused because of the state of another, or of its own."""


class Unknown(InvalidInput):
    """A request that does not exist."""


@dataclass(frozen=True)
class StoredRequest:
    """A request and what has become of it; the fields are those of the table `requests`."""

    id: int
    body: RequestBody
    data: str | None
    received: float
    state: State
    size: int
    left: int
    served: int
    admitted: int | None
    removed: int | None
    begun: int | None
    finished: int | None
    version: int | None
    num_rows: int | None
    membership: Mapping[str, float | None] | None

    def is_active(self, round_number: int) -> bool:
        """Return whether what the request changes in the data is in force in a round."""
        has_joined = self.admitted is not None and self.admitted <= round_number
        return has_joined and (self.removed is None or self.removed > round_number)


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


class Answer(NamedTuple):
    """What has become of a change: the request, or why it was refused, and whether it is new."""

    found: StoredRequest | InvalidInput
    is_new: bool = False


class Store:
    """An open database.

    Parameters
    ----------
    folder : of the service
    is_durable : whether committed transactions are on the disk, see `schema.connect`
    creates : whether the database is made if there is none
    """

    def __init__(self, folder: Path, *, is_durable: bool = True, creates: bool = False) -> None:
        self.path = folder / DATABASE
        self.connection = connect(self.path, is_durable=is_durable, creates=creates)
        try:
            if creates:
                self.path.chmod(0o600)
                create(self.connection, self.path)
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

    def _write(self, statement: str, *values: Any) -> None:
        """Execute a statement in a transaction of its own."""
        with transaction(self.connection, self.path):
            self.connection.execute(statement, values)

    # --- asking -----------------------------------------------------------------------------------

    def change(self, changes: Sequence[RequestBody | int]) -> list[Answer]:
        """Store requests and cancel those whose numbers are given, in one transaction and in order.

        A request whose key is known is the one that has it, or a Conflict if that is another.  A
        change that is refused has its reason as the answer, and the others are made: Unknown if
        there is no request to cancel, Conflict if it is being served, or done.
        """
        with transaction(self.connection, self.path):
            return [
                self._cancel(change) if isinstance(change, int) else self._add(change)
                for change in changes
            ]

    def _add(self, body: RequestBody) -> Answer:
        found = None if body.key is None else self._find_key(body.key)
        if found is None:
            refusal = self._refuse_version(body.version)
            return Answer(refusal or self.find(self._insert(body)), is_new=refusal is None)
        if (found.body, found.data) == (_without_data(body), body.data):
            return Answer(found)
        return Answer(Conflict(f"key must be new, or of the same request, got that of {found.id}"))

    def _refuse_version(self, version: int | None) -> InvalidInput | None:
        """Return why a version cannot be returned to, None if it can."""
        if version is None:
            return None
        row = self.connection.execute(
            "SELECT withdrawn FROM versions WHERE version = ?", (version,)
        ).fetchone()
        if row is None:
            return InvalidInput(f"version must be one that was released, got {version}")
        if row[0] is not None:
            return InvalidInput(
                f"version must not be withdrawn, got {version}, which request {row[0]} withdrew"
            )
        return None

    def _insert(self, body: RequestBody) -> int:
        left = body.size if body.patience is None else min(body.patience, body.size)
        row = self.connection.execute(
            "INSERT INTO requests (key, kind, body, data, received, size, left, num_rows) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                body.key,
                body.kind,
                _without_data(body).model_dump_json(exclude_defaults=True),
                body.data,
                time.time(),
                body.size,
                left,
                count_rows(body),
            ),
        )
        assert row.lastrowid is not None
        return row.lastrowid

    def _cancel(self, number: int) -> Answer:
        try:
            found = self.find(number)
        except Unknown as error:
            return Answer(error)
        if found.state in ("serving", "done"):
            sentence = f"request {number} must be waiting to be cancelled, got {found.state}"
            return Answer(Conflict(sentence))
        self.connection.execute("UPDATE requests SET state = 'cancelled' WHERE id = ?", (number,))
        return Answer(self.find(number))

    # --- reading ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Make all that is read inside come from the same moment."""
        self.connection.execute("BEGIN")
        try:
            yield
        finally:
            self.connection.execute("COMMIT")

    def find(self, number: int, *, is_brief: bool = False) -> StoredRequest:
        """Return a request, a brief one without rows and data; raise Unknown if there is none."""
        rows = self._select("WHERE id = ?", number, columns=BRIEF if is_brief else "*")
        if not rows:
            raise Unknown(f"there is no request {number}")
        return rows[0]

    def _find_key(self, key: str) -> StoredRequest | None:
        return next(iter(self._select("WHERE key = ?", key)), None)

    def list_requests(self, *, limit: int, before: int | None = None) -> list[StoredRequest]:
        """Return the latest requests, newest first, or those before one, without rows and data."""
        return self._select(
            "WHERE id < ? ORDER BY id DESC LIMIT ?",
            *(2**62 if before is None else before, limit),
            columns=BRIEF,
        )

    def sum_left(self, *, since: int | None = None) -> int:
        """Return the updates that open requests owe, or those alone that joined since a round.

        Requests that have not joined the queue yet are counted in both cases.
        """
        row = self.connection.execute(
            "SELECT COALESCE(SUM(left), 0) FROM requests WHERE state IN ('waiting', 'serving') "
            "AND (admitted IS NULL OR admitted >= ?)",
            (-1 if since is None else since,),
        ).fetchone()
        return int(row[0])

    def count_states(self) -> dict[str, int]:
        """Return the number of requests in each state."""
        counts = dict.fromkeys(("waiting", "serving", "done", "cancelled"), 0)
        for state, number in self.connection.execute(
            "SELECT state, COUNT(*) FROM requests GROUP BY state"
        ):
            counts[state] = number
        return counts

    def list_changing(self) -> list[StoredRequest]:
        """Return all requests that have changed the data, in order, also those cancelled since."""
        return self._select(
            "WHERE kind IN ('purge', 'context') AND admitted IS NOT NULL ORDER BY id"
        )

    def _select(self, clause: str, *values: Any, columns: str = "*") -> list[StoredRequest]:
        rows = self.connection.execute(f"SELECT {columns} FROM requests {clause}", values)
        return [_read_request(row) for row in rows]

    # --- the queue --------------------------------------------------------------------------------

    def open_round(self, round_number: int) -> StoredRequest | None:
        """Settle what happens to the queue in a round, and return the request that is served.

        All that wait join the queue, those that were cancelled leave it, and the first that joined
        before is served from now on, so that it can no longer be cancelled.
        """
        head = self.find_head(round_number)
        if not self._has_news() and (head is None or head.state == "serving"):
            return head
        with transaction(self.connection, self.path):
            self.connection.execute(
                "UPDATE requests SET admitted = ? WHERE state = 'waiting' AND admitted IS NULL",
                (round_number,),
            )
            self.connection.execute(
                "UPDATE requests SET removed = ? "
                "WHERE state = 'cancelled' AND removed IS NULL AND admitted IS NOT NULL",
                (round_number,),
            )
            head = self.find_head(round_number)
            if head is not None and head.state == "waiting":
                self.connection.execute(
                    "UPDATE requests SET state = 'serving', begun = ? WHERE id = ?",
                    (round_number, head.id),
                )
        return None if head is None else self.find(head.id, is_brief=True)

    def _has_news(self) -> bool:
        """Return whether a request waits to join the queue, or to leave it."""
        found = self.connection.execute(
            "SELECT EXISTS (SELECT 1 FROM requests WHERE state = 'waiting' AND admitted IS NULL) "
            "OR EXISTS (SELECT 1 FROM requests WHERE state = 'cancelled' AND removed IS NULL "
            "AND admitted IS NOT NULL)"
        ).fetchone()
        return bool(found[0])

    def list_admitted(self, round_number: int) -> list[StoredRequest]:
        """Return the requests that join in a round, in order; none that leaves before it joins."""
        clause = "WHERE admitted = ? AND (removed IS NULL OR removed > admitted) ORDER BY id"
        return self._select(clause, round_number)

    def list_removed(self, round_number: int) -> list[StoredRequest]:
        """Return the requests that leave the queue in a round because they were cancelled."""
        return self._select("WHERE removed = ? ORDER BY id", round_number)

    def list_begun(self, round_number: int) -> list[StoredRequest]:
        """Return the requests that are served from a round on, in order."""
        return self._select("WHERE begun = ? ORDER BY id", round_number)

    def find_head(self, round_number: int) -> StoredRequest | None:
        """Return the first unfinished request that joined before a round, without rows and data."""
        # Asked for in every round: the index has this order, so that nothing is sorted.
        clause = "WHERE state = ? AND admitted < ? ORDER BY admitted, id LIMIT 1"
        found = (
            self._select(clause, state, round_number, columns=BRIEF)
            for state in ("serving", "waiting")
        )
        return next((rows[0] for rows in found if rows), None)

    def advance(self, number: int, *, left: int, served: int) -> None:
        """Note how many updates of a request are owed and have been done."""
        self._write("UPDATE requests SET left = ?, served = ? WHERE id = ?", left, served, number)

    def release(self, version: Version, *, finished: int | None = None, served: int = 0) -> None:
        """Store a version and, if a request has released it, that it is done since a round."""
        with transaction(self.connection, self.path):
            self.connection.execute(
                "INSERT OR REPLACE INTO versions VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    version.version,
                    version.parent,
                    version.round,
                    version.request,
                    _format(version.metrics),
                    version.released,
                    version.withdrawn,
                ),
            )
            if version.request is not None:
                self.connection.execute(
                    "UPDATE requests SET state = 'done', left = 0, served = ?, finished = ?, "
                    "version = ? WHERE id = ?",
                    (served, finished, version.version, version.request),
                )

    def finish(self, number: int, round_number: int) -> None:
        """Note that a request is done without a version."""
        self._write(
            "UPDATE requests SET state = 'done', left = 0, finished = ? WHERE id = ?",
            *(round_number, number),
        )

    def keep_membership(self, number: int, found: Mapping[str, float | None]) -> None:
        """Store what a membership test has found for a purge."""
        self._write("UPDATE requests SET membership = ? WHERE id = ?", _format(found), number)

    # --- versions, rounds, facts and warnings -----------------------------------------------------

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
        values = (number, time.time(), _format(record))
        self._write("INSERT OR REPLACE INTO rounds VALUES (?, ?, ?)", *values)

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
        self._write("INSERT OR REPLACE INTO facts VALUES (?, ?)", name, _format(value))

    def read_fact(self, name: str) -> Any:
        """Return the value under a name, None if there is none."""
        row = self.connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else json.loads(row[0])

    def warn(self, round_number: int, kind: str, text: str) -> None:
        """Store a warning, once for a round and kind."""
        self._write("INSERT OR REPLACE INTO warnings VALUES (?, ?, ?)", round_number, kind, text)

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


def _format(value: Any) -> str:
    return json.dumps(dict(value) if isinstance(value, Mapping) else value, allow_nan=False)


def _without_data(body: RequestBody) -> RequestBody:
    return body.model_copy(update={"data": None})


def _read_request(row: sqlite3.Row) -> StoredRequest:
    content = dict(row)
    key, kind = content.pop("key"), content.pop("kind")
    body = RequestBody.model_validate({**json.loads(content.pop("body")), "key": key, "kind": kind})
    found = content.pop("membership")
    return StoredRequest(
        **content, body=body, membership=None if found is None else json.loads(found)
    )
