"""The rounds of a service, on the simulated engine: on a clock, until it is told to end."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from covertfl.decision.problem import QueueProblem
from covertfl.errors import InvalidInput
from covertfl.runs.clock import Clock
from covertfl.runs.files import ROUNDS, read_lines
from covertfl.runs.settings import RunSettings
from covertfl.runs.simulated import run_together
from covertfl.runs.state import Federation
from covertfl.runs.train import KernelCache, OnRound, check_folder, prepare_run, watch_run
from covertfl.service.desk import Desk
from covertfl.service.store import Store
from covertfl.service.watch import MOST_ROUNDS, Watch

# Rounds of a service, which has no last one.
ENDLESS = 1_000_000_000
OnStart = Callable[[], None]


def as_service(settings: RunSettings) -> RunSettings:
    """Return the settings of a service, checked; it goes on whatever `rounds` its run file has.

    Raises
    ------
    InvalidInput
        if the run file describes no service: without [service] or a queue, or with arrivals or
        rounds that are given beforehand
    """
    sections, name = settings.sections, settings.name
    if sections.service is None:
        raise InvalidInput(f"{name}: a service needs a section [service]")
    if not isinstance(settings.problem, QueueProblem):
        raise InvalidInput(f"{name}: a service needs a problem with [queue], got [horizon]")
    for section, key, given in (
        ("", "arrivals", sections.arrivals),
        ("[federation] ", "log", sections.federation.log),
    ):
        if given is not None:
            raise InvalidInput(
                f"{name}: {section}{key} must be absent in a service, whose requests and rounds "
                f"come as they come, got {given}"
            )
    return settings.with_rounds(ENDLESS)


@contextmanager
def open_desk(
    folder: Path,
    federation: Federation,
    *,
    wait: Callable[[], bool],
    is_ending: Callable[[], bool],
    holds_data: bool,
    rolls_back: bool = True,
) -> Iterator[tuple[Desk, Watch]]:
    """Open the desk of a service in a folder whose run has been prepared.

    Parameters
    ----------
    wait, is_ending : as in `Desk`
    holds_data, rolls_back : as in `Watch`
    """
    path = folder / ROUNDS
    records = deque(read_lines(path) if path.exists() else (), maxlen=MOST_ROUNDS)
    with Store(folder, creates=True) as store, Store(folder, is_durable=False) as fast:
        watch = Watch(federation, fast, records, holds_data=holds_data, rolls_back=rolls_back)
        yield Desk(folder, federation, store, watch, wait=wait, is_ending=is_ending), watch


def run_simulated(
    settings: RunSettings,
    folder: Path,
    ending: threading.Event,
    on_start: OnStart,
    on_round: OnRound | None = None,
) -> None:
    """Play the rounds of a service on the simulated engine.

    Parameters
    ----------
    settings : of `as_service`
    ending : set to end the service after the round that is under way
    on_start : called when the folder and the database are there
    on_round : called with the progress after every round
    """
    service = settings.sections.service
    assert service is not None
    resume = (folder / "checkpoint").exists()
    check_folder(settings, folder, resume=resume, force=False)
    run = prepare_run(settings, folder, KernelCache(), resume=resume, force=False)
    clock = Clock(service.round_seconds, sleep=ending.wait)

    def wait() -> bool:
        clock.wait()
        clock.begin()
        return not ending.is_set()

    try:
        with open_desk(
            folder, run.federation, wait=wait, is_ending=ending.is_set, holds_data=True
        ) as (desk, watch):
            watch.start(run.state)
            on_start()
            rounds = watch_run(run, on_round, time.perf_counter(), desk.end, desk)
            run_together([(run.federation, rounds)])
    finally:
        run.folder.close()
