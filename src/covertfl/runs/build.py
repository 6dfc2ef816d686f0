"""From the settings of a run to its federation: task, decoys, kernel, clients and policy."""

from __future__ import annotations

from covertfl.errors import InvalidInput, Missing
from covertfl.kernels.job import LocalKernel
from covertfl.runs.clients import ClientResponder, count_sizes
from covertfl.runs.decoys import make_run_decoy
from covertfl.runs.federation import Federation
from covertfl.runs.participation import SimulatedParticipation, measure_federation, read_recorded
from covertfl.runs.policy import (
    advising_on_success,
    check_policy_states,
    make_run_policy,
    with_success,
)
from covertfl.runs.queue import read_arrivals
from covertfl.runs.settings import RunSections, RunSettings
from covertfl.runs.task import find_task, is_built_in, naming_run_file
from covertfl.tasks.task import TrainingTask


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
        own = None if is_built_in(sections) else task.make_model
        data = (sections.task, own, sections.data.model, sections.data.path)
        key = (*data, shape, optimizer, device)
        if key not in self._kernels:
            self._kernels[key] = choose_kernel(task.make_model, task.loss, optimizer, device=device)
        return self._kernels[key]


def simulate_participation(settings: RunSettings, task: TrainingTask) -> SimulatedParticipation:
    """Return the oracle states and attendance of a simulated run."""
    return SimulatedParticipation(settings, count_sizes(task), read_recorded(settings))


def build_federation(
    settings: RunSettings, kernels: KernelCache, *, measures: bool = True
) -> Federation:
    """Build everything that stays the same during a run.

    With acceptance by data, success probabilities are measured on simulated clients and
    replace the problem's, if `measures`.  The problem's own stay where a log determines acceptance.
    """
    sections, problem = settings.sections, settings.problem
    _check_states(settings)
    task, recorded = find_task(settings), read_recorded(settings)
    is_recorded = recorded is not None and recorded.success is not None
    measured = measure_federation(task, settings, recorded) if measures else None
    keeps_own = sections.federation.acceptance == "model" or is_recorded
    if measured is not None and not keeps_own:
        problem = with_success(problem, measured)
    with naming_run_file(settings):
        kernel = kernels.find(task, sections)
        decoy, replicas = make_run_decoy(settings, task, kernel.layout)
    success = problem.oracle.success
    responder = ClientResponder(settings, task, kernel, decoy, success, recorded, replicas)
    check_policy_states(sections.policy, settings.states)
    with advising_on_success(settings, problem.oracle.success):
        policy = make_run_policy(sections.policy, problem, seed=settings.hidden_seed)
    arrivals = None if sections.arrivals is None else read_arrivals(sections.arrivals)
    return Federation(settings, responder, problem, policy, measured, recorded, arrivals)


def _check_states(settings: RunSettings) -> None:
    states, given = settings.problem.oracle.num_states, settings.sections.federation.participation
    if len(given) != states:
        raise InvalidInput(
            f"{settings.name}: [federation] participation must have {states} numbers, one for each "
            f"oracle state, got {len(given)}"
        )
