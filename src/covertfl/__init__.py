"""Covert federated learning: when to send the true model, when a decoy, and what leaks."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from covertfl.api.audit import AuditReport as AuditReport, audit as audit
    from covertfl.api.fit import Fit as Fit, fit as fit
    from covertfl.api.plan import Plan as Plan, plan as plan
    from covertfl.api.problem import load_problem as load_problem
    from covertfl.api.run import Run as Run, TrainingResult as TrainingResult
    from covertfl.api.solution import Solution as Solution
    from covertfl.api.solve import solve as solve
    from covertfl.auditing.threats import Threat as Threat
    from covertfl.decision.oracle import Oracle as Oracle
    from covertfl.decision.policy import (
        GreedyPolicy as GreedyPolicy,
        HorizonTable as HorizonTable,
        Observation as Observation,
        Policy as Policy,
        QueueTable as QueueTable,
        RandomPlacement as RandomPlacement,
        build_horizon_threshold_table as build_horizon_threshold_table,
        build_mixture_table as build_mixture_table,
        build_sigmoid_table as build_sigmoid_table,
        build_threshold_table as build_threshold_table,
    )
    from covertfl.decision.policy_file import (
        read_policy as read_policy,
        write_policy as write_policy,
    )
    from covertfl.decision.problem import (
        Action as Action,
        FiniteHorizon as FiniteHorizon,
        LearningCost as LearningCost,
        QueueProblem as QueueProblem,
    )
    from covertfl.decision.problem_file import list_presets as list_presets
    from covertfl.errors import (
        CovertflError as CovertflError,
        Infeasible as Infeasible,
        InvalidInput as InvalidInput,
        Missing as Missing,
        NoSolution as NoSolution,
        SolverFailed as SolverFailed,
        SplitChain as SplitChain,
        Unstable as Unstable,
    )
    from covertfl.evaluation.horizon import (
        evaluate_horizon_policy as evaluate_horizon_policy,
        simulate_horizon_policy as simulate_horizon_policy,
    )
    from covertfl.evaluation.queue import (
        evaluate_queue_policy as evaluate_queue_policy,
        simulate_queue_policy as simulate_queue_policy,
    )
    from covertfl.evaluation.schedule import bound_best_eavesdropper as bound_best_eavesdropper
    from covertfl.kernels.job import Examples as Examples
    from covertfl.models.load import (
        Model as Model,
        Predictions as Predictions,
        load_model as load_model,
    )
    from covertfl.runs.files import RunSummary as RunSummary
    from covertfl.runs.train import RunProgress as RunProgress
    from covertfl.solvers.minority import solve_minority as solve_minority
    from covertfl.tasks.task import TrainingTask as TrainingTask

__version__ = "0.1.0"

# Where each public name is defined.  Names are imported when they are first used, so that
# importing the package, or using a part of it, does not wait for the rest.
_HOMES = {
    "api.audit": "AuditReport audit",
    "api.fit": "Fit fit",
    "api.plan": "Plan plan",
    "api.problem": "load_problem",
    "api.run": "Run TrainingResult",
    "api.solution": "Solution",
    "api.solve": "solve",
    "auditing.threats": "Threat",
    "decision.oracle": "Oracle",
    "decision.policy": (
        "GreedyPolicy HorizonTable Observation Policy QueueTable RandomPlacement "
        "build_horizon_threshold_table build_mixture_table build_sigmoid_table "
        "build_threshold_table"
    ),
    "decision.policy_file": "read_policy write_policy",
    "decision.problem": "Action FiniteHorizon LearningCost QueueProblem",
    "decision.problem_file": "list_presets",
    "errors": (
        "CovertflError Infeasible InvalidInput Missing NoSolution SolverFailed SplitChain Unstable"
    ),
    "evaluation.horizon": "evaluate_horizon_policy simulate_horizon_policy",
    "evaluation.queue": "evaluate_queue_policy simulate_queue_policy",
    "evaluation.schedule": "bound_best_eavesdropper",
    "kernels.job": "Examples",
    "models.load": "Model Predictions load_model",
    "runs.train": "RunProgress",
    "runs.files": "RunSummary",
    "solvers.minority": "solve_minority",
    "tasks.task": "TrainingTask",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [*sorted(_HOME_OF), "__version__"]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'covertfl' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"covertfl.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
