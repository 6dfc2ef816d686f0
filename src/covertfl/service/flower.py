"""A service whose rounds run on Flower: in this process, on nodes of this machine, or elsewhere.

On an existing SuperLink the server app is the operator's own.  It opens the desk of the service:

    strategy = CovertStrategy(
        run="service.toml", out="DIR", resume=True,
        round_settings=RoundSettings(requests=open_requests),
    )

and `covertfl serve service.toml --out DIR --api-only` answers requests beside it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from covertfl.engines.flower.deployment.run import LOOK, Deployment, NodeUser
from covertfl.engines.flower.engine import GridEngine
from covertfl.engines.flower.server_app import run_in_process
from covertfl.errors import CovertflError
from covertfl.runs.settings import RunSettings
from covertfl.runs.state import Federation, RunState
from covertfl.runs.train import OnRound
from covertfl.service.desk import Desk
from covertfl.service.loop import OnStart, open_desk
from covertfl.service.store import Store

SERVER_CODE = """\
from covertfl.engines.flower.deployment.server import make_app
from covertfl.service.flower import open_requests

app = make_app(open_requests)
"""
ENDING = "ending"  # fact that asks a server app to end after its round


@contextmanager
def open_requests(folder: Path, federation: Federation, state: RunState) -> Iterator[Desk]:
    """Open the desk of a service whose rounds a server app plays; an `OpenDesk`.

    The service ends after a round if its database says so, which is forgotten then.
    """
    engine = federation.engine
    is_wrapped = isinstance(engine, GridEngine) and engine.inner is not None
    with Store(folder, creates=True) as store:
        store.keep_fact(ENDING, False)

        def is_ending() -> bool:
            return bool(store.read_fact(ENDING))

        with open_desk(
            folder,
            federation,
            wait=lambda: not is_ending(),
            is_ending=is_ending,
            holds_data=False,
            rolls_back=not is_wrapped,
        ) as (desk, watch):
            watch.start(state)
            yield desk


def as_flower(settings: RunSettings) -> RunSettings:
    """Return the settings with the clock of the service as that of its rounds."""
    sections = settings.sections
    assert sections.service is not None
    clock = {"round_seconds": sections.service.round_seconds}
    update = {"engine": sections.engine.model_copy(update=clock)}
    return settings.with_sections(sections.model_copy(update=update))


def run_on_flower(
    settings: RunSettings,
    folder: Path,
    ending: threading.Event,
    on_start: OnStart,
    on_round: OnRound | None = None,
    *,
    node_user: NodeUser = None,
) -> None:
    """Play the rounds of a service on Flower, in the mode that its run file sets.

    Parameters
    ----------
    settings : of `loop.as_service`
    ending : set to end the service after the round that is under way
    on_start : called when the database is there
    node_user : as in `Deployment`
    """
    settings, resume = as_flower(settings), (folder / "checkpoint").exists()
    Store(folder, creates=True).close()
    on_start()
    with _passing_on(ending, folder):
        if settings.sections.engine.mode == "in-process":
            run_in_process(
                settings, folder, resume=resume, on_round=on_round, requests=open_requests
            )
            return
        deployment = Deployment(
            settings,
            folder,
            num_nodes=settings.sections.federation.clients,
            resume=resume,
            node_user=node_user,
            server_code=SERVER_CODE,
        )
        with deployment:
            deployment.follow(deployment.start(), on_round)


@contextmanager
def _passing_on(ending: threading.Event, folder: Path) -> Iterator[None]:
    """Tell the server app, which may be another process, when the service is to end."""
    is_over = threading.Event()

    def pass_on() -> None:
        while not is_over.wait(LOOK):
            if ending.is_set():
                # Again and again: a server app that has just started takes it back, and the
                # database may be full or in use for a moment.
                with contextlib.suppress(CovertflError), Store(folder) as store:
                    store.keep_fact(ENDING, True)

    thread = threading.Thread(target=pass_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
