"""Measure whether a client can tell learning from obfuscating by time and form of its queries.

    python benchmarks/measure_timing.py [--rounds 200] [--adversarial 200] [--deployed 160]

runs covert federations, in this process and as processes on this machine.  One of the clients
records all it sees of a message except for the values of the weights: times, sizes, names, numbers.
Classifiers are trained on some of the rounds to predict the actions of the others.  Their held-out
AUC is compared with what they reach when the actions are permuted at random among the rounds, as by
guessing.  To measure their sensitivity, delays are then added to the times after every decoy's
query until the actions become visible.

The exit status is 1 if the actions are visible (p at most 0.01).  `make test-timing` runs this.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata
from section import DOCUMENTS, describe_date, read_lines, render_table, write_block
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold

from covertfl import Run
from covertfl.engines.flower.deployment.run import EAVESDROPPER, deploy
from covertfl.flower import CovertStrategy, InProcessGrid, make_client_app, make_eavesdropper_app

LEAST_P = 0.01
FOLDS = 5
# Delays that are tried, as shares of a round.
DELAYS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
# Rounds before and after a query whose times are features of it.
REACH = 2
CONTENT: dict[str, Any] = {
    "task": "digits",
    "data": {"model": "mlp"},
    # A client has time for between none and all of its batches, so about half of the rounds fail.
    "federation": {"participation": [1, 2, 4], "batch_size": 20, "min_share": 0.5},
    "oracle": {
        "transition": [[0.6, 0.4, 0.0], [0.3, 0.4, 0.3], [0.0, 0.4, 0.6]],
        "success": [0.2, 0.5, 0.9],
    },
    "cost": {"privacy": [1.8, 0.8, 0.3], "learning": {"shape": "quadratic", "scale": 0.6}},
    # Half of all queries are learning queries, placed at random whatever happens.  Then actions
    # can be permuted among rounds without changing their distribution, and the test is exact.
    "policy": {"kind": "random"},
    "decoy": {"kind": "public", "gated": True},
    "engine": {"kind": "flower"},
}
# The decoy whose work could depend most on what it is fed: it retrains itself to contradict the
# truth, on a public set that is large and unbalanced here.
ADVERSARIAL: dict[str, Any] = {
    "task": "toxicity",
    "data": {"public_size": 3.0, "public_positive_share": 0.3},
    "decoy": {"kind": "adversarial", "gated": True},
}
CLIENTS = 4
Matrix = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


def make_settings(
    rounds: int, seed: int, mode: str, changes: Mapping[str, Any] | None = None
) -> Any:
    """Return the settings of a run in which half of the rounds learn."""
    content: dict[str, Any] = {
        **CONTENT,
        **(changes or {}),
        "seed": seed,
        "federation": {**CONTENT["federation"], "clients": CLIENTS},
        "horizon": {"rounds": rounds, "updates": rounds // 2},
        "engine": {"kind": "flower", "mode": mode},
    }
    return Run(**content).settings


# --- federations ------------------------------------------------------------------------------


def run_here(out: Path, rounds: int, seed: int, changes: Mapping[str, Any] | None = None) -> None:
    """Run a federation in this process; client 0 eavesdrops."""
    settings = make_settings(rounds, seed, "in-process", changes)
    app = make_client_app(settings)
    spy = make_eavesdropper_app(app, out / EAVESDROPPER)
    grid = InProcessGrid(dict.fromkeys(range(CLIENTS), app) | {0: spy}, CLIENTS)
    CovertStrategy(run=settings, out=out, seed=seed).start(grid)


def run_deployed(out: Path, rounds: int, seed: int) -> None:
    """Run a federation of processes; its last node eavesdrops."""
    deploy(make_settings(rounds, seed, "deployment"), out, num_nodes=CLIENTS)


# --- what a client sees -----------------------------------------------------------------------


def read_sightings(run: Path, delay: float = 0.0) -> tuple[Matrix, Labels]:
    """Return what the eavesdropping client of a run saw of each query, and whether it was true.

    Parameters
    ----------
    delay : seconds that are added after every decoy's query, to measure the sensitivity

    Returns
    -------
    (n, f) features that vary, and (n,) labels, 1 where the round sent the true weights
    """
    seen = read_lines(run / EAVESDROPPER / "metadata.jsonl")
    sent = read_replies(run / EAVESDROPPER / "replies.jsonl")
    actions = {line["round"]: line["action"] for line in read_lines(run / "private/rounds.jsonl")}
    numbers = [find_round(entry) for entry in seen]
    learns = np.array([actions[number] == "learn" for number in numbers], dtype=np.int64)
    decoys = 1.0 - learns
    late: Matrix = np.asarray(delay * (np.cumsum(decoys) - decoys))
    table = make_features(seen, [sent.get(number, np.nan) for number in numbers], late)
    features = np.column_stack(list(table.values()))
    # Features that never change reveal nothing; that most never do is part of the outcome.
    return features[:, np.ptp(features, axis=0) > 0.0], learns


def read_replies(path: Path) -> dict[int, float]:
    """Return the times of the client's own replies, by round."""
    if not path.exists():
        return {}
    return {int(line["round"]): float(line["replied"]) for line in read_lines(path)}


