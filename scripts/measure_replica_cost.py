"""Measure what a round with exchangeable replicas costs beside one with the truth alone.

    python scripts/measure_replica_cost.py [--only toxicity|1e5|1e7] [--repeats 3]

compares runs that always send the true weights with exchangeable ones at K = 2 and 4: the toxicity
task in the simulator, and perceptrons over Flower's messages in one process, averaged as the
simulator does (built-in) or by a wrapped FedAvg.  Clients on Flower make one pass over 400
examples.  Each run has a process of its own, in turn.

Prints a Markdown table.  A generation of K rounds ends with more work than the others, so that each
figure is the median over blocks of K rounds of the mean in a block.  Clients do the same work with
all schemes; `more` compares what is left, server and engine, as a share of the whole round of the
true weights alone.  Records, checkpoint and the work of a decoy are given apart.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from flower_process import CHECKPOINT, CLIENTS, DECOY, OWN, RECORDS, WRAPPED, Stopwatch  # noqa: E402
from measurement import format_seconds  # noqa: E402

from covertfl.kernels.mlp import MlpKernel  # noqa: E402
from covertfl.runs.folder import RunFolder  # noqa: E402
from covertfl.runs.run_file import build_run  # noqa: E402
from covertfl.training import train  # noqa: E402

Rounds = Sequence[Mapping[str, float]]

SCHEMES = ("alone", "replicas-2", "replicas-4")
TARGET = 0.03
# Parameters, clients and rounds.
FLOWER = {"1e5": (100_000, 10, 26), "1e7": (10_000_000, 4, 10)}
SIMULATED_ROUNDS = 62
WARM_UP = 2
PROCESS = ROOT / "benchmarks" / "flower_process.py"


def simulate(scheme: str) -> Rounds:
    """Run the toxicity task in this process and return the seconds of each round by part."""
    policy, updates = {"kind": "always-learn"}, SIMULATED_ROUNDS
    if scheme != "alone":
        trajectories = int(scheme.partition("-")[2])
        policy = {"kind": "exchangeable", "trajectories": trajectories}  # type: ignore[dict-item]
        updates //= trajectories
    run = build_run(
        {
            "task": "toxicity",
            "rounds": SIMULATED_ROUNDS,
            "updates": updates,
            "data": {"map": "public"},
            "policy": policy,
        },
        "run",
        folder=Path(),
    )
    watch = Stopwatch()
    watch.watch(MlpKernel, "run", CLIENTS)
    for method in ("write_weights", "append"):
        watch.watch(RunFolder, method, RECORDS)
    watch.watch(RunFolder, "seal", CHECKPOINT)
    with tempfile.TemporaryDirectory(prefix="covertfl-replicas-") as folder:
        train(run, Path(folder) / "run", on_round=lambda _: watch.end_round())
    return watch.rounds[WARM_UP:]


def call(*arguments: object) -> Rounds:
    """Run a process that prints the seconds of each round by part, as JSON."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, check=True
    )
    answer: Any = json.loads(done.stdout.splitlines()[-1])
    return answer["rounds"]  # type: ignore[no-any-return]


def run_scheme(place: str, scheme: str, *, is_wrapped: bool) -> Rounds:
    """Run one scheme in a process of its own."""
    if place == "toxicity":
        return call(__file__, "--simulate", scheme)
    with tempfile.TemporaryDirectory(prefix="covertfl-replicas-") as folder:
        options = () if is_wrapped else ("--built-in",)
        parameters, clients, rounds = FLOWER[place]
        return call(PROCESS, scheme, "training", parameters, clients, rounds, folder, *options)


def find_typical(runs: Sequence[Rounds], block: int, *parts: str) -> float:
    """Return the median over blocks of rounds of the mean seconds of some parts in a block."""
    blocks = [
        statistics.fmean(
            sum(seconds.get(part, 0.0) for part in parts)
            for seconds in rounds[start : start + block]
        )
        for rounds in runs
        for start in range(0, len(rounds) - block + 1, block)
    ]
    return statistics.median(blocks)


def measure(place: str, repeats: int, *, is_wrapped: bool) -> list[str]:
    """Return the rows of a place: one for each scheme."""
    found: dict[str, list[Rounds]] = {scheme: [] for scheme in SCHEMES}
    for _ in range(repeats):
        for scheme, runs in found.items():
            started = time.perf_counter()
            runs.append(run_scheme(place, scheme, is_wrapped=is_wrapped))
            print(place, scheme, f"{time.perf_counter() - started:.0f} s", file=sys.stderr)
    server = (WRAPPED, *OWN)
    alone = {
        block: [
            find_typical(found["alone"], block, *parts) for parts in (server, (CLIENTS, *server))
        ]
        for block in (1, 2, 4)
    }
    rows = []
    for scheme, runs in found.items():
        block = int(scheme.partition("-")[2] or 1)
        before, whole = alone[block]
        more = (find_typical(runs, block, *server) - before) / whole
        cells = [
            place if place == "toxicity" else f"Flower, {place}",
            ("FedAvg" if is_wrapped else "built-in") if place != "toxicity" else "simulator",
            scheme,
            *(
                format_seconds(find_typical(runs, block, *parts))
                for parts in ((CLIENTS, *server), server, (RECORDS,), (CHECKPOINT,), (DECOY,))
            ),
            "" if scheme == "alone" else f"{more:+.1%}{'' if more <= TARGET else ' (missed)'}",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description="measure the cost of exchangeable replicas")
    parser.add_argument("--only", choices=("toxicity", *FLOWER))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--simulate", choices=SCHEMES, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.simulate:
        print(json.dumps({"rounds": simulate(asked.simulate)}))
        return
    print("| task | server | scheme | round | of it server | records | checkpoint | decoy | more |")
    print("| --- | --- | --- |" + " ---: |" * 6)
    for place in [asked.only] if asked.only else ("toxicity", *FLOWER):
        for is_wrapped in (False,) if place == "toxicity" else (False, True):
            print("\n".join(measure(place, asked.repeats, is_wrapped=is_wrapped)), flush=True)


if __name__ == "__main__":
    main()
