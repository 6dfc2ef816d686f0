"""Measure exchangeable replicas: exactness, accuracy, and what trained eavesdroppers get by tier.

    python benchmarks/measure_exchangeable.py accuracy  [--runs 50]
    python benchmarks/measure_exchangeable.py exactness [--runs 200]
    python benchmarks/measure_exchangeable.py tiers     [--runs 200]

`accuracy` trains the toxicity task with K = 2 in 136 rounds, both scenarios, beside the same
learner without secrecy.  `exactness` counts how often every eavesdropper that owns no data names
the truth, over trained runs with K = 2 and 4.  `tiers` lets classifiers learn from other runs of
the same federation with the answers given, and tries them on runs that they have not seen.

--write puts the tables into docs/exchangeable.md.  Runs are divided among processes, one per core.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from section import DOCUMENTS, describe_date, describe_share, render_table, write_block
from sklearn.metrics import roc_auc_score

from covertfl import Run
from covertfl.auditing.baselines import fit_logistic
from covertfl.auditing.overheard import find_truth
from covertfl.auditing.run import LoadedRun, find_all
from covertfl.auditing.simulated import simulate
from covertfl.eavesdroppers.registry import EAVESDROPPERS
from covertfl.eavesdroppers.trained import (
    collect_figures,
    list_sources,
    make_relative,
    train_scorer,
)
from covertfl.files.text import parse_toml
from covertfl.runs.records import MemoryRecords
from covertfl.runs.round import run_rounds
from covertfl.runs.settings import RunSettings, build_run, format_run
from covertfl.runs.simulated import run_together
from covertfl.runs.state import Federation, RunState, start_run
from covertfl.runs.train import KernelCache, build_federation, find_task
from covertfl.schemes.flips import write_secret

ROUNDS = {2: 115, 4: 204}  # for 95% of runs to finish 16 updates
FOLDS = 5  # of cross-validation over runs
BATCH = 5  # runs that a process simulates side by side
# Two federations: one that asks all of its 20 clients, and one that asks 30 of 100.
FEDERATIONS = {
    "20 clients, always asked": (20, 20),
    "100 clients, asked in 30% of rounds": (100, 30),
}
SCENARIOS = {"no positives": 0.0, "10% positives": 0.1}
Result = dict[str, Any]
# Finds something in each of some runs, by their seeds.
Look = Callable[[RunSettings, Sequence[int]], list[Result]]


def make_settings(**changes: Any) -> RunSettings:
    """Return the settings of a toxicity run, scenario 1, K = 2."""
    content: dict[str, Any] = {
        "rounds": 136,
        "data": {"public_positive_share": 0.0},
        "scheme": "exchangeable",
    }
    for key, value in changes.items():
        content[key] = {**content.get(key, {}), **value} if isinstance(value, dict) else value
    return Run("toxicity", **content).settings


def share_out(look: Look, settings: RunSettings, runs: int) -> list[Result]:
    """Return what is found in all runs, seeds 0, 1, ..., a few at a time in each process."""
    parts = [range(start, min(start + BATCH, runs)) for start in range(0, runs, BATCH)]
    context = multiprocessing.get_context("spawn")
    text = format_run(settings, {})
    with ProcessPoolExecutor(mp_context=context, initializer=use_one_core) as pool:
        found = pool.map(functools.partial(look_from_text, look, text), parts)
        return list(itertools.chain.from_iterable(found))


def look_from_text(look: Look, text: str, seeds: Sequence[int]) -> list[Result]:
    """Return what is found in runs of a run file's text, which processes can be handed."""
    return look(build_run(parse_toml(text, "run"), "run", folder=Path()), seeds)


def use_one_core() -> None:
    """Keep a process on one core: kernels start as many threads as they may use cores."""
    cores = sorted(os.sched_getaffinity(0))
    number = int(multiprocessing.current_process().name.rpartition("-")[2])
    os.sched_setaffinity(0, {cores[number % len(cores)]})


# --- accuracy -------------------------------------------------------------------------------------


