"""How many examples a client may claim: the count is its weight in the average.

No claim may exceed what the largest client can have.  Where that is only an estimate, because the
server does not know the clients' data, a client must also stay below twice the median of its own
earlier counts: it cannot claim little in most rounds and much where it wants to steer.  A claim
above the bound is refused, not reduced: what is behind it is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# A client may claim this many times an estimate, and this many times its own median.
TIMES = 2
# Counts of a client that its median needs, and the latest ones that it is taken of.
LEAST_COUNTS, MOST_COUNTS = 3, 15
# Name of the counts in a checkpoint.
CLAIMS = "claims"


class Claims:
    """Bounds of the numbers of examples that clients claim.

    Parameters
    ----------
    most : bound for all clients in all rounds
    follows : whether a client's own earlier counts bound its later ones
    """

    def __init__(self, most: int, *, follows: bool) -> None:
        self._most, self._follows = most, follows
        # Tuples of numbers cost the garbage collector nothing, however many clients there are.
        self._counts: dict[int, tuple[int, ...]] = {}

    def bound(self, client: int) -> int:
        """Return the largest count that is accepted from a client now."""
        counts = self._counts.get(client, ())
        if len(counts) < LEAST_COUNTS:
            return self._most
        ordered, middle = sorted(counts), len(counts) // 2
        # The median of an even number of counts is halfway between two.
        twice = ordered[middle] + ordered[middle - 1 + len(counts) % 2]
        return min(self._most, TIMES * twice // 2)

    def take(self, counts: Mapping[int, int]) -> None:
        """Add the counts of a round's valid replies, by client."""
        if self._follows:
            for client, count in counts.items():
                self._counts[client] = (*self._counts.get(client, ()), count)[-MOST_COUNTS:]

    def refuse(self, client: int) -> None:
        """Count a claim that was too large as the largest that is accepted.

        A client that began with few examples is then refused for some rounds, not for good.
        """
        self.take({client: self.bound(client)})

    def remember(self) -> dict[str, Any]:
        """Return the facts that a resumed run needs; none if no client follows its own counts."""
        counts = {str(client): counts for client, counts in sorted(self._counts.items())}
        return {CLAIMS: counts} if self._follows else {}

    def recall(self, facts: Mapping[str, Any]) -> None:
        """Restore what `remember` returned."""
        stored = facts.get(CLAIMS, {})
        self._counts = {int(client): tuple(counts) for client, counts in stored.items()}
