"""Solutions, plans and fits as dictionaries, as `--json` prints them.

The keys are part of the command line's interface.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from covertfl.fitting.oracle import ArrivalFit, FittedOracle
from covertfl.planning.exposure import ExposurePlan
from covertfl.planning.horizon import HorizonPlan
from covertfl.planning.queue import QueuePlan
from covertfl.planning.trajectories import HorizonPrice, HorizonPrices, QueuePrices
from covertfl.solvers.backward_induction import HorizonSolution
from covertfl.solvers.constrained import QueueSolution
from covertfl.solvers.spga.result import round_parameters
from covertfl.solvers.spga.score import HorizonScore, QueueScore, evaluate_from_each_state
from covertfl.solvers.structure import (
    StructureReport,
    examine_horizon_solution,
    examine_queue_solution,
    find_queue_thresholds,
)


def describe_structure(report: StructureReport) -> dict[str, Any]:
    """Describe the structure of a solution; assumptions that cannot be computed are left out."""
    described: dict[str, Any] = {
        "monotone_in_backlog": report.monotone_in_backlog,
        "monotone_in_oracle": report.monotone_in_oracle,
        "counterexample": report.counterexample,
        "assumptions": {
            item.name: item.holds for item in report.assumptions if item.holds is not None
        },
        "notes": list(report.notes),
    }
    if report.monotone_in_rounds is not None:
        described["monotone_in_rounds"] = report.monotone_in_rounds
    return described


def describe_queue_solution(solution: QueueSolution, seconds: float) -> dict[str, Any]:
    """Describe a queue's solution."""
    evaluation = solution.evaluation
    return {
        "problem": "queue",
        "method": solution.method,
        "privacy_cost": evaluation.privacy_cost,
        "learning_cost": evaluation.learning_cost,
        "learn_fraction": evaluation.learn_fraction,
        "multiplier": solution.multiplier,
        "thresholds": find_queue_thresholds(solution),
        "mixing": None if solution.mixing is None else asdict(solution.mixing),
        "capacity": solution.problem.capacity,
        "full_prob": evaluation.full_prob,
        "lost_per_round": evaluation.lost_per_round,
        "mean_backlog": evaluation.mean_backlog,
        "lower_bound": solution.lower_bound,
        "settling_rounds": evaluation.settling_rounds,
        "structure": describe_structure(examine_queue_solution(solution)),
        "seconds": seconds,
    }


def describe_horizon_solution(solution: HorizonSolution, seconds: float) -> dict[str, Any]:
    """Describe a horizon's solution."""
    thresholds = None if solution.thresholds is None else solution.thresholds.tolist()
    return {
        "problem": "horizon",
        "method": "exact",
        "expected_cost": solution.expected_cost,
        "thresholds": thresholds,
        "structure": describe_structure(examine_horizon_solution(solution)),
        "seconds": seconds,
    }


def _or_none(gap: float) -> float | None:
    """Return a gap, None if it is NaN because the optimum costs nothing."""
    return float(gap) if gap == gap else None  # noqa: PLR0124


def describe_queue_score(score: QueueScore, seed: int, seconds: float) -> dict[str, Any]:
    """Describe the chosen run of a search; its thresholds are rounded parameters."""
    described = describe_queue_solution(score.solution, seconds)
    first, certain, _ = round_parameters(score.runs[score.chosen].parameters)
    capacity = score.problem.num_levels - 1
    return described | {
        "thresholds": [
            [[int(a), int(b)] if a <= capacity else None for a, b in zip(*pair, strict=True)]
            for pair in zip(first, certain, strict=True)
        ],
        "iterations": score.solution.iterations,
        "seed": seed,
        "gap": _or_none(score.gaps[score.chosen]),
        "optimum": score.optimum.cost,
        "runs": [
            {
                "gap": _or_none(gap),
                "privacy_cost": evaluation.privacy_cost,
                "learning_cost": evaluation.learning_cost,
            }
            for gap, evaluation in zip(score.gaps, score.evaluations, strict=True)
        ],
    }


def describe_horizon_score(score: HorizonScore, seed: int, seconds: float) -> dict[str, Any]:
    """Describe the best stationary thresholds of a search, repeated for each round."""
    problem = score.optimum.problem
    chosen = score.thresholds[score.chosen].tolist()
    structure = examine_horizon_solution(score.optimum)
    return {
        "problem": "horizon",
        "method": "spga",
        "expected_cost": evaluate_from_each_state(problem, score.policy),
        "thresholds": [chosen] * problem.rounds,
        "structure": describe_structure(structure),
        "seconds": seconds,
        "iterations": len(score.runs[score.chosen].history.multiplier),
        "seed": seed,
        "gap": float(score.gaps[score.chosen]),
    }