def rank(outputs: Any, labels: Any) -> tuple[float, float]:
    """Return the AUC of outputs, and the accuracy of the best threshold or its reverse."""
    positive = labels == 1.0
    count = int(positive.sum())
    ordered = positive[np.argsort(outputs)]
    below = np.concatenate([[0], np.cumsum(~ordered)])
    above = count - np.concatenate([[0], np.cumsum(ordered)])
    right = (below + above) / len(labels)
    return float(roc_auc_score(positive, outputs)), float(max(right.max(), 1.0 - right.min()))


def measure_accuracy(settings: RunSettings, seeds: Sequence[int]) -> list[Result]:
    """Train runs and return how good learner and decoys are, beside learners without secrecy."""
    kernels = KernelCache()
    others = {
        name: settings.with_scheme(
            "scheduled", {"policy": {"kind": policy}, "decoy": {"kind": "mirrored"}}
        )
        for name, policy in (("plain", "greedy"), ("always", "always-learn"))
    }
    results = []
    for seed in seeds:
        federations = {
            "replica": build_federation(settings.with_seed(seed), kernels),
            **{
                name: build_federation(other.with_seed(seed), kernels)
                for name, other in others.items()
            },
        }
        finals = dict(zip(federations, run_finals(list(federations.values())), strict=True))
        run = federations["replica"]
        validation, public = run.task.validation, run.task.public
        decoys = []
        for decoy in run.scheme.models(finals["replica"].scheme)[1:]:
            outputs = run.kernel.predict(decoy, validation.features)[:, 0]
            decoys.append([run.validation.score(decoy), *rank(outputs, validation.labels)])
        results.append(
            {
                **{name: state.scores[0] for name, state in finals.items()},
                "updates": finals["replica"].updates,
                "decoys": decoys,
                "alone": fit_logistic(public, validation, seed=seed),
            }
        )
    return results


def run_finals(federations: Sequence[Federation]) -> list[RunState]:
    """Run federations in memory and return their final states."""
    return run_together(
        [(each, run_rounds(each, MemoryRecords(), start_run(each))) for each in federations]
    )


def measure_accuracies(runs: int) -> str:
    """Return the table of both scenarios."""
    rows = []
    for name, share in SCENARIOS.items():
        settings = make_settings(data={"public_positive_share": share})
        found = share_out(measure_accuracy, settings, runs)
        cells = [
            *([run[key] for run in found] for key in ("replica", "plain", "always")),
            *([decoy[place] for run in found for decoy in run["decoys"]] for place in range(3)),
            [run["alone"] for run in found],
        ]
        rows.append(
            [name, *(f"{np.mean(cell):.3f} ± {np.std(cell, ddof=1):.3f}" for cell in cells)]
        )
        finished = np.mean([run["updates"] == 16 for run in found])
        rows.append(["", f"{finished:.0%} of runs finished", *[""] * 6])
    columns = (
        "public set",
        "learner",
        "without secrecy, 16 updates",
        "always learning, 136 rounds",
        "decoy",
        "its ranking (AUC)",
        "best threshold",
        "logistic fit on the public set",
    )
    return render_table(columns, rows)


# --- who names the truth --------------------------------------------------------------------------


def look_at_runs(settings: RunSettings, seeds: Sequence[int]) -> list[Result]:
    """Simulate runs of one federation and return who names the truth, and the figures."""
    kernels = KernelCache()
    # One more, so that each has another run of the federation beside it.
    chosen = [settings.with_seed(1 + seed) for seed in (*seeds, seeds[-1] + 1_000_000)]
    runs = simulate([build_federation(each, kernels) for each in chosen])
    # With a mark all tiers are measured, else listeners alone.
    tiers = "ABC" if settings.sections.federation.mark else "A"
    return [
        look_at_run(run.with_means(other_run=other.queries), tiers)
        for run, other in itertools.pairwise(runs)
    ]


