"""Requests to a run on Flower: its desk is told of every round and may move all trajectories.

The desk works before a round waits for its start, so that what it does delays no query.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from covertfl.engines.flower.array_form import ArrayForm, list_encoded
from covertfl.engines.flower.strategy_settings import StrategySettings
from covertfl.errors import InvalidInput
from covertfl.runs.federation import Federation, RunState
from covertfl.runs.intake import Intake, RequestDesk
from covertfl.runs.progress import PreparedRun
from covertfl.runs.rounds import OnState


@contextmanager
def open_intake(
    given: StrategySettings, run: PreparedRun, form: ArrayForm, after_round: OnState
) -> Iterator[tuple[Intake | None, OnState]]:
    """Open the desk of a run that is a service; return its intake and what follows each round.

    Raises
    ------
    InvalidInput
        if the run file describes a service and no desk is given, or the other way round
    """
    settings = run.federation.settings
    if (settings.sections.service is None) != (given.rounds.requests is None):
        raise InvalidInput(
            f"{settings.name}: a run file with a section [service] and RoundSettings(requests="
            "open_requests) go together, got one of them"
        )
    if given.rounds.requests is None:
        yield None, after_round
        return
    with given.rounds.requests(given.folder, run.federation, run.state) as desk:

        def end(state: RunState) -> None:
            after_round(state)
            desk.end(state)

        yield _PreparedIntake(desk, form), end


class _PreparedIntake:
    """The intake of a run whose arrays are encoded before they are sent, all alike."""

    def __init__(self, desk: RequestDesk, form: ArrayForm) -> None:
        self._desk, self._form = desk, form

    def begin(
        self, federation: Federation, state: RunState, *, is_repeated: bool
    ) -> tuple[Federation, RunState] | None:
        """Begin a round at the desk."""
        begun = self._desk.begin(federation, state, is_repeated=is_repeated)
        if begun is not None and begun[1].learner is not state.learner:
            self._form.prepare(list_encoded(begun[1].learner))
        return begun