def find_round(entry: Mapping[str, Any]) -> int:
    """Return the round that a message names."""
    [config] = entry["config"].values()
    return int(dict(config)["server-round"])


def make_features(
    seen: Sequence[Mapping[str, Any]], replied: Sequence[float], late: Matrix
) -> dict[str, Matrix]:
    """Return numbers that describe each message, its times and those of its neighbours, by name.

    Parameters
    ----------
    late : seconds to add to all times of a message
    """
    received = np.array([entry["received"] for entry in seen]) + late
    created = np.array([entry["metadata"]["created_at"] for entry in seen]) + late
    left = np.array(replied, dtype=np.float64) + late
    times = {
        "created gap": np.diff(created, prepend=created[0]),
        "received gap": np.diff(received, prepend=received[0]),
        "delivery": received - created,
    }
    if not np.isnan(left).any():
        times["own work"] = left - received
        times["idle before"] = received - np.concatenate([received[:1], left[:-1]])
        # From the last reply until the server created the next query.
        times["server"] = created - np.concatenate([created[:1], left[:-1]])
    table = {
        f"{name} {shift:+d}": shift_rows(values, shift)
        for name, values in times.items()
        for shift in range(-REACH, REACH + 1)
    }
    table |= {f"gap ratio {lag}": _compare(times["created gap"], lag) for lag in (1, 2)}
    number = np.arange(len(seen), dtype=np.float64)
    table |= {"number": number, "parity": number % 2, "third": number % 3}
    described = [describe(entry) for entry in seen]
    for name in sorted(set().union(*described)):
        table[name] = np.array([entry.get(name, -1.0) for entry in described])
    return table


def shift_rows(values: Matrix, shift: int) -> Matrix:
    """Return the values of a later or earlier round; at the ends, those of the outermost round."""
    places = np.clip(np.arange(len(values)) + shift, 0, len(values) - 1)
    return np.asarray(values[places])


def _compare(values: Matrix, lag: int) -> Matrix:
    """Return by how much the next value exceeds an earlier one."""
    return shift_rows(values, 1) - shift_rows(values, 1 - lag)


def describe(entry: Mapping[str, Any]) -> dict[str, float]:
    """Return all numbers of a message: of its metadata, keys, dtypes, shapes and sizes."""
    described = {"records": float(len(entry["records"]))}
    for name, value in entry["metadata"].items():
        if isinstance(value, bool) or value is None:
            continue
        if isinstance(value, str):
            described[f"length of {name}"] = float(len(value))
            with contextlib.suppress(ValueError):
                described[f"start of {name}"] = float(int(value[:4], 16))
        elif name not in ("created_at", "delivered_at"):
            described[name] = float(value)
    for record, arrays in entry["arrays"].items():
        described[f"arrays in {record}"] = float(len(arrays))
        for name, dtype, shape, _, size in arrays:
            described[f"size of {name}"] = float(size)
            described[f"bits of {name}"] = float(np.dtype(dtype).itemsize)
            described[f"shape of {name}"] = float(np.prod(shape))
    for record, config in entry["config"].items():
        described[f"keys in {record}"] = float(len(config))
        described[f"bytes of {record}"] = float(len(json.dumps(config)))
    return described


# --- classifiers ------------------------------------------------------------------------------


CLASSIFIERS: Mapping[str, Callable[[], Any]] = {
    "logistic regression": lambda: LogisticRegression(C=0.1, tol=1e-3),
    "boosted trees": lambda: GradientBoostingClassifier(
        n_estimators=12, learning_rate=0.3, max_depth=2, max_features="sqrt", random_state=0
    ),
}


