"""Measure exchangeable replicas: exactness, accuracy, and what trained eavesdroppers get by tier.

    python benchmarks/measure_exchangeable.py accuracy  [--runs 50]
    python benchmarks/measure_exchangeable.py exactness [--runs 200]
    python benchmarks/measure_exchangeable.py tiers     [--runs 200]

`accuracy` trains the toxicity task with K = 2 in 136 rounds, both scenarios, beside the same
learner without secrecy.  `exactness` counts how often every eavesdropper that owns no data names
the truth, over 2,000 schedules and over trained runs with K = 2 and 4.  `tiers` lets classifiers
learn from other runs of the same federation with the answers given, and tries them on runs that
they have not seen.

--write puts the tables into docs/exchangeable.md; --keep FILE keeps the results as JSON, and --read
FILE prints or writes those of an earlier call.  Runs are divided among processes, one per core.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import itertools
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from replica_accuracy import measure_accuracy, report_accuracy

from covertfl.auditing.overheard import find_truth
from covertfl.auditing.run import LoadedRun, find_all
from covertfl.auditing.simulated import simulate
from covertfl.eavesdroppers.eavesdropper import Means, Scheme, SeenQuery
from covertfl.eavesdroppers.registry import EAVESDROPPERS
from covertfl.eavesdroppers.trained import (
    collect_figures,
    list_sources,
    make_relative,
    train_scorer,
)
from covertfl.files.atomic import write_atomically
from covertfl.intervals import wilson_interval
from covertfl.runs.build import KernelCache, build_federation
from covertfl.runs.decoys import write_secret
from covertfl.runs.generations import Generation
from covertfl.runs.policy import ConstantPolicy
from covertfl.runs.run_file import build_run
from covertfl.runs.settings import RunSettings
from covertfl.runs.task import find_task

PAGE = Path(__file__).parent.parent / "docs" / "exchangeable.md"
ROUNDS = {2: 115, 4: 204}  # for 95% of runs to finish 16 updates
SCHEDULES = 2000
FOLDS = 5  # of cross-validation over runs
BATCH = 5  # runs that a process simulates side by side
# Two federations: one that asks all of its 20 clients, and one that asks 30 of 100.
FEDERATIONS = {
    "20 clients, always asked": (20, 20),
    "100 clients, asked in 30% of rounds": (100, 30),
}
BY_SCHEDULE = ("majority", "minority", "likelihood", "early-stop", "change-point", "repeat")
Result = dict[str, Any]


def make_settings(seed: int = 0, **changes: Any) -> RunSettings:
    """Return the settings of a toxicity run, scenario 1, K = 2."""
    content: dict[str, Any] = {
        "task": "toxicity",
        "seed": seed,
        "rounds": 136,
        "data": {"public_positive_share": 0.0},
        "policy": {"kind": "exchangeable"},
    }
    for key, value in changes.items():
        content[key] = {**content.get(key, {}), **value} if isinstance(value, dict) else value
    return build_run(content, "measure_exchangeable.py", folder=Path())


def share_out(
    work: Callable[[RunSettings, Sequence[int]], list[Any]],
    settings: RunSettings,
    runs: int,
    workers: int,
    what: str,
) -> list[Any]:
    """Return what `work` finds in all runs, seeds 0, 1, ..., a few at a time in each process."""
    parts = [range(start, min(start + BATCH, runs)) for start in range(0, runs, BATCH)]
    context = multiprocessing.get_context("spawn")
    found: list[Any] = []
    with ProcessPoolExecutor(workers, context, initializer=use_one_core) as pool:
        for done, part in enumerate(pool.map(functools.partial(work, settings), parts), start=1):
            found += part
            print(f"\r{what}: {done * BATCH} of {runs} runs", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def use_one_core() -> None:
    """Keep a process on one core: kernels start as many threads as they may use cores."""
    cores = sorted(os.sched_getaffinity(0))
    number = int(multiprocessing.current_process().name.rpartition("-")[2])
    os.sched_setaffinity(0, {cores[number % len(cores)]})


# --- exactness ------------------------------------------------------------------------------------


def draw_schedule(
    settings: RunSettings, trajectories: int, rounds: int, seed: int
) -> tuple[list[SeenQuery], int]:
    """Draw the queries of a run without training it, and the number of the true trajectory.

    Weights are numbers that tell trajectory and generation apart; a slot is numbered by its first
    query.
    """
    oracle, generator = settings.problem.oracle, np.random.default_rng(seed)
    state, generation, choice = int(generator.integers(3)), Generation(), seed % trajectories
    seen: dict[int, int] = {}
    last: dict[int, int] = {}
    queries = []
    for number in range(1, rounds + 1):
        generation = generation.enter(max(16 - generation.number, 0))
        slot = generation.find_slot(trajectories, seed=seed)
        place = seen.setdefault(slot, len(seen))
        shown = min(generation.number, 15)
        moved = None if slot not in last else float(last[slot] != shown)
        last[slot] = shown
        queries.append(SeenQuery(number, place, np.array([slot, shown], np.float32), moved))
        if generator.random() < oracle.success[state]:
            done = generation.place + 1
            generation = (
                generation.leave()
                if done == trajectories
                else Generation(generation.number, done, generation.is_owed)
            )
        state = int(generator.choice(3, p=oracle.transition[state]))
    return queries, seen.get(choice, 0)


def measure_schedules(trajectories: int) -> dict[str, float]:
    """Return by eavesdropper in which share of many schedules it names the truth, ties shared."""
    settings = make_settings()
    policy = ConstantPolicy(1.0 / trajectories)
    scheme = Scheme(settings.problem, policy, exchangeable=True)
    named: dict[str, list[float]] = {name: [] for name in BY_SCHEDULE}
    for seed in range(SCHEDULES):
        queries, true = draw_schedule(settings, trajectories, ROUNDS[trajectories], seed)
        for name in BY_SCHEDULE:
            eavesdropper = EAVESDROPPERS[name](Means(scheme=scheme, trajectories=trajectories))
            for query in queries:
                eavesdropper.observe(query)
            belief = eavesdropper.belief()
            best = np.flatnonzero(belief >= belief.max() * (1.0 - 1e-12))
            named[name].append(float(true in best) / len(best))
    return {name: float(np.mean(shares)) for name, shares in named.items()}


def look_at_runs(settings: RunSettings, seeds: Sequence[int]) -> list[Result]:
    """Simulate runs of one federation and return who names the truth, and the figures."""
    kernels = KernelCache()
    # One more, so that each has another run of the federation beside it.
    chosen = [settings.with_seed(1 + seed) for seed in (*seeds, seeds[-1] + 1_000_000)]
    runs = simulate([build_federation(each, kernels) for each in chosen])
    tiers = settings_tiers(settings)
    return [
        look_at_run(run.with_means(other_run=other.queries), tiers)
        for run, other in itertools.pairwise(runs)
    ]


def settings_tiers(settings: RunSettings) -> str:
    """Return the tiers that are measured: with a mark all of them, else listeners alone."""
    return "ABC" if settings.sections.federation.mark else "A"


def look_at_run(run: LoadedRun, tiers: str) -> Result:
    truth, misplaced = find_truth(run.queries, run.private)
    [true] = [number for number, is_true in truth.items() if is_true]
    wanted = [name for name, kind in EAVESDROPPERS.items() if kind.tier in tiers]  # type: ignore[attr-defined]
    found = find_all(run, truth, names=wanted, by_round=False)
    names, figures = collect_figures(list_sources(tiers), run.means, run.queries)
    clients: Any = run.clients
    return {
        "named": {name: finding.named for name, finding in found.items()},
        "names": list(names),
        "figures": figures.tolist(),
        "true": true,
        "misplaced": misplaced,
        "scores": [clients.score(find_last(run, number)) for number in (true, 1 - min(true, 1))],
    }


def find_last(run: LoadedRun, trajectory: int) -> Any:
    return [query.weights for query in run.queries if query.trajectory == trajectory][-1]


def name_by_training(runs: Sequence[Result], tiers: str) -> float:
    """Return the share of runs that a classifier names, chosen and trained on other runs."""
    sources = list_sources(tiers)
    names = runs[0]["names"]
    columns = [place for place, name in enumerate(names) if name.partition(":")[0] in sources]
    figures = np.array([run["figures"] for run in runs])[:, :, columns]
    truth = np.array([run["true"] for run in runs])
    relative, named = make_relative(figures), 0.0
    for fold in range(FOLDS):
        is_left = np.arange(len(runs)) % FOLDS == fold
        scores = train_scorer(figures[~is_left], truth[~is_left])(relative[is_left])
        is_best = scores == scores.max(axis=1, keepdims=True)
        right = is_best[np.arange(len(scores)), truth[is_left]] / is_best.sum(axis=1)
        named += float(right.sum())
    return named / len(runs)


def with_secret(settings: RunSettings, folder: Path) -> RunSettings:
    """Return settings whose runs share clients and flips, as those of one federation do."""
    content = settings.sections
    data = content.data.model_copy(update={"seed": 0})
    fixed = content.model_copy(update={"data": data})
    path = folder / f"{content.federation.clients}.json"
    if not path.exists():
        base = make_settings(data={"seed": 0}, federation={"clients": content.federation.clients})
        write_secret(path, find_task(base))
    federation = fixed.federation.model_copy(update={"secret": str(path)})
    return replace(settings, sections=fixed.model_copy(update={"federation": federation}))


def measure_exactness(runs: int, workers: int) -> Result:
    results: Result = {"schedules": {}, "runs": {}}
    for trajectories in ROUNDS:
        print(f"schedules, K = {trajectories}", file=sys.stderr)
        results["schedules"][str(trajectories)] = measure_schedules(trajectories)
    with tempfile.TemporaryDirectory() as folder:
        for trajectories, rounds in ROUNDS.items():
            settings = make_settings(rounds=rounds, policy={"trajectories": trajectories})
            shared, what = with_secret(settings, Path(folder)), f"K = {trajectories}"
            found = share_out(look_at_runs, shared, runs, workers, what)
            results["runs"][str(trajectories)] = summarise_runs(found, "A")
            print(json.dumps(results["runs"][str(trajectories)]), file=sys.stderr)
    return results


def summarise_runs(found: Sequence[Result], tiers: str) -> Result:
    """Return who named the truth in how many runs, and what classifiers make of the figures."""
    names = found[0]["named"]
    return {
        "runs": len(found),
        "misplaced": sum(run["misplaced"] for run in found),
        "named": {name: float(np.mean([run["named"][name] for run in found])) for name in names},
        "trained": {
            tiers[:count]: name_by_training(found, tiers[:count])
            for count in range(1, 1 + len(tiers))
        },
        "true": float(np.mean([run["scores"][0] for run in found])),
        "decoy": float(np.mean([run["scores"][1] for run in found])),
    }


def interval_text(share: float, runs: int, confidence: float = 0.95) -> str:
    low, high = wilson_interval(share * runs, runs, confidence=confidence)
    return f"{share:.1%} [{low:.1%}, {high:.1%}]"


def report_exactness(results: Result) -> str:
    lines = [
        f"Schedules without training, {SCHEDULES:,} each, share named with 99% intervals:",
        "",
        "| eavesdropper | K = 2 | K = 4 |",
        "| --- | ---: | ---: |",
    ]
    for name in BY_SCHEDULE:
        cells = [
            interval_text(results["schedules"][key][name], SCHEDULES, 0.99) for key in ("2", "4")
        ]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    runs = results["runs"]
    count = next(iter(runs.values()))["runs"]
    lines += [
        "",
        f"Trained runs, {count} for each column (16 updates, 115 and 204 rounds, one federation "
        "with its secret), share named with 99% intervals:",
        "",
        "| eavesdropper | " + " | ".join(f"K = {key}" for key in runs) + " |",
        "| --- |" + " ---: |" * len(runs),
    ]
    names = list(next(iter(runs.values()))["named"])
    for name in names:
        cells = [interval_text(one["named"][name], one["runs"], 0.99) for one in runs.values()]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    cells = [interval_text(one["trained"]["A"], one["runs"], 0.99) for one in runs.values()]
    lines.append(f"| `trained-listener`, answers given | {' | '.join(cells)} |")
    return "\n".join(lines)


# --- tiers ----------------------------------------------------------------------------------------


def measure_tiers(runs: int, workers: int) -> Result:
    results: Result = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (clients, asked) in FEDERATIONS.items():
            settings = make_settings(
                rounds=34,
                federation={
                    "clients": clients,
                    "participation": [asked],
                    "acceptance": "model",
                    "mark": 0.2,
                },
                oracle={"transition": [[1.0]], "success": [1.0]},
                cost={"privacy": [1.0], "learning": {"shape": "quadratic", "scale": 0.6}},
                horizon={"rounds": 34, "updates": 16},
            )
            shared = with_secret(settings, Path(folder))
            results[name] = summarise_runs(
                share_out(look_at_runs, shared, runs, workers, name), "ABC"
            )
    return results


def report_tiers(results: Result) -> str:
    lines = [
        "| federation | true / decoy accuracy | A listener | B public set | C client | "
        "mark alone |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for name, found in results.items():
        shares = [
            interval_text(found["trained"][tiers], found["runs"]) for tiers in ("A", "AB", "ABC")
        ]
        lines.append(
            f"| {name} | {found['true']:.3f} / {found['decoy']:.3f} | {' | '.join(shares)} | "
            f"{found['named']['mark']:.0%} |"
        )
    return "\n".join(lines)


# --- the command ----------------------------------------------------------------------------------


def write_block(mark: str, text: str) -> None:
    """Replace what is between two marks of the page."""
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    page = PAGE.read_text("utf-8")
    before, rest = page.split(begin)
    write_atomically(PAGE, f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}")


def measure(asked: argparse.Namespace) -> Result:
    """Carry out the measurement that was asked for."""
    if asked.what == "accuracy":
        return {
            name: share_out(
                measure_accuracy,
                make_settings(data={"public_positive_share": share}),
                asked.runs or 50,
                asked.workers,
                name,
            )
            for name, share in (("no positives", 0.0), ("10% positives", 0.1))
        }
    if asked.what == "exactness":
        return measure_exactness(asked.runs or 200, asked.workers)
    return measure_tiers(asked.runs or 200, asked.workers)


def main() -> int:
    """Measure, print, and write if requested."""
    parser = argparse.ArgumentParser(description="measure exchangeable replicas")
    parser.add_argument("what", choices=("accuracy", "exactness", "tiers"))
    parser.add_argument("--runs", type=int)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--keep", type=Path, help="keep the results as JSON")
    parser.add_argument("--read", type=Path, help="results of an earlier call")
    parser.add_argument("--write", action="store_true", help="write docs/exchangeable.md")
    asked = parser.parse_args()
    started = time.perf_counter()
    if asked.read is not None:
        content = json.loads(asked.read.read_text())
    else:
        content = {"results": measure(asked), "date": datetime.date.today().isoformat()}
        content["seconds"] = round(time.perf_counter() - started)
        content["workers"] = asked.workers
    if asked.keep is not None:
        write_atomically(asked.keep, json.dumps(content))
    report = {"accuracy": report_accuracy, "exactness": report_exactness, "tiers": report_tiers}
    text = report[asked.what](content["results"])
    print(text)
    if asked.write:
        made = (
            f"Made on {content['date']} by `python benchmarks/measure_exchangeable.py "
            f"{asked.what}` in {content['seconds']} s with {content['workers']} processes."
        )
        write_block(asked.what, f"{made}\n\n{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
