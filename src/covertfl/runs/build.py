"""From the settings of a run to its federation: task, decoys, kernel, clients and policy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from covertfl.decoys.decoy import Decoy
from covertfl.decoys.registry import REPLICA, make_decoy
from covertfl.decoys.replica import Replicas
from covertfl.errors import InvalidInput, Missing
from covertfl.kernels.job import LocalKernel
from covertfl.kernels.weights import Layout
from covertfl.runs.clients import ClientResponder, add_noise, count_sizes
from covertfl.runs.exchangeable import make_replicas
from covertfl.runs.federation import Federation
from covertfl.runs.function import FunctionResponder
from covertfl.runs.participation import SimulatedParticipation, measure_federation
from covertfl.runs.policy import make_run_policy, with_success
from covertfl.runs.queue import read_arrivals
from covertfl.runs.replay import read_recorded
from covertfl.runs.settings import DirichletSplit, RunSections, RunSettings
from covertfl.tasks.function import FunctionTask
from covertfl.tasks.public_map import add_public_map
from covertfl.tasks.registry import make_task
from covertfl.tasks.task import DataSettings, TrainingTask


def require_torch() -> None:
    """Raise Missing, with the command that installs it, if PyTorch is not installed."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise Missing("training needs PyTorch: pip install 'covertfl[train]'") from error


class KernelCache:
    """Kernels by model and optimizer; the jobs of runs that share a kernel are batched."""

    def __init__(self) -> None:
        self._kernels: dict[tuple[object, ...], LocalKernel] = {}

    def find(self, task: TrainingTask, sections: RunSections) -> LocalKernel:
        """Return the kernel of a run."""
        from covertfl.kernels.choose import choose_kernel

        optimizer = sections.federation.optimizer.make()
        shape, device = task.train.features.shape[1:], sections.engine.device
        own = task.make_model if sections.task == "own" else None
        data = (sections.task, own, sections.data.model, sections.data.path)
        key = (*data, shape, optimizer, device)
        if key not in self._kernels:
            self._kernels[key] = choose_kernel(task.make_model, task.loss, optimizer, device=device)
        return self._kernels[key]


def find_training_task(settings: RunSettings) -> TrainingTask:
    """Return the task of a run; raise InvalidInput if it has no clients."""
    task = _find_task(settings)
    if isinstance(task, FunctionTask):
        raise InvalidInput(f"{settings.name}: task must have clients, got function")
    return task


def simulate_participation(settings: RunSettings, task: TrainingTask) -> SimulatedParticipation:
    """Return the oracle states and attendance of a simulated run."""
    return SimulatedParticipation(settings, count_sizes(task), read_recorded(settings))


def build_federation(
    settings: RunSettings, kernels: KernelCache, *, measures: bool = True
) -> Federation:
    """Build everything that stays the same during a run.

    With acceptance by data or by noise, success probabilities are measured on simulated clients and
    replace the problem's, if `measures`.  The problem's own stay where a log determines acceptance.
    """
    sections, problem = settings.sections, settings.problem
    _check_states(settings)
    task, recorded = _find_task(settings), read_recorded(settings)
    responder: FunctionResponder | ClientResponder
    measured = None
    if isinstance(task, FunctionTask):
        measured = np.array(task.success)
        responder = FunctionResponder(settings, task)
    else:
        is_recorded = recorded is not None and recorded.success is not None
        if measures:
            measured = measure_federation(task, settings, recorded)
        keeps_own = sections.federation.acceptance == "model" or is_recorded
        if measured is not None and not keeps_own:
            problem = with_success(problem, measured)
        with _naming_run_file(settings):
            kernel = kernels.find(task, sections)
            decoys, images = _make_decoys(settings, task, kernel.layout)
        success = problem.oracle.success
        responder = ClientResponder(settings, task, kernel, decoys, success, recorded, images)
    seed, rule = settings.hidden_seed, settings.decoy_rule
    policy = make_run_policy(sections.policy, problem, seed=seed, decoys=rule)
    arrivals = None if sections.arrivals is None else read_arrivals(sections.arrivals)
    return Federation(settings, responder, problem, policy, measured, recorded, arrivals)


def _make_decoys(
    settings: RunSettings, task: TrainingTask, layout: Layout
) -> tuple[tuple[Decoy, ...], Replicas | None]:
    """Return the decoys of a run, or the replicas of an exchangeable one."""
    section, federation = settings.sections.decoy, settings.sections.federation
    if section.kind == REPLICA:
        return (), make_replicas(settings, task, layout)
    decoy = make_decoy(
        section.kind,
        task,
        batch_size=federation.batch_size,
        algorithm=federation.algorithm,
        optimizer=federation.optimizer.make(),
    )
    # Decoys have no state, so one serves all trajectories.
    return (decoy,) * section.count, None


@contextlib.contextmanager
def _naming_run_file(settings: RunSettings) -> Iterator[None]:
    """Add the name of the run file to the message of an InvalidInput."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"{settings.name}: {error}") from error


def _find_task(settings: RunSettings) -> TrainingTask | FunctionTask:
    task = _make_task(settings)
    if isinstance(task, FunctionTask):
        return task
    if settings.sections.data.map == "public" and task.public_map is None:
        with _naming_run_file(settings):
            task = add_public_map(task)
    return add_noise(settings, task)


def _make_task(settings: RunSettings) -> TrainingTask | FunctionTask:
    if settings.sections.task != "own":
        with _naming_run_file(settings):
            return make_task(_describe_data(settings))
    if settings.own_task is None:
        raise InvalidInput(
            f"{settings.name}: task = own is for tasks made in Python: pass a TrainingTask to Run"
        )
    return settings.own_task


def _describe_data(settings: RunSettings) -> DataSettings:
    sections, data = settings.sections, settings.sections.data
    return DataSettings(
        task=sections.task,
        seed=sections.seed if data.seed is None else data.seed,
        clients=sections.federation.clients,
        split=data.split.dirichlet if isinstance(data.split, DirichletSplit) else "iid",
        **data.model_dump(exclude={"split", "seed", "map"}),
        # What the eavesdropper holds must not change what clients hold.
        same_clients=True,
        **(_describe_oracle(settings) if sections.task == "function" else {}),
    )


def _describe_oracle(settings: RunSettings) -> dict[str, Any]:
    """Return what the function task takes from the problem and the decoys."""
    success = tuple(settings.problem.oracle.success.tolist())
    return {"success": success, "decoys": settings.sections.decoy.count}


def _check_states(settings: RunSettings) -> None:
    states, given = settings.problem.oracle.num_states, settings.sections.federation.participation
    has_clients = settings.sections.task != "function" or settings.sections.federation.log
    if has_clients and len(given) != states:
        raise InvalidInput(
            f"{settings.name}: [federation] participation must have {states} numbers, one for each "
            f"oracle state, got {len(given)}"
        )
