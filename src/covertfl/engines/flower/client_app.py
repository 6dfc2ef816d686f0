"""The client app of a run file: one client's work on the query it was sent.

It knows the task, its own data and the seed of the simulated world, from which it draws the order
of its examples and, where clients are simulated, how many batches it has time for.  Of policy,
problem, decoys and the secret seed it is told nothing: `describe_client_run` is all it needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from covertfl.engines.flower.messages import ARRAYS, EXAMPLES, METRICS, ROUND, describe_layout_form
from covertfl.errors import InvalidInput
from covertfl.kernels.job import LocalKernel
from covertfl.kernels.weights import Vector
from covertfl.runs.build import KernelCache, make_world
from covertfl.runs.clients import make_client_job
from covertfl.runs.participation import count_batches
from covertfl.runs.run_file import build_run, format_run, format_toml
from covertfl.runs.settings import RunSettings
from covertfl.runs.task import find_training_task
from covertfl.runs.world import World
from covertfl.seeding import Stream, make_generator
from covertfl.tasks.task import TrainingTask

# drawn: the batches that the simulator draws for the round, for all clients together;
# own: batches that the client draws by itself, where nobody simulates who is there.
Presence = Literal["drawn", "own"]
PARTITION = "partition-id"


@dataclass(frozen=True, eq=False)
class Workshop:
    """What a client needs to work, built once in a process."""

    task: TrainingTask
    kernel: LocalKernel
    world: World


def make_client_app(settings: RunSettings, *, presence: Presence = "own") -> ClientApp:
    """The client app of a run; each node's config says which client it is (`partition-id`).

    Parameters
    ----------
    settings : of the run, or only what clients may know of it (`read_client_run`)
    presence : where the number of batches comes from
    """
    app = ClientApp()
    bench = Bench(settings, presence)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return bench.answer(message, context)

    return app


class Bench:
    """A client's place of work; what it needs is built when the first query comes.

    Parameters
    ----------
    settings, presence : see `make_client_app`
    """

    def __init__(self, settings: RunSettings, presence: Presence) -> None:
        self._settings, self._presence = settings, presence

    def answer(self, message: Message, context: Context) -> Message:
        """Train on what was sent; a client without time says so, with no examples."""
        shop = _open_workshop(self._settings)
        client, number = _read_client(context, shop.task), _read_round(message)
        arrays = next(iter(message.content.array_records.values()))
        batches = self._count_batches(shop, client, number)
        if batches == 0:
            return _reply(message, arrays, 0)
        form = describe_layout_form(shop.kernel.layout)
        weights = form.join({name: array.numpy() for name, array in arrays.items()})
        job = make_client_job(self._settings, shop.task, client, batches, weights, number)
        [result] = shop.kernel.run([job])
        return _reply(message, _write(form.layout.split(result)), len(job.rows))

    def _count_batches(self, shop: Workshop, client: int, number: int) -> int:
        if self._presence == "drawn":
            attendance = shop.world.attend(number)
            drawn = dict(zip(attendance.clients.tolist(), attendance.batches.tolist(), strict=True))
            return int(drawn.get(client, 0))
        size = np.array(len(shop.task.clients[client]))
        most = int(count_batches(size, self._settings.sections.federation.batch_size))
        generator = make_generator(self._settings.seed, Stream.PARTICIPATION, number, client)
        return int(generator.integers(0, most + 1))


def _open_workshop(settings: RunSettings) -> Workshop:
    # The text says all that matters, and outlives the settings where an app is copied.
    own = settings.own_task
    return _build_workshop(format_run(settings, {}), id(own), _Held(settings))


class _Held:
    """Settings that are not part of a cache's key."""

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held)

    def __hash__(self) -> int:
        return 0


@lru_cache(maxsize=8)
def _build_workshop(text: str, own: int, held: _Held) -> Workshop:
    settings = held.settings
    task = find_training_task(settings)
    kernel = KernelCache().find(task, settings.sections)
    return Workshop(task, kernel, make_world(settings, task))


def _read_client(context: Context, task: TrainingTask) -> int:
    client = context.node_config.get(PARTITION)
    if type(client) is not int or not 0 <= client < len(task.clients):
        raise InvalidInput(
            f"the node's config must have {PARTITION} in 0..{len(task.clients) - 1}, got {client!r}"
        )
    return client


def _read_round(message: Message) -> int:
    for config in message.content.config_records.values():
        if isinstance(number := config.get(ROUND), int):
            return number
    raise InvalidInput(f"a query must say its round as {ROUND}")


def _reply(message: Message, arrays: ArrayRecord, examples: int) -> Message:
    content = RecordDict({ARRAYS: arrays, METRICS: MetricRecord({EXAMPLES: examples})})
    return Message(content, reply_to=message)


def _write(parts: dict[str, Vector]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.ascontiguousarray(part)) for name, part in parts.items()})


# --- what clients may know --------------------------------------------------------------------


def describe_client_run(settings: RunSettings) -> dict[str, Any]:
    """The content of a run file that clients may have: task, data and their own training.

    Its seed is the one of the data; a run that is deployed draws its actions from a secret one.
    """
    sections = settings.sections
    federation = sections.federation
    kept = ("algorithm", "batch_size")
    return {
        "task": sections.task,
        "seed": sections.seed,
        "data": sections.data.model_dump(exclude_none=True),
        "federation": {
            "clients": federation.clients,
            "participation": [federation.clients],
            "optimizer": federation.optimizer.model_dump(),
            **{key: getattr(federation, key) for key in kept},
        },
    }


def format_client_run(settings: RunSettings) -> str:
    """The run file for clients, as TOML."""
    return format_toml(describe_client_run(settings))


def read_client_run(settings: RunSettings) -> RunSettings:
    """Settings as clients may have them."""
    known = build_run(describe_client_run(settings), settings.name, folder=Path("/"))
    return known if settings.own_task is None else known.with_task(settings.own_task)
