"""Choose the tests that could notice a change: those that execute its line.

What the fast tests execute comes from

    python -m pytest -n 2 --dist loadfile --cov=src --cov-context=test --cov-report= \
        --durations=0 > durations

The rule, in this order; the first that finds a test is applied:

1. tests that execute a line of the statement, if it is in the body of a function;
2. tests that execute a line of the function that the statement is in;
3. for a name assigned in a module or a class: tests that execute a line on which the name occurs;
4. tests that execute a line of the class that the statement is in;
5. tests that execute a line of its module, or a line on which a name defined there occurs.

For modules that numba compiles, only the last rule is applied: their lines are not recorded.

A line that the set-up of a test executes counts for all tests of its file, because fixtures are
shared.  If fewer than ten tests are found, all tests of their files are added, because a cache
hides which other tests depend on a line.  Of all these, the shortest tests run, as many as take at
most `SECONDS` together.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import coverage
from random_bugs import Site

SECONDS = 60.0
FEW = 10
SHORT = 0.003  # seconds; pytest hides what takes less than 0.005
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Covering:
    """Knows which tests execute which lines, and how long they take."""

    def __init__(self, package: Path, data: Path, durations: Path) -> None:
        self.package = package
        self._data = coverage.CoverageData(str(data))
        self._data.read()
        self._measured = {
            name.partition("/src/covertfl/")[2]: name for name in self._data.measured_files()
        }
        self._lines: dict[str, dict[int, set[str]]] = {}
        self._seconds: dict[str, float] = {}
        for line in durations.read_text().splitlines():
            if match := re.match(r"\s*([\d.]+)s (?:call|setup|teardown)\s+(.*)", line):
                name = match[2].strip()
                self._seconds[name] = self._seconds.get(name, 0.0) + float(match[1])
        self._files: dict[str, set[str]] = {}
        for context in self._data.measured_contexts():
            if context:
                test = context.rpartition("|")[0]
                self._files.setdefault(test.partition("::")[0], set()).add(test)

    def choose(self, site: Site) -> dict[str, float]:
        """Return the tests to run for a change with their seconds, the files in order."""
        found: set[str] = set()
        for find in self._rules(site):
            if found := find():
                break
        if 0 < len(found) < FEW:
            found = set().union(*(self._files[test.partition("::")[0]] for test in found))
        cost = {test: max(SHORT, self._seconds.get(test, 0.0)) for test in found}
        total = 0.0
        chosen: dict[str, float] = {}
        for test in sorted(cost, key=lambda test: (cost[test], test)):
            total += cost[test]
            if total > SECONDS and chosen:
                break
            chosen[test] = cost[test]
        return _in_order(chosen, Path(site.file).stem)

    def _rules(self, site: Site) -> Iterator[Callable[[], set[str]]]:
        content = (self.package / site.file).read_bytes()
        tree = ast.parse(content)
        scopes = dict(_list_scopes(tree, ""))
        if b"import numba" not in content:
            yield from self._near(site, tree, scopes)
        defined = {name for name in scopes if "." not in name}
        everything = range(1, 1 + content.count(b"\n"))
        yield lambda: self._executing(site.file, everything) | self._mentioning(defined)

    def _near(
        self, site: Site, tree: ast.AST, scopes: dict[str, Scope]
    ) -> Iterator[Callable[[], set[str]]]:
        first, last = site.lines
        yield lambda: self._executing(site.file, range(first, last + 1))
        names = site.key.scope.split(".")
        around = [scopes.get(".".join(names[:depth])) for depth in range(len(names), 0, -1)]
        if around[0] is None or isinstance(around[0], ast.ClassDef):
            yield lambda: self._mentioning(_list_assigned(tree, first))
        for scope in filter(None, around):
            lines = range(scope.lineno, (scope.end_lineno or scope.lineno) + 1)
            yield partial(self._executing, site.file, lines)

    def _read(self, file: str) -> dict[int, set[str]]:
        """Return the tests that execute each line in a function of a file."""
        if file not in self._lines:
            lines: dict[int, set[str]] = {}
            measured = self._measured.get(file)
            bodies = _list_body_lines(ast.parse((self.package / file).read_bytes()))
            contexts_of = self._data.contexts_by_lineno(measured) if measured else {}
            for number in bodies & contexts_of.keys():
                tests = lines.setdefault(number, set())
                for context in contexts_of[number]:
                    test, _, phase = context.rpartition("|")
                    if phase == "setup":
                        tests |= self._files[test.partition("::")[0]]
                    elif test:
                        tests.add(test)
            self._lines[file] = lines
        return self._lines[file]

    def _executing(self, file: str, numbers: range) -> set[str]:
        return set().union(*(tests for n, tests in self._read(file).items() if n in numbers))

    def _mentioning(self, names: set[str]) -> set[str]:
        if not names:
            return set()
        pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(names)))})\b")
        found: set[str] = set()
        for file in self.package.rglob("*.py"):
            lines = None
            for number, line in enumerate(file.read_text().splitlines(), 1):
                if pattern.search(line):
                    lines = lines or self._read(file.relative_to(self.package).as_posix())
                    found |= lines.get(number, set())
        return found


def _list_scopes(node: ast.AST, scope: str) -> Iterator[tuple[str, Scope]]:
    for child in ast.iter_child_nodes(node):
        inner = scope
        if isinstance(child, Scope):
            inner = f"{scope}.{child.name}".lstrip(".")
            yield inner, child
        yield from _list_scopes(child, inner)


def _list_body_lines(tree: ast.AST) -> set[int]:
    """Return the lines of functions' bodies: others are executed by whoever imports the module."""
    lines: set[int] = set()
    for _, scope in _list_scopes(tree, ""):
        if not isinstance(scope, ast.ClassDef):
            lines |= set(range(scope.body[0].lineno, (scope.end_lineno or 0) + 1))
    return lines


def _list_assigned(tree: ast.AST, line: int) -> set[str]:
    """Return the names that the assignment on a line assigns."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.lineno == line:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    return names


def _in_order(chosen: dict[str, float], module: str) -> dict[str, float]:
    """Put the files named after the module first, then those that take the shortest time."""
    files: dict[str, float] = {}
    for test, seconds in chosen.items():
        file = test.partition("::")[0]
        files[file] = files.get(file, 0.0) + seconds
    order = sorted(files, key=lambda file: (module not in Path(file).stem, files[file], file))
    rank = {file: number for number, file in enumerate(order)}
    return dict(sorted(chosen.items(), key=lambda pair: rank[pair[0].partition("::")[0]]))
