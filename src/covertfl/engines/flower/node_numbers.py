"""Client numbers of nodes, and waiting until enough nodes are connected.

Records name clients 0, 1, 2, ..., whereas Flower's node IDs are long and arbitrary.  For simulated
nodes the client of each node is known; other nodes are numbered in the order in which they are
first seen, and the numbers are stored with the private records.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from flwr.serverapp import Grid

from covertfl.errors import InvalidInput
from covertfl.files.disk import write_atomically
from covertfl.files.text import read_text

# Seconds between two looks at the connected nodes while there are too few.
LOOK_AGAIN = 1.0


class NodeNumbers(Protocol):
    """Client numbers of nodes."""

    def assign(self, nodes: Iterable[int]) -> dict[int, int]:
        """Return nodes by client number, in ascending order; unknown nodes may be left out."""
        ...


class KnownNodeNumbers:
    """Nodes whose client numbers are known in advance, by node."""

    def __init__(self, clients: Mapping[int, int]) -> None:
        self._clients = dict(clients)

    def assign(self, nodes: Iterable[int]) -> dict[int, int]:
        """Return nodes by client number, in ascending order, without unknown nodes."""
        found = {self._clients[node]: node for node in nodes if node in self._clients}
        return dict(sorted(found.items()))


class StoredNodeNumbers:
    """Nodes numbered in the order in which they are first seen.

    The numbers are stored in a file that only its owner can read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._clients = _read_clients(path) if path.exists() else {}

    def assign(self, nodes: Iterable[int]) -> dict[int, int]:
        """Return nodes by client number, in ascending order; new nodes get the next numbers."""
        present = sorted(set(nodes))
        new = [node for node in present if node not in self._clients]
        if new:
            first = len(self._clients)
            self._clients |= {node: first + place for place, node in enumerate(new)}
            self._store()
        return dict(sorted((self._clients[node], node) for node in present))

    def _store(self) -> None:
        lines = [
            json.dumps({"client": client, "node": node}) + "\n"
            for node, client in self._clients.items()
        ]
        write_atomically(self._path, "".join(lines), mode=0o600)


def _read_clients(path: Path) -> dict[int, int]:
    """Return client numbers by node; an unfinished last line was never used."""
    *lines, _ = read_text(path, "the numbers of the nodes").split("\n")
    try:
        records = [json.loads(line) for line in lines]
        return {int(record["node"]): int(record["client"]) for record in records}
    except (ValueError, LookupError, TypeError) as error:
        raise InvalidInput(f"{path} does not hold the numbers of nodes: {error}") from error


def wait_for_nodes(
    grid: Grid, numbers: NodeNumbers, least: int, patience: float | None = None
) -> dict[int, int]:
    """Wait until enough nodes are connected and return them by client number.

    Without waiting, a federation that nobody is connected to would use up its rounds in a moment.
    The wait does not depend on what is sent afterwards.

    Parameters
    ----------
    least : nodes that are enough
    patience : seconds after which fewer nodes are accepted, None to wait without limit
    """
    started = time.monotonic()
    while True:
        present = numbers.assign(grid.get_node_ids())
        waited = time.monotonic() - started
        if len(present) >= least or (patience is not None and waited >= patience):
            return present
        time.sleep(LOOK_AGAIN if patience is None else min(LOOK_AGAIN, patience - waited))
