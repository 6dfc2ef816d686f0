"""Runs that are simulated in memory, to see what eavesdroppers get from many of them.

Nothing of them is written to the disk: their queries and private records go to the audit at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from covertfl.auditing.overheard import link_sent
from covertfl.auditing.run import LoadedRun
from covertfl.kernels.job import Examples
from covertfl.runs.files import ROUNDS
from covertfl.runs.participation import Clients
from covertfl.runs.records import MemoryRecords
from covertfl.runs.round import run_rounds
from covertfl.runs.settings import RunSettings
from covertfl.runs.simulated import run_together
from covertfl.runs.state import Federation, RunState, start_run
from covertfl.runs.train import KernelCache, build_federation

# Runs that are simulated side by side: at most this many, and numbers that their queries may have.
MOST_RUNS, MOST_NUMBERS = 20, 250_000_000
# Time to look at a run, relative to the time to simulate it.
LOOK_SHARE = 0.7
Result = TypeVar("Result")


def simulate(
    federations: Sequence[Federation], on_round: Callable[[], None] | None = None
) -> list[LoadedRun]:
    """Run federations side by side in memory and separate their queries.

    `on_round` is called after each round of each run.
    """

    def report(_: RunState) -> None:
        if on_round is not None:
            on_round()

    kept = [MemoryRecords() for _ in federations]
    run_together(
        [
            (federation, run_rounds(federation, records, start_run(federation), report))
            for federation, records in zip(federations, kept, strict=True)
        ]
    )
    return [
        _load(federation, records) for federation, records in zip(federations, kept, strict=True)
    ]


def _load(federation: Federation, records: MemoryRecords) -> LoadedRun:
    trajectories = federation.settings.num_trajectories
    private = tuple(records.lines[ROUNDS])
    run = LoadedRun(Path(), (), private, federation, trajectories)
    rounds = [int(record["round"]) for record in private]
    sent = list(zip(rounds, records.sent, strict=True))
    return replace(run, queries=link_sent(sent, trajectories=trajectories, part=run.part))


def simulate_seeds(
    settings: RunSettings,
    seeds: Sequence[int],
    kernels: KernelCache,
    look: Callable[[LoadedRun], Result],
    *,
    change: Callable[[Federation], Federation] | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> list[Result]:
    """Simulate runs of the same settings and return what `look` finds in each.

    Parameters
    ----------
    seeds : one for each run
    look : called in several threads; runs are forgotten afterwards
    change : made to every federation before it is run
    on_progress : called with the share that is done
    """
    engine = settings.sections.engine.model_copy(update={"kind": "simulated"})
    sections = settings.sections.model_copy(update={"engine": engine})
    settings, done = replace(settings, sections=sections), 0.0
    found: list[Result] = []
    steps = settings.rounds * (1.0 + LOOK_SHARE) * max(len(seeds), 1)

    def advance(rounds: float = 1.0) -> None:
        nonlocal done
        done += rounds
        if on_progress is not None:
            on_progress(min(done / steps, 1.0))

    def look_at(run: LoadedRun) -> Result:
        result = look(run)
        advance(LOOK_SHARE * settings.rounds)
        return result

    start, number = 0, 1
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        while start < len(seeds):
            part = seeds[start : start + number]
            federations = [build_federation(settings.with_seed(seed), kernels) for seed in part]
            if change is not None:
                federations = [change(federation) for federation in federations]
            found += pool.map(look_at, simulate(federations, advance))
            start += len(part)
            size = settings.rounds * federations[0].layout.size
            number = max(1, min(MOST_RUNS, MOST_NUMBERS // size))
    return found


def resample_clients(federation: Federation) -> Federation:
    """Return the federation as its eavesdropper can simulate it, from the public set alone.

    Every client holds as many rows as before, drawn with replacement from the public set.
    """
    task, generator = federation.task, np.random.default_rng([federation.settings.seed, 2])
    sizes = [len(rows) for rows in task.clients]
    rows = generator.integers(len(task.public), size=sum(sizes))
    public = task.public
    task = replace(
        task,
        train=Examples(public.features[rows], public.labels[rows]),
        clients=tuple(np.split(np.arange(len(rows)), np.cumsum(sizes)[:-1])),
    )
    return replace(federation, clients=Clients(task))
