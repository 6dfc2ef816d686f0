"""An eavesdropper that compares moves with its own replies."""

from __future__ import annotations

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Means, SeenQuery, softmax
from covertfl.eavesdroppers.moves import find_last_layer, measure_cosine
from covertfl.eavesdroppers.own_replies import ReplyListener

# Log-odds for a cosine of 1; a cosine of 0.3 against one of 0 is close to certainty.
ALIGNMENT_ODDS = 20.0


class AlignmentEavesdropper(ReplyListener):
    """Eavesdropper that believes in the trajectory that moves with its own replies.

    A client's reply pulls the true trajectory in its direction; a decoy that the server trains by
    itself does not respond to it.  Its figures also compare a move with the reply before that; the
    last layer alone; and the changes of both from one move to the next, in which what all clients
    agree on largely cancels.
    """

    threat = "is a client: sees every query and knows its own replies"

    def __init__(self, means: Means) -> None:
        super().__init__(means)
        self._last = find_last_layer(self._kernel.layout)
        self._steps: dict[int, FloatArray] = {}

    def note_move(self, query: SeenQuery, step: FloatArray) -> None:
        """Compare the move with the replies to the two queries before it."""
        super().note_move(query, step)
        number = query.trajectory
        pull, older = self._pulls.get(number), self._older.get(number)
        if pull is not None:
            self._tally.note("cosine", number, measure_cosine(step, pull))
            self._tally.note(
                "cosine of the last layer",
                number,
                measure_cosine(step[self._last], pull[self._last]),
            )
        if older is not None:
            self._tally.note("cosine with the reply before", number, measure_cosine(step, older))
        if pull is not None and older is not None:
            change = measure_cosine(step - self._steps[number], pull - older)
            self._tally.note("cosine of changes", number, change)
        self._steps[number] = step

    def belief(self) -> FloatArray:
        """Return beliefs by alignment."""
        return softmax(ALIGNMENT_ODDS * self._tally.average("cosine", len(self._seen)))

    def figures(self) -> dict[str, FloatArray]:
        """Return mean cosines."""
        count = len(self._seen)
        names = (
            "cosine",
            "cosine of the last layer",
            "cosine with the reply before",
            "cosine of changes",
        )
        return {name: self._tally.average(name, count) for name in names}
