"""Inject known bugs, one at a time, and list those that the tests do not notice.

    python scripts/mutants.py                 # all of them; `make mutants` does the same
    python scripts/mutants.py fedsgd sign     # those whose name contains one of the words

Each entry of `known_bugs.MUTANTS` replaces a text that must occur exactly once in its file.  The
bug is put into a copy of the sources, and the tests that should fail are run on the copy; they must
pass on the unchanged sources.  Exit status 1 if a bug survives, 2 if an entry does not fit the code
any more.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from known_bugs import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 600  # seconds; a bug that makes the tests hang is noticed, too
PASSED, FAILED = 0, 1  # of pytest's exit statuses


def run_tests(tests: list[str], sources: Path) -> int | None:
    """Run tests on sources; return pytest's exit status, None if they take too long."""
    path = os.pathsep.join(filter(None, [str(sources), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    command += ["-m", "not deployment", *tests]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            timeout=LONGEST,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return done.returncode


def try_mutant(mutant: Mutant, sources: Path) -> str:
    """Inject a bug into a copy of the sources and return what became of it."""
    file = sources / "covertfl" / mutant.file
    before = file.read_bytes()
    file.write_text(mutant.inject(sources / "covertfl"))
    try:
        status = run_tests(mutant.tests.split(), sources)
    finally:
        file.write_bytes(before)
    if status in (FAILED, None):
        return "noticed"
    return "SURVIVED" if status == PASSED else f"not tested: pytest ended with status {status}"


def main(words: list[str]) -> int:
    """Try the mutants whose names contain one of the words, all without words."""
    chosen = [m for m in MUTANTS if not words or any(word in m.name for word in words)]
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "src"
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / "src", sources, ignore=ignored)
        for mutant in chosen:
            try:
                mutant.inject(sources / "covertfl")
            except ValueError as error:
                print(error, file=sys.stderr)
                return 2
        used = sorted({test for mutant in chosen for test in mutant.tests.split()})
        if run_tests(used, sources) != PASSED:
            print(f"these tests must pass first: {' '.join(used)}", file=sys.stderr)
            return 2
        outcomes = {}
        for mutant in chosen:
            outcomes[mutant] = try_mutant(mutant, sources)
            print(f"{outcomes[mutant]:9} {mutant.name} ({mutant.file})", flush=True)
    left = [mutant for mutant, outcome in outcomes.items() if outcome != "noticed"]
    print(f"{len(chosen) - len(left)} of {len(chosen)} bugs noticed")
    for mutant in left:
        print(f"no test of {mutant.tests} fails with {mutant.name}: {mutant.mutated}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