def look_at_run(run: LoadedRun, tiers: str) -> Result:
    """Return who names the truth, the figures for classifiers, and the scores of both models."""
    truth, _ = find_truth(run.queries, run.private)
    [true] = [number for number, is_true in truth.items() if is_true]
    wanted = [name for name, kind in EAVESDROPPERS.items() if kind.tier in tiers]  # type: ignore[attr-defined]
    found = find_all(run, truth, names=wanted, by_round=False)
    names, figures = collect_figures(list_sources(tiers), run.means, run.queries)
    validation = run.validation
    assert validation is not None
    return {
        "named": {name: finding.named for name, finding in found.items()},
        "names": list(names),
        "figures": figures.tolist(),
        "true": true,
        "scores": [validation.score(find_last(run, one)) for one in (true, 1 - min(true, 1))],
    }


def find_last(run: LoadedRun, trajectory: int) -> Any:
    """Return the last weights of a trajectory."""
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


def summarise_runs(found: Sequence[Result], tiers: str) -> Result:
    """Return who named the truth in how many runs, and what classifiers make of the figures."""
    names = found[0]["named"]
    return {
        "runs": len(found),
        "named": {name: float(np.mean([run["named"][name] for run in found])) for name in names},
        "trained": {
            tiers[:count]: name_by_training(found, tiers[:count])
            for count in range(1, 1 + len(tiers))
        },
        "true": float(np.mean([run["scores"][0] for run in found])),
        "decoy": float(np.mean([run["scores"][1] for run in found])),
    }


def measure_exactness(runs: int) -> str:
    """Return the table of listeners, by number of trajectories."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for trajectories, rounds in ROUNDS.items():
            settings = make_settings(rounds=rounds, exchangeable={"trajectories": trajectories})
            shared = with_secret(settings, Path(folder))
            found[trajectories] = summarise_runs(share_out(look_at_runs, shared, runs), "A")
    rows = {
        **{
            f"`{name}`": [one["named"][name] for one in found.values()]
            for name in found[2]["named"]
        },
        "`trained-listener`, answers given": [one["trained"]["A"] for one in found.values()],
    }
    table = render_table(
        ["eavesdropper", *(f"K = {trajectories}" for trajectories in found)],
        [[name, *(describe_share(share, runs, 0.99) for share in shares)]
         for name, shares in rows.items()],
    )  # fmt: skip
    return (
        f"Trained runs, {runs} for each column (16 updates, 115 and 204 rounds, one federation "
        f"with its secret), share named with 99% intervals:\n\n{table}"
    )


def measure_tiers(runs: int) -> str:
    """Return the table of trained eavesdroppers, by federation and by what they hold."""
    rows = []
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
            found = summarise_runs(share_out(look_at_runs, shared, runs), "ABC")
            shares = [describe_share(share, runs) for share in found["trained"].values()]
            scores = f"{found['true']:.3f} / {found['decoy']:.3f}"
            rows.append([name, scores, *shares, f"{found['named']['mark']:.0%}"])
    columns = (
        "federation",
        "true / decoy accuracy",
        "A listener",
        "B public set",
        "C client",
        "mark alone",
    )
    return render_table(columns, rows, left=2)


# What is measured, by name, and in how many runs.
MEASURES: dict[str, tuple[Callable[[int], str], int]] = {
    "accuracy": (measure_accuracies, 50),
    "exactness": (measure_exactness, 200),
    "tiers": (measure_tiers, 200),
}


def main() -> None:
    """Measure, print, and write if requested."""
    parser = argparse.ArgumentParser(description="measure exchangeable replicas")
    parser.add_argument("what", choices=MEASURES)
    parser.add_argument("--runs", type=int)
    parser.add_argument("--write", action="store_true", help="write docs/exchangeable.md")
    asked = parser.parse_args()
    measure, runs = MEASURES[asked.what]
    started = time.perf_counter()
    text = measure(asked.runs or runs)
    print(text)
    if asked.write:
        made = (
            f"{describe_date(f'python benchmarks/measure_exchangeable.py {asked.what}')} in "
            f"{time.perf_counter() - started:.0f} s with {os.cpu_count()} processes."
        )
        write_block(DOCUMENTS / "exchangeable.md", asked.what, f"{made}\n\n{text}")


if __name__ == "__main__":
    main()
