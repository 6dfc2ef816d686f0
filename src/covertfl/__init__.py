"""Covert federated learning: when to send the true model, when a decoy, and what leaks."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from covertfl.decision.oracle import Oracle as Oracle
    from covertfl.decision.oracle import (
        compute_stationary_distribution as compute_stationary_distribution,
    )
    from covertfl.decision.oracle import find_dominance_violation as find_dominance_violation
    from covertfl.decision.oracle import sample_path as sample_path
    from covertfl.decision.policy import GreedyPolicy as GreedyPolicy
    from covertfl.decision.policy import HorizonTable as HorizonTable
    from covertfl.decision.policy import Observation as Observation
    from covertfl.decision.policy import Policy as Policy
    from covertfl.decision.policy import QueueTable as QueueTable
    from covertfl.decision.policy import RandomPlacement as RandomPlacement
    from covertfl.decision.policy import (
        build_horizon_threshold_table as build_horizon_threshold_table,
    )
    from covertfl.decision.policy import build_mixture_table as build_mixture_table
    from covertfl.decision.policy import build_sigmoid_table as build_sigmoid_table
    from covertfl.decision.policy import build_threshold_table as build_threshold_table
    from covertfl.decision.policy_file import read_policy as read_policy
    from covertfl.decision.policy_file import write_policy as write_policy
    from covertfl.decision.problem import Action as Action
    from covertfl.decision.problem import FiniteHorizon as FiniteHorizon
    from covertfl.decision.problem import LearningCost as LearningCost
    from covertfl.decision.problem import QueueProblem as QueueProblem
    from covertfl.decision.problem_file import list_presets as list_presets
    from covertfl.decision.problem_file import read_preset as read_preset
    from covertfl.decision.problem_file import read_problem as read_problem
    from covertfl.errors import CovertflError as CovertflError
    from covertfl.errors import Infeasible as Infeasible
    from covertfl.errors import InvalidInput as InvalidInput
    from covertfl.errors import Missing as Missing
    from covertfl.errors import NoSolution as NoSolution
    from covertfl.errors import SolverFailed as SolverFailed
    from covertfl.errors import SplitChain as SplitChain
    from covertfl.errors import Unstable as Unstable
    from covertfl.evaluation.horizon import evaluate_horizon_policy as evaluate_horizon_policy
    from covertfl.evaluation.horizon import simulate_horizon_policy as simulate_horizon_policy
    from covertfl.evaluation.queue import evaluate_queue_policy as evaluate_queue_policy
    from covertfl.evaluation.queue import simulate_queue_policy as simulate_queue_policy
    from covertfl.evaluation.schedule import bound_best_eavesdropper as bound_best_eavesdropper
    from covertfl.fitting.log import read_log as read_log
    from covertfl.fitting.oracle import fit_oracle as fit_oracle
    from covertfl.planning.planner import find_limit_for_exposure as find_limit_for_exposure
    from covertfl.planning.planner import find_scale_for_exposure as find_scale_for_exposure
    from covertfl.planning.planner import plan_horizon as plan_horizon
    from covertfl.planning.planner import plan_queue as plan_queue
    from covertfl.solvers.average_cost import solve_discounted as solve_discounted
    from covertfl.solvers.backward_induction import solve_horizon as solve_horizon
    from covertfl.solvers.constrained import solve_queue as solve_queue
    from covertfl.solvers.minority import solve_minority as solve_minority
    from covertfl.solvers.occupation_lp import solve_occupation_lp as solve_occupation_lp
    from covertfl.solvers.structure import examine_horizon_solution as examine_horizon_solution
    from covertfl.solvers.structure import examine_queue_solution as examine_queue_solution

__version__ = "0.1.0"

# Where each public name lives.  Names are imported when they are first used, so that importing
# the package, or using a part of it, does not wait for the rest.
_HOMES = {
    "errors": (
        "CovertflError Infeasible InvalidInput Missing NoSolution SolverFailed SplitChain Unstable"
    ),
    "evaluation.horizon": "evaluate_horizon_policy simulate_horizon_policy",
    "decision.oracle": (
        "Oracle compute_stationary_distribution find_dominance_violation sample_path"
    ),
    "fitting.oracle": "fit_oracle",
    "fitting.log": "read_log",
    "planning.planner": "find_limit_for_exposure find_scale_for_exposure plan_horizon plan_queue",
    "decision.policy": (
        "GreedyPolicy HorizonTable Observation Policy QueueTable RandomPlacement "
        "build_horizon_threshold_table build_mixture_table build_sigmoid_table "
        "build_threshold_table"
    ),
    "decision.policy_file": "read_policy write_policy",
    "decision.problem": "Action FiniteHorizon LearningCost QueueProblem",
    "decision.problem_file": "list_presets read_preset read_problem",
    "evaluation.queue": "evaluate_queue_policy simulate_queue_policy",
    "evaluation.schedule": "bound_best_eavesdropper",
    "solvers.average_cost": "solve_discounted",
    "solvers.backward_induction": "solve_horizon",
    "solvers.constrained": "solve_queue",
    "solvers.minority": "solve_minority",
    "solvers.occupation_lp": "solve_occupation_lp",
    "solvers.structure": "examine_horizon_solution examine_queue_solution",
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