@dataclass(frozen=True)
class Verdict:
    """How well the actions of a run can be predicted.

    Parameters
    ----------
    name : of the run
    rounds, learning : number of all rounds, and of those with the true weights
    features : number of features that vary
    auc : held out, by classifier
    guess : the larger AUC with actions permuted at random: median and 99th percentile
    p : probability of an AUC as large if the actions are not visible
    period : median seconds between two queries
    noticed : smallest delay after decoys' queries that is noticed, None if none of those tried
    """

    name: str
    rounds: int
    learning: int
    features: int
    auc: Mapping[str, float]
    guess: tuple[float, float]
    p: float
    period: float
    noticed: float | None

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the row of the table."""
        median, high = self.guess
        noticed = "none tried" if self.noticed is None else f"{self.noticed * 1e3:.0f} ms"
        return (
            f"{self.rounds} {self.name}",
            str(self.learning),
            str(self.features),
            *(f"{value:.3f}" for value in self.auc.values()),
            f"{median:.3f}, 99% below {high:.3f}",
            f"{self.p:.3f}",
            f"{noticed} of {self.period * 1e3:.0f} ms",
        )


def hold_out(features: Matrix, learns: Labels) -> dict[str, float]:
    """Return the AUC of each classifier on rounds that it was not trained on."""
    scores = {name: np.empty(len(learns)) for name in CLASSIFIERS}
    for known, held in StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(features, learns):
        for name, make in CLASSIFIERS.items():
            fitted = make().fit(features[known], learns[known])
            scores[name][held] = fitted.predict_proba(features[held])[:, 1]
    return {name: float(roc_auc_score(learns, told)) for name, told in scores.items()}


def rank(features: Matrix) -> Matrix:
    """Return centred and scaled ranks: one late message must not outweigh all others."""
    ranks = rankdata(features, axis=0)
    return np.asarray((ranks - ranks.mean(axis=0)) / ranks.std(axis=0))


def judge(name: str, run: Path, permutations: int) -> Verdict:
    """Compare the better classifier with the better one on permuted actions."""
    seen, learns = read_sightings(run)
    features = rank(seen)
    auc = hold_out(features, learns)
    generator = np.random.default_rng(0)
    permuted = [generator.permutation(learns) for _ in range(permutations)]
    with ProcessPoolExecutor() as pool:
        found = list(pool.map(functools.partial(hold_out, features), permuted, chunksize=10))
    guesses = np.array([max(guess.values()) for guess in found])
    high = float(np.quantile(guesses, 1.0 - LEAST_P))
    received = [entry["received"] for entry in read_lines(run / EAVESDROPPER / "metadata.jsonl")]
    period = float(np.median(np.diff(received)))
    return Verdict(
        name,
        len(learns),
        int(learns.sum()),
        features.shape[1],
        auc,
        (float(np.median(guesses)), high),
        (1 + int((guesses >= max(auc.values())).sum())) / (1 + permutations),
        period,
        find_noticed(run, period, high),
    )


def find_noticed(run: Path, period: float, high: float) -> float | None:
    """Return the smallest delay, in seconds, with which a classifier beats nearly all guesses.

    Parameters
    ----------
    high : AUC that nearly all guesses stay below
    """
    for share in DELAYS:
        later, learns = read_sightings(run, share * period)
        if max(hold_out(rank(later), learns).values()) > high:
            return share * period
    return None


# --- measurement --------------------------------------------------------------------------------


def measure(asked: argparse.Namespace) -> list[Verdict]:
    """Run and judge the federations that were asked for."""
    adversarial = functools.partial(run_here, changes=ADVERSARIAL)
    verdicts = []
    for name, rounds, run in (
        ("in process", asked.rounds, run_here),
        ("in process, decoy adversarial", asked.adversarial, adversarial),
        ("in a deployment", asked.deployed, run_deployed),
    ):
        if rounds:
            out = asked.out / name.replace(",", "").replace(" ", "-")
            shutil.rmtree(out, ignore_errors=True)
            run(out, rounds, asked.seed)
            verdicts.append(judge(name, out, asked.permutations))
    return verdicts


def main() -> int:
    """Measure and print; write if asked to."""
    parser = argparse.ArgumentParser(
        description="predict actions from what a client sees of rounds"
    )
    parser.add_argument("--rounds", type=int, default=200, help="in this process")
    parser.add_argument("--adversarial", type=int, default=200, help="rounds with that decoy")
    parser.add_argument("--deployed", type=int, default=160, help="rounds of a deployment")
    parser.add_argument("--permutations", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=DOCUMENTS.parent / "out" / "timing")
    parser.add_argument("--write", action="store_true", help="write docs/threat_model.md")
    asked = parser.parse_args()
    started = time.perf_counter()
    verdicts = measure(asked)
    columns = ("rounds", "learning", "features that vary", *CLASSIFIERS, "a guess", "p",
               "delay that would show")  # fmt: skip
    table = render_table(columns, [verdict.cells for verdict in verdicts])
    print(table)
    if asked.write:
        made = (
            f"{describe_date('python benchmarks/measure_timing.py --write')} (`make test-timing` "
            f"is the same without writing) in {time.perf_counter() - started:.0f} s, "
            f"{asked.permutations} permutations, {FOLDS}-fold cross-validation."
        )
        write_block(DOCUMENTS / "threat_model.md", "timing", f"{made}\n\n{table}")
    visible = [verdict for verdict in verdicts if verdict.p <= LEAST_P]
    for verdict in visible:
        print(f"{verdict.name}: the actions are visible (p = {verdict.p:.3f})", file=sys.stderr)
    return int(bool(visible))


if __name__ == "__main__":
    sys.exit(main())