def describe_plan(plan: HorizonPlan | QueuePlan) -> dict[str, Any]:
    """Describe what a problem allows."""
    if isinstance(plan, HorizonPlan):
        return describe_horizon_plan(plan)
    return describe_queue_plan(plan)


def describe_horizon_plan(plan: HorizonPlan) -> dict[str, Any]:
    """Describe a horizon's plan."""
    bound, evaluation = plan.best_eavesdropper, plan.evaluation
    interval = plan.minority_interval
    return {
        "problem": "horizon",
        "completion": {
            "minority": plan.minority.tolist(),
            "prefix_minority": plan.prefix_minority.tolist(),
            "minority_interval": None if interval is None else interval.tolist(),
        },
        "rounds_needed": _name_probs(plan.rounds_needed),
        "greedy_learning_queries": plan.greedy_learning_queries,
        "best_eavesdropper": {"value": bound.value, "interval": [bound.low, bound.high]},
        "optimal": {
            "expected_cost": plan.solution.expected_cost,
            "learning_queries": evaluation.learning_queries,
            "exposure": evaluation.exposure,
            "completion": evaluation.finish_prob,
            "covert_completion": evaluation.covert_finish_prob,
        },
        "advice": plan.advice,
        "exchangeable": _describe_horizon_prices(plan.exchangeable),
    }


def describe_queue_plan(plan: QueuePlan) -> dict[str, Any]:
    """Describe a queue's plan."""
    return {
        "problem": "queue",
        "stable": plan.stable,
        "load": plan.load,
        "service_capacity": plan.service_capacity,
        "least_exposure": plan.least_exposure,
        "privacy_cost_bound": plan.privacy_cost_bound,
        "always_stable": plan.always_stable,
        "least_limit": plan.least_limit,
        "frontier": [asdict(point) for point in plan.frontier],
        "trouble": plan.trouble,
        "advice": plan.advice,
        "exchangeable": _describe_queue_prices(plan.exchangeable),
    }


def _describe_queue_prices(plan: QueuePrices) -> dict[str, Any]:
    return {
        "by_trajectories": [asdict(price) for price in plan.prices],
        "service_capacity": plan.service_capacity,
        "most_trajectories": plan.most_trajectories,
        "advice": plan.advice,
    }


def _describe_horizon_prices(plan: HorizonPrices) -> dict[str, Any]:
    prices = [_describe_horizon_price(plan, price) for price in plan.prices]
    return {"by_trajectories": prices, "advice": plan.advice}


def _describe_horizon_price(plan: HorizonPrices, price: HorizonPrice) -> dict[str, Any]:
    return {
        "trajectories": price.trajectories,
        "completion": price.completion,
        "median_rounds": price.median_rounds,
        "rounds_needed": _name_probs(price.rounds_needed),
        "against_no_secrecy": _name_probs(plan.against_no_secrecy(price)),
        "against_minority": _name_probs(plan.against_minority(price)),
    }


def _name_probs(by_prob: Mapping[float, float | None]) -> dict[str, float | None]:
    return {f"{prob:g}": value for prob, value in by_prob.items()}


def describe_exposure(plan: ExposurePlan) -> dict[str, Any]:
    """Describe the setting that leads to a wanted exposure."""
    return asdict(plan)


def describe_fit(fitted: FittedOracle) -> dict[str, Any]:
    """Describe a fitted oracle with its 95% intervals and the counts behind them."""
    violation = fitted.dominance_violation
    return {
        "rounds": fitted.num_rounds,
        "column": fitted.column,
        "cuts": list(fitted.cuts),
        "min_examples": fitted.min_examples,
        "visits": fitted.visits.tolist(),
        "transition": fitted.oracle.transition.tolist(),
        "transition_interval": fitted.transition_interval.tolist(),
        "transition_counts": fitted.transition_counts.tolist(),
        "success": fitted.oracle.success.tolist(),
        "success_interval": fitted.success_interval.tolist(),
        "success_counts": fitted.success_counts.tolist(),
        "arrival": None if fitted.arrival is None else _describe_arrivals(fitted.arrival),
        "dominance_violation": None if violation is None else str(violation),
        "markov": fitted.markov.to_dict(),
        "skipped": fitted.skipped.to_dict(),
    }


def _describe_arrivals(arrival: ArrivalFit) -> dict[str, Any]:
    """Describe the arrivals of a fit, size by size only if sizes vary."""
    by_size = () if arrival.sizes_vary else ("sizes", "size_probs", "size_intervals")
    return {key: value for key, value in asdict(arrival).items() if key not in by_size}
