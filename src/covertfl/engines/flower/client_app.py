"""The client app of a run file: trains the model of a query on one client's data.

It knows the task and the seed of the data, which says whose examples it simulates.  The order of
these, how many batches it has time for and what its model draws come from entropy of its own:
drawn from a seed that all nodes have, any of them could compute the replies of all, and with them
the moves of the true weights.  Only a run whose clients are all simulated in one place draws them
from its seed.  It knows nothing of policy, problem, decoys and the secret seed:
`format_client_run` is all it needs.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import numpy as np
import tomli_w
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from covertfl.engines.flower.array_form import make_float_form
from covertfl.engines.flower.messages import ARRAYS, EXAMPLES, METRICS, ROUND, find_round
from covertfl.errors import InvalidInput
from covertfl.kernels.job import LocalKernel
from covertfl.runs.participation import SimulatedParticipation, count_batches
from covertfl.runs.settings import RunSettings, format_run, read_run
from covertfl.runs.simulated import make_client_job
from covertfl.runs.train import KernelCache, find_task, simulate_participation
from covertfl.seeding import LARGEST_SEED, Stream, make_generator
from covertfl.tasks.task import TrainingTask

# drawn: the number of batches that the simulator draws for all clients of the round together;
# own: a number that the client draws by itself, where participation is not simulated.
Presence = Literal["drawn", "own"]
PARTITION = "partition-id"


@dataclass(frozen=True, eq=False)
class ClientResources:
    """What clients train with, built once in a process; participation where it is simulated."""

    task: TrainingTask
    kernel: LocalKernel
    world: SimulatedParticipation


def make_client_app(
    run: RunSettings | str | os.PathLike[str],
    *,
    presence: Presence = "own",
    seed: int | None = None,
) -> ClientApp:
    """Return the client app of a run; a node's config holds its client's number, `partition-id`.

    Parameters
    ----------
    run : a run file or its settings, whole or reduced to what clients may know of them
        (`format_client_run`)
    presence : where the number of batches comes from
    seed : of all that clients draw; None for the run's with presence "drawn", and with "own" for
        one from the machine's entropy, drawn when the app is made
    """
    app = ClientApp()
    settings = run if isinstance(run, RunSettings) else read_run(run)
    if seed is None:
        seed = settings.seed if presence == "drawn" else secrets.randbelow(LARGEST_SEED + 1)
    app.train()(ClientTrainer(settings, presence, seed).reply)
    return app


class ClientTrainer:
    """Training on the data of a client; what it needs is built when the first query comes."""

    def __init__(self, settings: RunSettings, presence: Presence, seed: int) -> None:
        self._settings, self._presence = settings, presence
        self._draws = settings.with_seed(seed)

    def reply(self, message: Message, context: Context) -> Message:
        """Train the model of a query; a client without time replies with no examples."""
        settings = self._settings
        key = _ResourcesKey(format_run(settings, {}), id(settings.own_task), settings)
        resources = _build_resources(key)
        client, number = _read_client(context, resources.task), find_round(message)
        if number is None:
            raise InvalidInput(f"a query's config must have its round as {ROUND}, a whole number")
        arrays = next(iter(message.content.array_records.values()))
        batches = self._count_batches(resources, client, number)
        if batches == 0:
            return _reply(message, arrays, 0)
        form = make_float_form(resources.kernel.layout)
        weights = form.layout.join({name: array.numpy() for name, array in arrays.items()})
        task = resources.task
        job = make_client_job(self._draws, task, client, batches, weights, number)
        [result] = resources.kernel.run([job])
        return _reply(message, ArrayRecord(form.write(result)), len(job.rows))

    def _count_batches(self, resources: ClientResources, client: int, number: int) -> int:
        """Return a client's number of batches in a round."""
        if self._presence == "drawn":
            attendance = resources.world.attend(number)
            place = int(np.searchsorted(attendance.clients, client))
            if client not in attendance.clients:
                return 0
            return int(attendance.batches[place])
        size = np.array(len(resources.task.clients[client]))
        most = int(count_batches(size, self._settings.sections.federation.batch_size))
        generator = make_generator(self._draws.seed, Stream.PARTICIPATION, number, client)
        return int(generator.integers(0, most + 1))


@dataclass(frozen=True)
class _ResourcesKey:
    """Settings that are the same if their text is, also where an app and they were copied."""

    text: str
    own_task: int
    settings: RunSettings = field(compare=False)


@lru_cache(maxsize=8)
def _build_resources(key: _ResourcesKey) -> ClientResources:
    task = find_task(key.settings)
    kernel = KernelCache().find(task, key.settings.sections)
    return ClientResources(task, kernel, simulate_participation(key.settings, task))


def _read_client(context: Context, task: TrainingTask) -> int:
    client = context.node_config.get(PARTITION)
    if type(client) is not int or not 0 <= client < len(task.clients):
        raise InvalidInput(
            f"the node's config must have {PARTITION} in 0..{len(task.clients) - 1}, got {client!r}"
        )
    return client


def _reply(message: Message, arrays: ArrayRecord, examples: int) -> Message:
    content = RecordDict({ARRAYS: arrays, METRICS: MetricRecord({EXAMPLES: examples})})
    return Message(content, reply_to=message)


def format_client_run(settings: RunSettings) -> str:
    """Return the run file that clients may have, as TOML: task, data and local training.

    Of seeds it has that of the data alone: clients draw from their own, and a deployed run draws
    its actions from a secret one.
    """
    sections = settings.sections
    federation, data = sections.federation, sections.data
    seed = sections.seed if data.seed is None else data.seed
    content = {
        "task": sections.task,
        "data": {**data.model_dump(exclude_none=True), "seed": seed},
        "federation": {
            "clients": federation.clients,
            "participation": [federation.clients],
            "optimizer": federation.optimizer.model_dump(),
            "algorithm": federation.algorithm,
            "batch_size": federation.batch_size,
        },
    }
    return tomli_w.dumps(content)
