"""From the settings of a run to its federation: task, kernel, clients, problem and policy."""

from __future__ import annotations

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.errors import InvalidInput, Missing
from covertfl.kernels.job import LocalKernel, LocalOptimizer
from covertfl.runs.arrivals import read_arrivals
from covertfl.runs.clients import ClientResponder, count_sizes
from covertfl.runs.federation import Federation
from covertfl.runs.function import FunctionResponder
from covertfl.runs.participation import measure_federation, read_recorded
from covertfl.runs.policy import make_run_policy, with_success
from covertfl.runs.settings import RunSections, RunSettings
from covertfl.runs.task import find_task, make_decoys, naming_run_file
from covertfl.runs.world import World
from covertfl.tasks.function import FunctionTask
from covertfl.tasks.task import TrainingTask


def require_torch() -> None:
    """Raise Missing, with the command that installs it, if PyTorch is not installed."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise Missing("training needs PyTorch: pip install 'covertfl[train]'") from error


class KernelCache:
    """Kernels by model and optimiser; the jobs of runs that share a kernel are batched."""

    def __init__(self) -> None:
        self._kernels: dict[tuple[object, ...], LocalKernel] = {}

    def find(self, task: TrainingTask, sections: RunSections) -> LocalKernel:
        """Return the kernel of a run."""
        from covertfl.kernels.choose import choose_kernel

        optimizer = LocalOptimizer(**sections.federation.optimizer.model_dump())
        shape, device = task.train.features.shape[1:], sections.engine.device
        own = task.make_model if sections.task == "own" else None
        data = (sections.task, own, sections.data.model, sections.data.path)
        key = (*data, shape, optimizer, device)
        if key not in self._kernels:
            self._kernels[key] = choose_kernel(task.make_model, task.loss, optimizer, device=device)
        return self._kernels[key]


def build_federation(
    settings: RunSettings, kernels: KernelCache, *, measures: bool = True
) -> Federation:
    """Build everything that stays the same during a run.

    Parameters
    ----------
    measures : whether success probabilities are measured on simulated clients; if not, the
        problem's own are used
    """
    sections, problem = settings.sections, settings.problem
    _check_states(settings)
    task, recorded = find_task(settings), read_recorded(settings)
    responder: FunctionResponder | ClientResponder
    measured: FloatArray | None
    if isinstance(task, FunctionTask):
        _check_function(settings, task)
        measured = np.array(task.success)
        problem = with_success(problem, measured)
        responder = FunctionResponder(settings, task)
    else:
        measured = measure_federation(task, sections.federation) if measures else None
        if sections.federation.acceptance == "data" and measured is not None:
            problem = with_success(problem, measured)
        with naming_run_file(settings):
            kernel, decoys = kernels.find(task, sections), make_decoys(task, sections)
        success = problem.oracle.success
        responder = ClientResponder(settings, task, kernel, decoys, success, recorded)
    policy = make_run_policy(sections.policy, problem, seed=settings.hidden_seed)
    arrivals = None if sections.arrivals is None else read_arrivals(sections.arrivals)
    return Federation(settings, responder, problem, policy, measured, recorded, arrivals)


def make_world(settings: RunSettings, task: TrainingTask) -> World:
    """Return the oracle states and attendance of a simulated run."""
    return World(settings, count_sizes(task), read_recorded(settings))


def _check_states(settings: RunSettings) -> None:
    states, given = settings.problem.oracle.num_states, settings.sections.federation.participation
    if len(given) != states:
        raise InvalidInput(
            f"{settings.name}: [federation] participation must have {states} numbers, one for each "
            f"oracle state, got {len(given)}"
        )


def _check_function(settings: RunSettings, task: FunctionTask) -> None:
    """Raise InvalidInput if the run does not fit the function's oracle and its one decoy."""
    states = settings.problem.oracle.num_states
    if states != len(task.success):
        raise InvalidInput(
            f"{settings.name}: task = function needs a problem with {len(task.success)} oracle "
            f"states, got {states}"
        )
    if settings.sections.decoy.count != 1:
        raise InvalidInput(
            f"{settings.name}: [decoy] count must be 1 with task = function, "
            f"got {settings.sections.decoy.count}"
        )
