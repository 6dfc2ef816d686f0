"""Inject bugs, one at a time, and list those that the tests do not notice.

    python scripts/mutants.py known                 # those of known_bugs.py; `make mutants` does it
    python scripts/mutants.py known fedsgd sign     # whose name contains one of the words
    python scripts/mutants.py draw 200 --seed 1 > bugs.jsonl
    python scripts/mutants.py random bugs.jsonl results.jsonl --coverage .coverage --durations log
    python scripts/mutants.py share results.jsonl

A bug is put into a copy of the working tree, and tests are run there.  A known bug replaces a text
that must occur exactly once in its file, and names its tests; they must pass without it.  The exit
status is 1 if a known bug survives, 2 if an entry does not fit the code any more.

A random bug is a change of `random_bugs.py`; `covering_tests.py` chooses among the fast tests and
says how what they execute is recorded.  Bugs whose statement is not in the sources are left out, so
the same file serves two versions; those in the results already are not tried again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from forked_tests import Tests
from known_bugs import MUTANTS, Mutant
from random_bugs import Change, Site, draw, find_again, find_sites

ROOT = Path(__file__).resolve().parent.parent
PASSED, FAILED, INTERRUPTED, NONE_FOUND = 0, 1, 2, 5  # of pytest's exit statuses
FIRST_FILES = 8  # most bugs are noticed by these, and the others need not be imported
NEEDS_GPU = r"kernels/cnn/gpu"


def try_known(mutant: Mutant, tests: Tests) -> str:
    """Inject a known bug and return what became of it."""
    with tests.changed(mutant.find(tests.root), mutant.inject(tests.root).encode()):
        status = tests.run(["-m", "not deployment", *mutant.tests.split()])["status"]
    if status == FAILED or status < 0:  # a bug that makes the tests hang is noticed, too
        return "noticed"
    return "SURVIVED" if status == PASSED else f"not tested: pytest ended with status {status}"


def try_all_known(words: list[str]) -> int:
    """Try the known bugs whose names contain one of the words, all without words."""
    chosen = [m for m in MUTANTS if not words or any(word in m.name for word in words)]
    for mutant in chosen:
        try:
            mutant.inject(ROOT)
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2
    outcomes = {}
    with Tests(ROOT) as tests:
        used = sorted({test for mutant in chosen for test in mutant.tests.split()})
        if tests.run(["-m", "not deployment", *used])["status"] != PASSED:
            print(f"these tests must pass first: {' '.join(used)}", file=sys.stderr)
            return 2
        for mutant in chosen:
            outcomes[mutant] = try_known(mutant, tests)
            print(f"{outcomes[mutant]:9} {mutant.name} ({mutant.file})", flush=True)
    left = [mutant for mutant, outcome in outcomes.items() if outcome != "noticed"]
    print(f"{len(chosen) - len(left)} of {len(chosen)} bugs noticed")
    for mutant in left:
        print(f"no test of {mutant.tests} fails with {mutant.name}: {mutant.mutated}")
    return 1 if left else 0


def try_random(
    site: Site, chosen: dict[str, float], tests: Tests, earlier: str | None = None
) -> dict[str, Any]:
    """Inject a random bug, run the chosen tests, and return what became of it.

    The file that noticed it earlier, if it is among theirs, comes first and alone.
    """
    files = list(dict.fromkeys(test.partition("::")[0] for test in chosen))
    first = [file for file in files if file == (earlier or "").partition("::")[0]]
    files = [file for file in files if file not in first]
    outcome: dict[str, Any] = {"noticed": False, "tests": len(chosen), "seconds": 0.0}
    with tests.changed(tests.package / site.file, site.inject(tests.package)):
        for batch in (first, files[:FIRST_FILES], files[FIRST_FILES:]):
            part = {name: chosen[name] for name in chosen if name.partition("::")[0] in batch}
            if not part:
                continue
            answer = tests.run(batch, part)
            outcome["seconds"] += answer["seconds"]
            status = answer["status"]
            if status in (FAILED, INTERRUPTED) or status < 0:
                return {**outcome, "noticed": True, "by": answer["test"], "status": status}
            if status not in (PASSED, NONE_FOUND):
                raise RuntimeError(f"pytest ended with status {status}: {site}")
    return outcome


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines; a file that is not there has none."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def name_bug(bug: dict[str, Any]) -> tuple[str, Change]:
    """Return the file and the change that a line of JSON stands for."""
    return bug["file"], Change(**{field: bug[field] for field in Change._fields})


def try_all_random(options: argparse.Namespace) -> int:
    """Try the bugs of a file that have no result yet, as many at a time as there are workers."""
    from covering_tests import Covering

    package = options.root / "src" / "covertfl"
    sites: dict[Change, list[Site]] = {}
    for site in find_sites(package):
        sites.setdefault(site.key, []).append(site)
    pairs = [(bug, find_again(name_bug(bug), sites)) for bug in read_lines(options.bugs)]
    there = [(bug, site) for bug, site in pairs if site is not None][: options.number]
    done = {name_bug(result) for result in read_lines(options.results)}
    waiting = [(bug, site) for bug, site in there if name_bug(bug) not in done]
    print(f"{len(there)} bugs, {len(there) - len(waiting)} tried before", flush=True)
    covering = Covering(package, options.coverage, options.durations)
    work = [(bug, site, covering.choose(site)) for bug, site in waiting]
    work.reverse()
    earlier = {name_bug(result): result.get("by") for result in read_lines(options.earlier)}

    def keep_trying() -> None:
        with Tests(options.root) as tests:
            while work:
                bug, site, chosen = work.pop()
                result = {**bug, "at": f"{site.file}:{site.lines[0]}"}
                result |= try_random(site, chosen, tests, earlier.get(name_bug(bug)))
                with options.results.open("a") as file:
                    file.write(json.dumps(result) + "\n")
                noticed = "noticed " if result["noticed"] else "SURVIVED"
                print(
                    f"{noticed} {result['at']} {site.key.change} ({result['seconds']:.1f} s)",
                    flush=True,
                )

    workers = [threading.Thread(target=keep_trying) for _ in range(options.workers)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return print_share(read_lines(options.results))


def print_share(results: list[dict[str, Any]]) -> int:
    """Print the share of noticed bugs with its 95% interval of Wilson."""
    n, noticed, z = len(results), sum(result["noticed"] for result in results), 1.959964
    share = noticed / n
    centre, spread = (
        share + z * z / (2 * n),
        z * math.sqrt(share * (1 - share) / n + (z / n / 2) ** 2),
    )
    low, high = ((centre + sign * spread) / (1 + z * z / n) for sign in (-1, 1))
    print(f"{noticed} of {n} bugs noticed: {share:.1%} (95% interval {low:.1%} to {high:.1%})")
    missed = Counter(
        result["file"].partition("/")[0] for result in results if not result["noticed"]
    )
    for package, number in missed.most_common():
        print(f"  {number} not noticed in {package}")
    return 0


def print_draw(options: argparse.Namespace) -> int:
    """Print drawn bugs, a line of JSON each."""
    left_out = re.compile("|".join([NEEDS_GPU, *options.without]))
    sites = find_sites(options.root / "src" / "covertfl")
    kept = [s for s in sites if not left_out.search(f"{s.file}: {s.key.scope}: {s.key.statement}")]
    for site in draw(kept, options.number, options.seed):
        print(json.dumps({"file": site.file, **site.key._asdict()}))
    return 0


def main() -> int:
    """Carry out the command of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    known = commands.add_parser("known")
    known.add_argument("words", nargs="*")
    drawn = commands.add_parser("draw")
    drawn.add_argument("number", type=int)
    drawn.add_argument("--seed", type=int, required=True)
    drawn.add_argument(
        "--without", action="append", default=[], help="no bug that fits this pattern"
    )
    tried = commands.add_parser("random")
    tried.add_argument("bugs", type=Path)
    tried.add_argument("results", type=Path)
    tried.add_argument("--coverage", type=Path, required=True)
    tried.add_argument("--durations", type=Path, required=True)
    tried.add_argument("--number", type=int, help="the first so many that are in the sources")
    tried.add_argument(
        "--earlier", type=Path, default=Path(os.devnull), help="results for another version"
    )
    tried.add_argument("--workers", type=int, default=1)
    for command in (drawn, tried):
        command.add_argument("--root", type=Path, default=ROOT, help="another working tree")
    commands.add_parser("share").add_argument("results", type=Path)
    options = parser.parse_args()
    if options.command == "known":
        return try_all_known(options.words)
    if options.command == "draw":
        return print_draw(options)
    return (
        try_all_random(options)
        if options.command == "random"
        else print_share(read_lines(options.results))
    )


if __name__ == "__main__":
    sys.exit(main())
