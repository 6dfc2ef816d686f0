"""Measure the policy that is refreshed during a run (docs/spga.md, "Live refresh").

    python benchmarks/live_refresh.py [--method exact|search] [--seeds 20] [--write]

Rounds are drawn from a queue and decided with the code of a training run, without clients and
models.  The same rounds are also decided by the exact optimum of the true problem and by the policy
that always learns, whose backlog is the least of all policies in every round.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import get_args

import numpy as np
from measurement import describe_machine
from reference_problem import PRIVACY_COST, load_queue, make_oracle, make_queue
from section import DOCUMENTS, describe_date, render_table, write_block

from covertfl import (
    GreedyPolicy,
    LearningCost,
    Observation,
    Policy,
    QueueProblem,
    evaluate_queue_policy,
)
from covertfl.arrays import FloatArray
from covertfl.decision.policy import tabulate_for_queue
from covertfl.runs.records import charge_round
from covertfl.schemes.policies import LiveMethod, LiveState, is_due, make_live_policy, refresh_live
from covertfl.schemes.scheme import Query, SeenRound
from covertfl.solvers.constrained import QueueSolution, solve_queue
from covertfl.solvers.spga.experience import Experience, SimulatedSource
from covertfl.solvers.spga.score import measure_gap

SEEDS = 20
ROUNDS, EVERY = 20_000, 200
CHANGE_AT, RECOVERS_IN, JUDGED_FOR = 4000, 1000, 5000
# Rounds after which the policy in force is compared with the optimum.
LOOKS = (1000, 3000)
NOTHING = np.empty(0, dtype=np.float32)  # nothing is sent


@dataclass(frozen=True)
class Played:
    """A simulated run: (T,) costs of its rounds, and the policies in force at some of them."""

    privacy: FloatArray
    learning: FloatArray
    policies: dict[int, Policy] = field(default_factory=dict)


def make_design_queue() -> QueueProblem:
    """Return sound/queue with half of its arrivals and limit 3; its optimum is 0.127196."""
    cost = LearningCost("linear", 0.6, "always")
    return QueueProblem(
        make_oracle(), PRIVACY_COST, cost, arrival_prob=0.05, arrival_size=4, limit=3.0
    )


def draw_rounds(problem: QueueProblem, rounds: int, *seed: int) -> Experience:
    """Draw oracle states, arrivals and would-be successes."""
    source = SimulatedSource(
        problem.oracle,
        problem.arrival_probs[1:],
        problem.arrival_support[1:],
        generator=np.random.default_rng(seed),
    )
    return source.next_rounds(rounds)


def play(
    problem: QueueProblem,
    rounds: Experience,
    *,
    policy: Policy | None = None,
    method: LiveMethod = "exact",
    every: int = EVERY,
    seed: int = 0,
    looks: tuple[int, ...] = (),
) -> Played:
    """Decide drawn rounds with a policy, or with one that is refreshed if it is None."""
    live, seen, fixed = LiveState(), list[SeenRound](), policy
    policy = fixed or make_live_policy(problem, method, live, seen, rounds=0)
    draws = np.random.default_rng([seed, 1]).random(len(rounds))
    costs, policies, backlog = np.zeros((len(rounds), 2)), dict[int, Policy](), 0
    capacity = 10**9 if problem.capacity is None else problem.capacity
    triples = zip(
        rounds.oracle_state.tolist(), rounds.arrival.tolist(), rounds.success.tolist(), strict=True
    )
    for number, (state, arrival, success) in enumerate(triples):
        if fixed is None and is_due(live, every, number):
            spent = float(costs[:number, 1].sum())
            live = refresh_live(problem, method, live, seen, rounds=number, spent=spent, seed=seed)
            policy = make_live_policy(problem, method, live, seen, rounds=number)
        if number in looks:
            policies[number] = policy
        observation = Observation(state, backlog, int(problem.index_arrivals(arrival)))
        learn_prob = float(policy.learn_prob(observation))
        learns = bool(draws[number] < learn_prob)
        after = backlog - int(learns and success and backlog > 0) + arrival
        query = Query(number + 1, observation, NOTHING, 0 if learns else 1, learn_prob)
        costs[number] = charge_round(problem, backlog, query, max(after - capacity, 0))
        backlog = min(after, capacity)
        seen.append((state, arrival, success))
    return Played(costs[:, 0], costs[:, 1], policies)


def judge(optimum: QueueSolution, limit: float, policy: Policy) -> tuple[float, float]:
    """Return the gap at equal learning cost and the learning cost over the limit, both exact."""
    table = tabulate_for_queue(policy, optimum.problem)
    learning = evaluate_queue_policy(optimum.problem, table).learning_cost
    return measure_gap(optimum.problem, table), learning / limit


def measure_seed(problem: QueueProblem, method: LiveMethod, seed: int) -> FloatArray:
    """Play one seed; return the entries of `COLUMNS`."""
    optimum, drawn = solve_queue(problem), draw_rounds(problem, ROUNDS, 21, seed)
    live = play(problem, drawn, method=method, seed=seed, looks=LOOKS)
    best = play(problem, drawn, policy=optimum.policy, seed=seed)
    least = play(problem, drawn, policy=GreedyPolicy(), seed=seed)
    looks = [judge(optimum, problem.limit, live.policies[number]) for number in LOOKS]
    return np.array(
        [
            *(entry for look in looks for entry in look),
            *(played.learning.mean() / problem.limit for played in (live, best, least)),
            *(played.privacy.mean() / optimum.cost for played in (live, best)),
        ]
    )


COLUMNS = (
    *(
        f"{what} after {number:,} rounds"
        for number in LOOKS
        for what in ("gap", "learning cost / limit of the policy")
    ),
    "realised learning cost / limit",
    "the same of the exact optimum",
    "the same of always learning",
    "realised privacy cost / optimal",
    "the same of the exact optimum",
)
REALISED = 2 * len(LOOKS)
PLAYERS = ("refreshed", "optimum", "always learning")


def measure_change(method: LiveMethod, seed: int) -> FloatArray:
    """Play the tracking problem through its change; return the entries of `CHANGE_COLUMNS`."""
    before, after = (load_queue(f"sound/tracking-{when}") for when in ("before", "after"))
    first = draw_rounds(before, CHANGE_AT, 22, seed)
    last = CHANGE_AT + RECOVERS_IN + JUDGED_FOR
    second = draw_rounds(after, last - CHANGE_AT, 23, seed)
    pairs = zip(vars(first).values(), vars(second).values(), strict=True)
    drawn = Experience(*(np.concatenate(pair) for pair in pairs))
    recovered = CHANGE_AT + RECOVERS_IN
    live = play(after, drawn, method=method, seed=seed, looks=(CHANGE_AT, recovered))
    fixed = play(after, drawn, policy=solve_queue(before).policy, seed=seed)
    known = play(after, drawn, policy=solve_queue(after).policy, seed=seed)
    optimum = solve_queue(after)
    stale, fresh = (judge(optimum, after.limit, live.policies[at]) for at in (CHANGE_AT, recovered))
    realised = (run.learning[recovered:].mean() / after.limit for run in (live, fixed, known))
    privacy = (run.privacy[recovered:].mean() / optimum.cost for run in (live, fixed, known))
    return np.array([stale[1], *fresh, *realised, *privacy])


CHANGE_COLUMNS = (
    "new learning cost / limit of the policy at the change",
    f"gap {RECOVERS_IN:,} rounds after the change",
    "learning cost / limit of that policy",
    f"realised learning cost / limit in the next {JUDGED_FOR:,} rounds",
    "the same of the optimum before the change",
    "the same of the optimum after the change",
    "realised privacy cost / optimal in these rounds",
    "the same of the optimum before the change",
    "the same of the optimum after the change",
)


def list_cases() -> dict[str, QueueProblem]:
    """Return the problems of the table."""
    return {
        "reference": make_queue(40),
        "paper-code/queue": load_queue("paper-code/queue"),
        "load 0.2": make_design_queue(),
        "sound/queue": load_queue("sound/queue"),
    }


def describe(values: FloatArray) -> list[str]:
    """Return mean (least to largest) over seeds of each column."""
    spans = zip(values.mean(axis=0), values.min(axis=0), values.max(axis=0), strict=True)
    return [f"{mean:.3f} ({least:.3f} to {most:.3f})" for mean, least, most in spans]


def render(columns: tuple[str, ...], cases: dict[str, FloatArray]) -> str:
    """Render a table with a line for each measured quantity and a column for each case."""
    entries = zip(*map(describe, cases.values()), strict=True)
    rows = [(name, *entry) for name, entry in zip(columns, entries, strict=True)]
    return render_table(("mean (least to largest) over seeds", *cases), rows)


def measure(method: LiveMethod, seeds: int) -> str:
    """Measure all problems with one method; return what was found as two tables."""
    found = {}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for name, problem in list_cases().items():
            started = time.perf_counter()
            each = pool.map(partial(measure_seed, problem, method), range(seeds))
            found[name] = np.array(list(each))
            print(name, *describe(found[name]), f"[{time.perf_counter() - started:.0f} s]")
            for who, shares in zip(PLAYERS, found[name][:, REALISED:].T, strict=False):
                print(f"  realised by seed, {who}:", *(f"{share:.3f}" for share in shares))
        changed = np.array(list(pool.map(partial(measure_change, method), range(seeds))))
    command = shlex.join(["python", "benchmarks/live_refresh.py", *sys.argv[1:]])
    made = (
        f'`live = "{method}"`, `refresh = {EVERY}`, {seeds} seeds, {ROUNDS:,} rounds. '
        f"{describe_date(command)} on {describe_machine()}."
    )
    change = render(CHANGE_COLUMNS, {"tracking": changed})
    return "\n\n".join((made, render(COLUMNS, found), change))


def main() -> None:
    """Measure one method and print its tables, and write them if asked."""
    parser = argparse.ArgumentParser(description="measure the refreshed policy")
    parser.add_argument("--method", choices=get_args(LiveMethod), default="exact")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--write", action="store_true", help="write the tables into docs/spga.md")
    asked = parser.parse_args()
    text = measure(asked.method, asked.seeds)
    print(text)
    if asked.write:
        write_block(DOCUMENTS / "spga.md", f"live {asked.method}", text)


if __name__ == "__main__":
    main()
