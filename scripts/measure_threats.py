"""Measure what every eavesdropper gets from the paper's scheme and its variants.

    python scripts/measure_threats.py [--seeds 10] [--out out/matrix] [--write]

trains every policy with every decoy, and exchangeable trajectories with replicas, on the toxicity
task, audits all runs, and with --write puts
the table and the heat map into docs/threat_model.md.  Finished runs in the folder are kept.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from covertfl.auditing.matrix import render_matrix, run_matrix
from covertfl.cli.results import find_matrix_rounds
from covertfl.display.tables import print_tables
from covertfl.files.atomic import write_atomically
from covertfl.runs.run_file import build_run

ROOT = Path(__file__).parent.parent
PAGE, PICTURE = ROOT / "docs" / "threat_model.md", ROOT / "docs" / "images" / "audit-matrix.png"
BEGIN, END = "<!-- matrix: begin -->", "<!-- matrix: end -->"
# The paper's federation; its decoys move in every obfuscating round.
CONTENT = {
    "task": "toxicity",
    "federation": {"participation": [5, 10, 20], "mark": 0.2},
    "decoy": {"gated": False},
}


def format_table(content: Mapping[str, Any]) -> str:
    """Return the shares of runs in which the true model is named, as a Markdown table."""
    names = [name for name in content["rows"][0]["eavesdroppers"] if name != "train-alone"]
    lines = ["| policy | decoy | learner | " + " | ".join(names) + " |"]
    lines.append("| --- | --- |" + " ---: |" * (1 + len(names)))
    for row in content["rows"]:
        shares = [row["eavesdroppers"][name]["names_true"] for name in names]
        cells = " | ".join("" if share is None else f"{share:.0%}" for share in shares)
        accuracy = row["learner"]["accuracy"]
        lines.append(f"| {row['policy']} | {row['decoy']} | {accuracy:.3f} | {cells} |")
    return "\n".join(lines)


def write_page(content: Mapping[str, Any], seeds: int, seconds: float) -> None:
    """Write the table between its marks in the page, and the heat map beside it."""
    made = (
        f"Made on {datetime.date.today().isoformat()} by `python scripts/measure_threats.py "
        f"--seeds {seeds} --write` in {seconds:.0f} s: toxicity, scenario 2, {seeds} seeds, decoys "
        "that move in every obfuscating round. Share of runs in which each eavesdropper names the "
        "true trajectory; a uniform guess has one half, and a quarter with K = 4."
    )
    text = PAGE.read_text("utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    write_atomically(PAGE, f"{before}{BEGIN}\n{made}\n\n{format_table(content)}\n{END}{after}")
    write_atomically(PICTURE, Path(content["picture"]).read_bytes())


def main() -> int:
    """Measure, print, and write if requested."""
    parser = argparse.ArgumentParser(description="measure what eavesdroppers get")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "matrix")
    parser.add_argument("--write", action="store_true", help="write docs/threat_model.md")
    asked = parser.parse_args()
    started = time.perf_counter()
    settings = build_run(CONTENT, "measure_threats.py", folder=Path())
    content = run_matrix(
        settings,
        asked.out,
        seeds=asked.seeds,
        replicas=find_matrix_rounds(settings.problem),
        on_progress=lambda detail, share: print(
            f"\r{share:4.0%} {detail:50}", end="", file=sys.stderr
        ),
    )
    print(file=sys.stderr)
    print_tables(render_matrix(content))
    if asked.write:
        write_page(content, asked.seeds, time.perf_counter() - started)
    return 0


if __name__ == "__main__":
    sys.exit(main())
