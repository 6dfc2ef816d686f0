"""Eavesdroppers that take part (tier C): a client compares moves with its own replies."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Means, SeenQuery, softmax
from covertfl.eavesdroppers.moves import (
    MoveListener,
    find_last_bias,
    find_last_layer,
    measure_cosine,
    measure_length,
)
from covertfl.kernels.job import Vector


class ReplyListener(MoveListener):
    """Base class of eavesdroppers that know their own replies.

    In `note_move`, `_pulls` has the reply to the query that the move started from, and `_older`
    that to the query before the previous move; None where it was not asked.
    """

    tier = "C"
    needs: ClassVar[tuple[str, ...]] = ("reply", "kernel")

    def __init__(self, means: Means) -> None:
        super().__init__(means)
        assert means.reply is not None and means.kernel is not None
        self._reply, self._kernel = means.reply, means.kernel
        self._attended, self._memory = means.attended, means.memory
        self._pulls: dict[int, FloatArray | None] = {}
        self._older: dict[int, FloatArray | None] = {}

    def observe(self, query: SeenQuery) -> None:
        """Work out the move, then reply to the query if asked."""
        before = self._pulls.get(query.trajectory)
        earlier = len(self._tally.read("move", query.trajectory))
        super().observe(query)
        if len(self._tally.read("move", query.trajectory)) > earlier:
            self._older[query.trajectory] = before
        pull = self._work_out(query)
        self._pulls[query.trajectory] = pull
        if pull is not None:
            self.note_reply(query, pull)

    def note_move(self, query: SeenQuery, step: FloatArray) -> None:
        """Count the move."""
        self._tally.note("move", query.trajectory, 1.0)

    def note_reply(self, query: SeenQuery, pull: FloatArray) -> None:
        """Take note of where its own reply pulls (P,)."""

    def _work_out(self, query: SeenQuery) -> FloatArray | None:
        """Return where its reply to a query pulls the model, None if it was not asked."""
        if self._attended is not None and query.round not in self._attended:
            return None
        job = self._reply(query.round, query.weights)
        replied = self._memory.recall(
            "reply", query.round, query.weights, lambda: self._kernel.run([job])[0]
        ).astype(np.float64)
        # The model moves towards replied weights, but against a replied gradient.
        return -replied if job.work == "gradient" else replied - query.weights


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


# Log-odds for replies that are shorter by a factor of e.
LENGTH_ODDS = 20.0


class ReplyLengthEavesdropper(ReplyListener):
    """Eavesdropper that believes in the trajectory that its own replies change least.

    Clients agree with what they have trained: gradients are small there and differ in sign from
    batch to batch, so that a pass over its data ends near where it began.
    """

    threat = "is a client: compares the lengths of its own replies to each trajectory"

    def __init__(self, means: Means) -> None:
        super().__init__(means)
        layout = self._kernel.layout
        self._last, self._bias = find_last_layer(layout), find_last_bias(layout)

    def note_reply(self, query: SeenQuery, pull: FloatArray) -> None:
        """Measure a reply."""
        number, length = query.trajectory, measure_length(pull)
        if length > 0.0:
            self._tally.note("length", number, math.log(length))
            self._tally.note("last layer", number, measure_length(pull[self._last]) / length)
            self._tally.note("bias", number, float(np.sum(pull[self._bias])) / length)

    def belief(self) -> FloatArray:
        """Return beliefs by the mean length of replies."""
        return softmax(-LENGTH_ODDS * self._tally.average("length", len(self._seen)))

    def figures(self) -> dict[str, FloatArray]:
        """Return means and trends of log length, last layer's share and change of the bias."""
        count, found = len(self._seen), {}
        for name in ("length", "last layer", "bias"):
            found[name] = self._tally.average(name, count)
            found[f"trend of {name}"] = self._tally.trend(name, count)
        return found


# The client that an eavesdropper is which takes part in the training.
SPY = 0
MARK_SEED = 0x6D61726B
# Log-odds for a sum that is one standard deviation larger.
MARK_ODDS = 3.0


def make_mark(size: int) -> Vector:
    """Return the (P,) pattern of length 1 that an active eavesdropper adds to its replies."""
    signs = np.where(np.random.default_rng(MARK_SEED).random(size) < 0.5, -1.0, 1.0)
    return np.asarray(signs / math.sqrt(size), dtype=np.float32)


def add_mark(values: Vector, start: Vector, share: float) -> Vector:
    """Return a reply with the pattern, `share` times as long as the reply is from its start."""
    length = float(np.linalg.norm(values.astype(np.float64) - start))
    return np.asarray(values + np.float32(share * length) * make_mark(len(values)), np.float32)


class MarkEavesdropper(MoveListener):
    """Eavesdropper that believes in the trajectory that moves along the pattern in its replies.

    A pattern drawn at random has a product with every other direction whose deviation is the
    direction's length over the square root of the number of weights; the sum over moves is compared
    with that.  Only moves from queries that it was asked itself are counted.
    """

    tier = "C"
    needs: ClassVar[tuple[str, ...]] = ("mark",)
    threat = "is a client: adds a small known pattern to its replies and looks for it in the moves"

    def __init__(self, means: Means) -> None:
        super().__init__(means)
        assert means.mark is not None
        self._mark, self._attended = means.mark.astype(np.float64), means.attended
        self._asked: dict[int, bool] = {}

    def observe(self, query: SeenQuery) -> None:
        """Look at the move, then note whether it was asked itself."""
        super().observe(query)
        is_asked = self._attended is None or query.round in self._attended
        self._asked[query.trajectory] = is_asked

    def note_move(self, query: SeenQuery, step: FloatArray) -> None:
        """Multiply a move by the pattern."""
        if self._asked[query.trajectory]:
            self._tally.note("product", query.trajectory, float(np.sum(step * self._mark)))
            self._tally.note("square", query.trajectory, float(np.sum(step * step)) / len(step))

    def measure_mark(self) -> FloatArray:
        """Return the sum of products of each trajectory, in standard deviations."""
        count = len(self._seen)
        sums = [sum(self._tally.read("product", number)) for number in range(count)]
        squares = [sum(self._tally.read("square", number)) for number in range(count)]
        pairs = zip(sums, squares, strict=True)
        return np.array([total / math.sqrt(square) if square else 0.0 for total, square in pairs])

    def belief(self) -> FloatArray:
        """Return beliefs by how much of the pattern is in the moves."""
        return softmax(MARK_ODDS * self.measure_mark())

    def figures(self) -> dict[str, FloatArray]:
        """Return the pattern's part in the moves, in standard deviations."""
        return {"pattern": self.measure_mark()}
