"""Measure what every eavesdropper gets from the paper's scheme and its variants.

    python benchmarks/measure_threats.py [--seeds 10] [--out out/matrix] [--write]

trains every policy with every decoy, and exchangeable trajectories with replicas, on the toxicity
task, and audits all runs (`covertfl audit --matrix`); with --write the table and the heat map go
into docs/threat_model.md.  Finished runs in the folder are kept.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from section import DOCUMENTS, describe_date, render_table, write_block

# The paper's federation; its decoys move in every obfuscating round.
RUN = """
task = "toxicity"

[federation]
participation = [5, 10, 20]
mark = 0.2

[decoy]
gated = false
"""


def make_table(content: Mapping[str, Any]) -> str:
    """Return the shares of runs in which the true model is named, as a Markdown table."""
    names = [name for name in content["rows"][0]["eavesdroppers"] if name != "train-alone"]
    rows = []
    for row in content["rows"]:
        shares = [row["eavesdroppers"][name]["names_true"] for name in names]
        cells = ["" if share is None else f"{share:.0%}" for share in shares]
        rows.append([row["policy"], row["decoy"], f"{row['learner']['accuracy']:.3f}", *cells])
    return render_table(["policy", "decoy", "learner", *names], rows, left=2)


def main() -> None:
    """Measure, print, and write if requested."""
    parser = argparse.ArgumentParser(description="measure what eavesdroppers get")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=DOCUMENTS.parent / "out" / "matrix")
    parser.add_argument("--write", action="store_true", help="write docs/threat_model.md")
    asked = parser.parse_args()
    started = time.perf_counter()
    asked.out.mkdir(parents=True, exist_ok=True)
    file = asked.out / "matrix.toml"
    file.write_text(RUN, "utf-8")
    options = ["--matrix", file, "--out", asked.out, "--seeds", asked.seeds, "--json"]
    command = [sys.executable, "-m", "covertfl", "audit", *map(str, options)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    content = json.loads(done.stdout)
    table = make_table(content)
    print(table)
    if asked.write:
        made = describe_date(f"python benchmarks/measure_threats.py --seeds {asked.seeds} --write")
        made = (
            f"{made} in {time.perf_counter() - started:.0f} s: toxicity, scenario 2, {asked.seeds} "
            "seeds, decoys that move in every obfuscating round. Share of runs in which each "
            "eavesdropper names the true trajectory; a uniform guess has one half, and a quarter "
            "with K = 4."
        )
        write_block(DOCUMENTS / "threat_model.md", "matrix", f"{made}\n\n{table}")
        shutil.copyfile(content["picture"], DOCUMENTS / "images" / "audit-matrix.png")


if __name__ == "__main__":
    main()
