"""Checks of a run before it is deployed."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from covertfl.errors import InvalidInput
from covertfl.runs.participation import (
    accepts_data,
    count_batches,
    count_examples,
    count_sizes,
    find_least_share,
)
from covertfl.runs.settings import RunSettings, build_run, describe_run
from covertfl.runs.train import find_task, is_built_in

MOST_NODES = 100


def as_deployed(settings: RunSettings) -> RunSettings:
    """Return the same run with a deployment as its engine, checked again."""
    engine = settings.sections.engine.model_copy(update={"kind": "flower", "mode": "deployment"})
    sections = settings.sections.model_copy(update={"engine": engine})
    content = describe_run(replace(settings, sections=sections), {})
    return build_run(content, settings.name, folder=Path())


def check_deployable(settings: RunSettings, num_nodes: int, *, has_own_app: bool) -> None:
    """Raise InvalidInput if a run cannot be deployed on so many nodes.

    Parameters
    ----------
    has_own_app : whether a user's project is deployed, whose server app may bring a task of its own
    """
    clients = settings.sections.federation.clients
    if not 1 <= num_nodes <= min(clients, MOST_NODES):
        raise InvalidInput(
            f"{settings.name}: nodes must be 1..{min(clients, MOST_NODES)} with [federation] "
            f"clients = {clients}, got {num_nodes}"
        )
    task = settings.sections.task
    if not is_built_in(settings.sections) and not has_own_app:
        raise InvalidInput(
            f"{settings.name}: task = {task} cannot be deployed: nodes have no way to make it"
        )
    used = {"scheme": settings.sections.scheme, **settings.scheme.list_plug_ins(settings.parts)}
    for key, plug_in in used.items():
        if ":" in plug_in and not has_own_app:
            raise InvalidInput(
                f"{settings.name}: {key} = {plug_in} cannot be deployed: the server app finds "
                "plug-ins of installed packages only"
            )


@contextlib.contextmanager
def holding_run(path: Path) -> Iterator[bool]:
    """Keep other processes from using the run in a folder; yield whether there is a run.

    Raises
    ------
    InvalidInput
        if another process uses it
    """
    try:
        lock = (path / "checkpoint" / "lock").open("r+b")
    except OSError:
        yield False
        return
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InvalidInput(f"{path} is in use by another process") from error
        yield True


def count_model_bytes(settings: RunSettings) -> int:
    """Return the size of the arrays of a built-in task's model."""
    from covertfl.kernels.autograd.module import describe_layout, isolate_generator

    with isolate_generator():
        model = find_task(settings).make_model()
    return 4 * describe_layout(model).size


def find_shortage(settings: RunSettings, num_nodes: int | None = None) -> str | None:
    """Return why no round can ever be accepted, however much each node trains; None if one can.

    Node k is client k of the task and trains on whole batches.  The nodes of a user's own app hold
    data of their own and are not checked.

    Parameters
    ----------
    num_nodes : None for as many as the run has clients
    """
    section = settings.sections.federation
    if section.acceptance != "data" or not is_built_in(settings.sections):
        return None
    num_nodes = section.clients if num_nodes is None else num_nodes
    sizes = count_sizes(find_task(settings))
    batches, total = count_batches(sizes, section.batch_size), int(sizes.sum())
    most = int(count_examples(batches, sizes, section.batch_size)[:num_nodes].sum())
    share = find_least_share(settings, total)
    if accepts_data(most, total, share):
        return None
    return (
        f"{settings.name}: no round can be accepted: {num_nodes} nodes train on at most "
        f"{most / total:.3f} of the examples of [federation] clients = {section.clients}, "
        f"and {share:.3g} is needed; set clients = {num_nodes} with participation up to it, "
        "or use more nodes"
    )
