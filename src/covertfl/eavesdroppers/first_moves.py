"""An eavesdropper that compares the first moves with its own replies."""

from __future__ import annotations

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import SeenQuery, softmax
from covertfl.eavesdroppers.moves import measure_cosine
from covertfl.eavesdroppers.own_replies import ReplyListener

NUM_MOVES = 3
# Log-odds for a cosine of 1, as for `alignment`.
FIRST_ODDS = 20.0


class FirstMovesEavesdropper(ReplyListener):
    """Eavesdropper that believes in the trajectory whose first moves go with its own replies.

    A decoy that is trained on what clients reply soon moves as the truth does; it takes a few moves
    to get there.  Only moves from queries that it was asked itself are counted.
    """

    threat = "is a client: compares its own replies with the first three moves of each trajectory"

    def note_move(self, query: SeenQuery, step: FloatArray) -> None:
        """Compare one of the first moves with the reply to the query before it."""
        super().note_move(query, step)
        pull = self._pulls.get(query.trajectory)
        if pull is not None and len(self._tally.read("cosine", query.trajectory)) < NUM_MOVES:
            self._tally.note("cosine", query.trajectory, measure_cosine(step, pull))

    def belief(self) -> FloatArray:
        """Return beliefs by the mean cosine of the first moves."""
        return softmax(FIRST_ODDS * self._tally.average("cosine", len(self._seen)))

    def figures(self) -> dict[str, FloatArray]:
        """Return the mean cosine of the first moves, and that of the first one."""
        count = len(self._seen)
        return {
            "cosine": self._tally.average("cosine", count),
            "cosine of the first": self._tally.average("cosine", count, first=1),
        }
