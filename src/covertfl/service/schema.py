"""The tables of a service's database, its connections and its transactions.

The database's `user_version` is the number of its format.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from covertfl.errors import CovertflError, InvalidInput

FORMAT = 1
TABLES = (
    """CREATE TABLE requests (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        key TEXT UNIQUE,
        kind TEXT NOT NULL,
        body TEXT NOT NULL,            -- JSON as it was asked for, without data
        data TEXT,                     -- of a context, base64
        received REAL NOT NULL,        -- seconds since 1970
        state TEXT NOT NULL DEFAULT 'waiting'
            CHECK (state IN ('waiting', 'serving', 'done', 'cancelled')),
        size INTEGER NOT NULL,         -- updates owed at most
        left INTEGER NOT NULL,         -- updates owed now
        served INTEGER NOT NULL DEFAULT 0,
        admitted INTEGER,              -- round in which it joined the queue
        removed INTEGER,               -- round in which it left the queue, cancelled
        begun INTEGER,                 -- round from which it is served
        finished INTEGER,              -- round in which it was done
        version INTEGER,               -- that it released
        num_rows INTEGER,              -- that it takes out or brings
        membership TEXT                -- JSON, of a purge
    ) STRICT""",
    "CREATE INDEX requests_joining ON requests (state, admitted)",
    "CREATE INDEX requests_leaving ON requests (id) WHERE state = 'cancelled' "
    "AND removed IS NULL AND admitted IS NOT NULL",
    "CREATE INDEX requests_admitted ON requests (admitted)",
    "CREATE INDEX requests_begun ON requests (begun)",
    "CREATE INDEX requests_removed ON requests (removed)",
    """CREATE TABLE versions (
        version INTEGER PRIMARY KEY,
        parent INTEGER,
        round INTEGER NOT NULL,
        request INTEGER,
        metrics TEXT NOT NULL,
        released REAL NOT NULL,
        withdrawn INTEGER              -- request by which it may no longer be used
    ) STRICT""",
    """CREATE TABLE rounds (
        round INTEGER PRIMARY KEY,
        time REAL NOT NULL,
        record TEXT NOT NULL           -- JSON
    ) STRICT""",
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT",
    """CREATE TABLE warnings (
        round INTEGER NOT NULL,
        kind TEXT NOT NULL,
        text TEXT NOT NULL,
        PRIMARY KEY (round, kind)
    ) STRICT""",
    "CREATE TABLE changes (number INTEGER NOT NULL) STRICT",
    "INSERT INTO changes VALUES (0)",
    *(
        f"CREATE TRIGGER {table}_{event.lower()} AFTER {event} ON {table} "
        "BEGIN UPDATE changes SET number = number + 1; END"
        for table in ("requests", "versions", "warnings")
        for event in ("INSERT", "UPDATE")
    ),
)
# Seconds that a writer waits for another.
PATIENCE = 30.0
# KiB of the database that a connection keeps in memory.  There are several, the operating system
# keeps the file anyway, and a round needs its last pages only.
CACHE = 256


class StorageFull(CovertflError):
    """The disk is full, or the database may not grow; nothing was changed."""

    exit_status = 2


def connect(path: Path, *, is_durable: bool, creates: bool = False) -> sqlite3.Connection:
    """Open a service's database; every statement is a transaction of its own unless one is begun.

    Parameters
    ----------
    is_durable : whether what is committed is on the disk; if not, a crash of the machine, but not
        of a process, may lose the latest transactions
    creates : whether a database is made where there is none
    """
    mode = "rwc" if creates else "rw"
    try:
        connection = sqlite3.connect(
            f"{path.resolve().as_uri()}?mode={mode}",
            uri=True,
            timeout=PATIENCE,
            isolation_level=None,
            check_same_thread=False,
        )
    except sqlite3.Error as error:
        raise InvalidInput(f"{path} cannot be opened as a service's database: {error}") from error
    connection.row_factory = sqlite3.Row
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA cache_size = {-CACHE}")
        connection.execute(f"PRAGMA synchronous = {'FULL' if is_durable else 'NORMAL'}")
    except sqlite3.Error as error:
        connection.close()
        raise _explain(path, error) from error
    return connection


def create(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables of a new database.

    Raises
    ------
    InvalidInput
        if another version of covertfl has written it
    """
    with transaction(connection, path):
        [found] = connection.execute("PRAGMA user_version").fetchone()
        if found == FORMAT:
            return
        if found or connection.execute("SELECT EXISTS (SELECT 1 FROM sqlite_schema)").fetchone()[0]:
            raise InvalidInput(
                f"{path} was written by another version of covertfl, or is not a service's: its "
                f"format must be {FORMAT}, got {found}"
            )
        for statement in TABLES:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {FORMAT}")


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection, path: Path) -> Iterator[None]:
    """Make the statements inside one transaction: all of them are done, or none.

    Raises
    ------
    StorageFull
        if there is no room
    """
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        _roll_back(connection)
        raise _explain(path, error) from error
    except BaseException:
        _roll_back(connection)
        raise


def _roll_back(connection: sqlite3.Connection) -> None:
    with contextlib.suppress(sqlite3.Error):
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _explain(path: Path, error: sqlite3.Error) -> CovertflError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        return StorageFull(f"{path} cannot be written: {error}")
    return InvalidInput(f"{path} cannot be used as a service's database: {error}")
