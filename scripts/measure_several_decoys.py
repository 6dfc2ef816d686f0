"""Measure what several decoys do to the eavesdropper that counts queries, equation (6).

Simulates runs of `sound/main` and prints, for each policy and number of decoys, the share of runs
in which the true trajectory is named: with the lead of `decision.decoy_rule`, and if obfuscating
queries were divided evenly.

    python scripts/measure_several_decoys.py [--runs 4000] [--least-queries 1]
"""

from __future__ import annotations

import argparse

import numpy as np

from covertfl.arrays import FloatArray, IntArray
from covertfl.decision.decoy_rule import DecoyRule
from covertfl.decision.policy import GreedyPolicy, Policy
from covertfl.decision.problem import FiniteHorizon
from covertfl.decision.problem_file import read_preset
from covertfl.evaluation.horizon import simulate_horizon_policy
from covertfl.evaluation.schedule import bound_best_eavesdropper, place_queries
from covertfl.solvers.backward_induction import solve_horizon
from covertfl.solvers.minority import solve_minority

COUNTS = (1, 2, 3, 5)
HEADER = "| policy | decoys | named, lead | named, even | all decoys seen | finished | F4 |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=4000)
    parser.add_argument("--least-queries", type=int, default=1)
    given = parser.parse_args()
    problem = read_preset("sound/main").problem
    assert isinstance(problem, FiniteHorizon)
    print(HEADER, "| --- | ---: | ---: | ---: | ---: | ---: | ---: |", sep="\n")
    for kind in ("optimal", "minority", "greedy"):
        for count in COUNTS:
            rule = DecoyRule(count, given.least_queries)
            print(measure(problem, kind, rule, given.runs))


def measure(problem: FiniteHorizon, kind: str, rule: DecoyRule, runs: int) -> str:
    """Return a row of the table."""
    policy = make_policy(problem, kind, rule)
    generator = np.random.default_rng(0)
    sample = simulate_horizon_policy(problem, policy, runs, generator=generator)
    counts = count_queries(place_queries(problem, policy, sample, rule), rule.num_decoys)
    even = 1 + generator.integers(rule.num_decoys, size=sample.actions.shape)
    uneven = count_queries(np.where(sample.actions, 0, even), rule.num_decoys)
    bound = bound_best_eavesdropper(
        problem, policy, num_samples=2000, generator=np.random.default_rng(1), decoys=rule
    )
    seen = np.mean(np.all(counts[2:] >= rule.least_queries, axis=0))
    shares = (name(counts), name(uneven), seen, np.mean(sample.backlog_left == 0), bound.value)
    cells = " | ".join(f"{share:.1%}" for share in shares)
    return f"| {kind} | {rule.num_decoys} | {cells} |"


def make_policy(problem: FiniteHorizon, kind: str, rule: DecoyRule) -> Policy:
    """Return a policy by name."""
    if kind == "minority":
        return solve_minority(problem, decoys=rule).policy
    return solve_horizon(problem).policy if kind == "optimal" else GreedyPolicy()


def count_queries(placed: IntArray, num_decoys: int) -> IntArray:
    """Return the queries of each trajectory, (D + 1, R)."""
    return np.stack([(placed == label).sum(axis=1) for label in range(num_decoys + 1)])


def name(counts: FloatArray | IntArray) -> float:
    """Return the share of runs in which the true trajectory is named, a tie counting half."""
    most = counts[1:].max(axis=0)
    return float(np.mean(0.5 * ((counts[0] > most).astype(float) + (counts[0] >= most))))


if __name__ == "__main__":
    main()
