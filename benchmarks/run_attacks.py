"""Run the attacks of tests/test_attacks_*.py with many seeds and print a table of what they got.

    python benchmarks/run_attacks.py [--seeds 300] [--jobs 1] [--write] [WORD...]

Each file is one attack; words choose those whose names contain one of them.  A statistical attack
notes how often it was right (`tests/support/attacks.py: require_guess`).  --write puts the table,
with the date, into docs/threat_model.md.  Exit status 1 if an attack succeeds.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from section import DOCUMENTS, describe_date, describe_share, write_block

ROOT = DOCUMENTS.parent
OPEN = "open: "  # begins the name of a share that is recorded and not asserted


@dataclass(frozen=True)
class Outcome:
    """What one attack got: tests that withstood it, and shares of right guesses with their runs."""

    title: str
    passed: int
    failed: int
    skipped: int
    shares: tuple[tuple[str, float, int], ...]

    @property
    def row(self) -> str:
        """Return the row of a Markdown table."""
        state = "fails" if self.failed == 0 else f"SUCCEEDS ({self.failed} tests)"
        if self.failed == 0 and any(what.startswith(OPEN) for what, _, _ in self.shares):
            state = "fails but where marked as open"
        left_out = f", {self.skipped} left out" if self.skipped else ""
        shares = "; ".join(
            f"{what}: {describe_share(share, runs, 0.999, 0)} of {runs}"
            for what, share, runs in self.shares
        )
        return f"| {self.title} | {state} | {self.passed}{left_out} | {shares} |"


def run_attack(file: Path, seeds: int) -> Outcome:
    """Run the tests of one attack, slow and deployed ones included."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = ["-q", "-m", "", "-p", "no:cacheprovider", "-o", "junit_family=xunit1"]
        options.append(f"--junitxml={report}")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, str(file)],
            cwd=ROOT,
            env={**os.environ, "COVERTFL_ATTACK_SEEDS": str(seeds)},
            capture_output=True,
            text=True,
            check=False,
        )
        if not report.exists():
            raise SystemExit(f"{file.name} could not be run:\n{done.stdout[-2000:]}")
        cases = list(ElementTree.parse(report).iter("testcase"))
    if done.returncode not in (0, 1):
        raise SystemExit(f"{file.name} could not be run:\n{done.stdout[-2000:]}")
    failed = sum(
        any(case.find(kind) is not None for kind in ("failure", "error")) for case in cases
    )
    skipped = sum(case.find("skipped") is not None for case in cases)
    shares = [
        (str(noted.get("name")), *parse_share(str(noted.get("value"))))
        for case in cases
        for noted in case.iter("property")
    ]
    return Outcome(find_title(file), len(cases) - failed - skipped, failed, skipped, tuple(shares))


def parse_share(text: str) -> tuple[float, int]:
    """Return the share and the number of runs that `require_guess` wrote."""
    right, _, runs = text.partition(" of ")
    return float(right) / int(runs), int(runs)


def find_title(file: Path) -> str:
    """Return the first sentence of a test file's docstring."""
    described = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or file.stem
    return described.partition("\n")[0].rstrip(".")


def make_table(outcomes: Sequence[Outcome]) -> str:
    """Return a Markdown table with one row for each attack."""
    head = "| attack | outcome | tests | right guesses |\n| --- | --- | ---: | --- |"
    return "\n".join([head, *(outcome.row for outcome in outcomes)])


def main() -> int:
    """Run the attacks and print, or write, the table."""
    parser = argparse.ArgumentParser(description="run the attacks with many seeds")
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=1, help="files at a time")
    parser.add_argument("--write", action="store_true", help="write docs/threat_model.md")
    asked = parser.parse_args()
    files = [
        file
        for file in sorted((ROOT / "tests").glob("test_attacks_*.py"))
        if not asked.words or any(word in file.stem for word in asked.words)
    ]
    outcomes = []
    with ThreadPoolExecutor(asked.jobs) as pool:
        for outcome in pool.map(lambda file: run_attack(file, asked.seeds), files):
            outcomes.append(outcome)
            print(outcome.row, file=sys.stderr, flush=True)
    print(make_table(outcomes))
    if asked.write:
        made = (
            f"{describe_date('make attack')}, {asked.seeds} seeds where an attack is statistical "
            "(share of right guesses with 99.9% interval)."
        )
        write_block(DOCUMENTS / "threat_model.md", "attacks", f"{made}\n\n{make_table(outcomes)}")
    return int(any(outcome.failed for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
