"""The main experiment on toxicity, all seeds, policies and scenarios in one call."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from measurement import measure_peak_memory
from simulator_process import ANSWER

from covertfl.runs.run_file import build_run
from covertfl.runs.settings import RunSettings
from covertfl.training import train_all

POLICIES = ("greedy", "optimal")
POSITIVE_SHARES = (0.0, 0.1)


def list_runs(seeds: int, folder: Path) -> list[tuple[RunSettings, Path]]:
    """Settings and folder of every run."""
    runs = []
    for share in POSITIVE_SHARES:
        for policy in POLICIES:
            content = {
                "task": "toxicity",
                "data": {"public_positive_share": share},
                "policy": {"kind": policy},
            }
            settings = build_run(content, "benchmark", folder=folder)
            place = folder / f"{policy}-{share:g}"
            runs += [(settings.with_seed(seed), place / f"seed-{seed}") for seed in range(seeds)]
    return runs


def main() -> None:
    """Time it once."""
    parser = argparse.ArgumentParser(description="train all runs of the main experiment")
    parser.add_argument("seeds", type=int)
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    started = time.perf_counter()
    summaries = train_all(list_runs(asked.seeds, asked.folder))
    answer = {
        "seconds": [time.perf_counter() - started],
        "memory": measure_peak_memory(),
        "rounds": sum(summary.rounds for summary in summaries),
    }
    (asked.folder / ANSWER).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
