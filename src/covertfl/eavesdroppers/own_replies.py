"""The replies of an eavesdropper that is a client."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Means, SeenQuery
from covertfl.eavesdroppers.moves import MoveListener


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
