"""Carry out docs/walkthrough.md in an empty folder, as a newcomer would, and check what comes out.

    python scripts/newcomer.py [--keep FOLDER]

Blocks after a comment `<!-- file: NAME -->` are written to that file; blocks of shell commands are
run, in the order of the page.  Its chapters do not depend on one another, and are carried out
side by side.  Exit status 1, with the output, if a command fails or leaves
something else than the page promises.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "walkthrough.md"
BLOCK = re.compile(
    r"(?:<!-- file: (?P<file>[\w.]+) -->\n)?```(?P<kind>\w+)\n(?P<text>.*?)```\n", re.DOTALL
)


class Step(NamedTuple):
    """A file to write, or a command to run."""

    file: str | None
    text: str


class Failed(Exception):
    """A step of the page does not do what the page says."""


def read_steps(chapter: str) -> Iterator[Step]:
    """Yield the files and commands of a chapter, in order."""
    for block in BLOCK.finditer(chapter):
        if block["file"] is not None:
            yield Step(block["file"], block["text"])
        elif block["kind"] == "sh":
            for line in block["text"].splitlines():
                yield Step(None, line)


def carry_out(chapter: str, folder: Path) -> None:
    """Write the files and run the commands of a chapter, with this Python first on the path."""
    scripts = str(Path(sys.executable).parent)
    path = os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)])
    # Small models: threads of PyTorch would only wait for each other.
    environment = {**os.environ, "PATH": path, "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
    for step in read_steps(chapter):
        if step.file is not None:
            (folder / step.file).write_text(step.text, "utf-8")
            continue
        started = time.perf_counter()
        done = subprocess.run(
            step.text, shell=True, cwd=folder, env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise Failed(f"$ {step.text}\n{done.stdout}{done.stderr}exit status {done.returncode}")
        print(f"{time.perf_counter() - started:5.1f} s  {step.text}", flush=True)


def check(folder: Path) -> None:
    """Raise Failed unless the files are there and hold what the page promises."""
    rows = list(csv.DictReader((folder / "scored.csv").open(encoding="utf-8")))
    if not rows or list(rows[0]) != ["id", "comment", "label", "score"]:
        raise Failed(f"scored.csv has the columns {list(rows[0]) if rows else []}")
    rude = {row["label"] == "rude" for row in rows if "idiot" in row["comment"]}
    fine = {row["label"] == "fine" for row in rows if "thank you" in row["comment"]}
    if rude != {True} or fine != {True}:
        raise Failed("the classifier confuses rude comments with kind ones")
    for run in ("comments", "queue", "flower"):
        summary = json.loads((folder / "runs" / run / "summary.json").read_text("utf-8"))
        if summary["learner_accuracy"] < 0.7:
            raise Failed(f"runs/{run}: the learner's accuracy is {summary['learner_accuracy']}")
    for name in ("rude.md", "runs/queue/report.html", "planes.safetensors"):
        if not (folder / name).is_file():
            raise Failed(f"{name} is missing")


def main() -> int:
    """Carry out the page; return the exit status."""
    parser = argparse.ArgumentParser(description="carry out docs/walkthrough.md")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="a new folder that is left")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="covertfl-newcomer-") as scratch:
        folder = asked.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=asked.keep is None)
        try:
            chapters = PAGE.read_text("utf-8").split("\n## ")
            with ThreadPoolExecutor(3) as pool:
                list(pool.map(carry_out, chapters, itertools.repeat(folder)))
            check(folder)
        except Failed as failed:
            print(f"newcomer: {failed}", file=sys.stderr)
            return 1
    print("the page does what it says")
    return 0


if __name__ == "__main__":
    sys.exit(main())
