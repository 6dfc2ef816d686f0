"""Run the attacks of tests/attacks/ with many seeds and print a table of what they got.

    python benchmarks/run_attacks.py [--seeds 300] [--write] [WORD...]

Each file has the attacks that an attacker in one place can make, one for each heading in it; words
choose files whose names contain one of them.  A statistical attack notes how often it was right
(`tests/support/attacks.py: require_guess`).  --write puts the table, with the date, into
docs/threat_model.md; with words into a block of their name.  Exit status 1 if an attack succeeds.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

from section import DOCUMENTS, describe_date, describe_share, render_table, write_block

ROOT = DOCUMENTS.parent
HEADING = re.compile("# --- (.*?) -{8,}$")
OPEN = "open: "  # begins the name of a share that is recorded and not asserted


Case = ElementTree.Element  # a test and how it ended


def run_file(file: Path, seeds: int) -> dict[str, list[Case]]:
    """Run the tests of one file, slow and deployed ones included; return them by attack."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = ["-q", "-m", "", "-p", "no:cacheprovider", "-o", "junit_family=xunit1"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, f"--junitxml={report}", str(file)],
            cwd=ROOT,
            env={**os.environ, "COVERTFL_ATTACK_SEEDS": str(seeds)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode not in (0, 1) or not report.exists():
            raise SystemExit(f"{file.name} could not be run:\n{done.stdout[-2000:]}")
        cases = list(ElementTree.parse(report).iter("testcase"))
    attacks = find_attacks(file.read_text("utf-8"))
    found: dict[str, list[Case]] = {title: [] for title in attacks}
    for case in cases:
        line = int(case.get("line", 0))
        found[[title for title, start in attacks.items() if start <= line][-1]].append(case)
    return found


def find_attacks(text: str) -> dict[str, int]:
    """Return the headings of a file and their lines; the docstring's sentence if there is none."""
    found = {
        heading[1].strip(): number
        for number, line in enumerate(text.splitlines())
        if (heading := HEADING.match(line))
    }
    title = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0].rstrip(".")
    if not found:
        return {title: 0}
    place = title.partition(":")[0].partition(",")[0]
    return {f"{place}: {heading}": number for heading, number in found.items()}


def describe_attack(title: str, cases: Sequence[Case]) -> list[str]:
    """Return a row of the table: the outcome, tests, and shares of right guesses."""
    failed = sum(bool({part.tag for part in case} & {"failure", "error"}) for case in cases)
    skipped = sum(case.find("skipped") is not None for case in cases)
    noted = {
        str(note.get("name")): str(note.get("value"))
        for case in cases
        for note in case.iter("property")
    }
    shares = []
    for what, value in noted.items():
        right, _, runs = value.partition(" of ")
        share = describe_share(float(right) / int(runs), int(runs), 0.999, 0)
        shares.append(f"{what}: {share} of {runs}")
    state = "fails" if failed == 0 else f"SUCCEEDS ({failed} tests)"
    if failed == 0 and any(what.startswith(OPEN) for what in noted):
        state = "fails but where marked as open"
    tests = f"{len(cases) - failed - skipped}{f', {skipped} left out' if skipped else ''}"
    return [title, state, tests, "; ".join(shares)]


def write_table(table: str, words: Sequence[str], seeds: int) -> None:
    """Write the table of all attacks, or of those that words choose, into its block."""
    command = "make attack" if not words else f"python benchmarks/run_attacks.py {' '.join(words)}"
    made = (
        f"{describe_date(command)}, {seeds} seeds where an attack is statistical "
        "(share of right guesses with 99.9% interval)."
    )
    name = " ".join(("attacks", *words))
    write_block(DOCUMENTS / "threat_model.md", name, f"{made}\n\n{table}")


def main() -> int:
    """Run the attacks and print, or write, the table."""
    parser = argparse.ArgumentParser(description="run the attacks with many seeds")
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--write", action="store_true", help="write docs/threat_model.md")
    asked = parser.parse_args()
    rows = []
    for file in sorted((ROOT / "tests" / "attacks").glob("test_*.py")):
        if not asked.words or any(word in file.stem for word in asked.words):
            for title, cases in run_file(file, asked.seeds).items():
                rows.append(describe_attack(title, cases))
                print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    table = render_table(("attack", "outcome", "tests", "right guesses"), rows, left=2)
    print(table)
    if asked.write:
        write_table(table, asked.words, asked.seeds)
    return int(any(row[1].startswith("SUCCEEDS") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
