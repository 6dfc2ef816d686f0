"""Which nodes there are, and the numbers under which records name them.

Records name clients 0, 1, 2, ...; a node's own number is long and means nothing.  Where nodes are
simulated it is known which client each of them is; otherwise they are numbered as they are first
seen, and the numbers are kept beside the private records.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from flwr.serverapp import Grid

from covertfl.errors import InvalidInput
from covertfl.files.atomic import write_atomically
from covertfl.files.toml import read_text

# Seconds between two looks at who is there, where nobody is.
LOOK_AGAIN = 1.0


class Roll(Protocol):
    """Numbers of nodes."""

    def number(self, nodes: Iterable[int]) -> dict[int, int]:
        """Nodes by client number, in rising order; nodes that do not belong are left out."""
        ...


class KnownRoll:
    """Nodes whose clients are known.

    Parameters
    ----------
    clients : client numbers by node
    """

    def __init__(self, clients: Mapping[int, int]) -> None:
        self._clients = dict(clients)

    def number(self, nodes: Iterable[int]) -> dict[int, int]:
        """Nodes by client number, in rising order."""
        found = {self._clients[node]: node for node in nodes if node in self._clients}
        return dict(sorted(found.items()))


class GrowingRoll:
    """Nodes numbered as they are first seen.

    Parameters
    ----------
    path : where the numbers are kept, for the owner only
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._clients = _read_clients(path) if path.exists() else {}

    def number(self, nodes: Iterable[int]) -> dict[int, int]:
        """Nodes by client number, in rising order; new ones are given the next numbers."""
        present = sorted(set(nodes))
        new = [node for node in present if node not in self._clients]
        if new:
            first = len(self._clients)
            self._clients |= {node: first + place for place, node in enumerate(new)}
            self._keep()
        return dict(sorted((self._clients[node], node) for node in present))

    def _keep(self) -> None:
        lines = [
            json.dumps({"client": client, "node": node}) + "\n"
            for node, client in self._clients.items()
        ]
        write_atomically(self._path, "".join(lines), mode=0o600)


def _read_clients(path: Path) -> dict[int, int]:
    """Client numbers by node; a last line that was never finished was never used."""
    *lines, _ = read_text(path, "the numbers of the nodes").split("\n")
    try:
        records = [json.loads(line) for line in lines]
        return {int(record["node"]): int(record["client"]) for record in records}
    except (ValueError, LookupError, TypeError) as error:
        raise InvalidInput(f"{path} does not hold the numbers of nodes: {error}") from error


def wait_for_nodes(
    grid: Grid, roll: Roll, least: int, patience: float | None = None
) -> dict[int, int]:
    """Nodes that are connected, by client number, once there are enough of them.

    A federation that nobody is connected to is waited for: rounds that nobody can answer would
    otherwise be used up within a moment.  Waiting says nothing about what is sent afterwards.

    Parameters
    ----------
    least : nodes that are enough
    patience : seconds after which fewer must do, None to wait for as long as it takes
    """
    started = time.monotonic()
    while True:
        present = roll.number(grid.get_node_ids())
        waited = time.monotonic() - started
        if len(present) >= least or (patience is not None and waited >= patience):
            return present
        time.sleep(LOOK_AGAIN if patience is None else min(LOOK_AGAIN, patience - waited))
