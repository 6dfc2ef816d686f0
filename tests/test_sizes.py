"""Functions and files stay short, and every public one says what it does."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests import ROOT

MOST_LINES, MOST_FUNCTION_LINES, MEDIAN_FUNCTION_LINES = 450, 60, 10
FOLDERS = ("src", "tests", "scripts", "benchmarks", "examples")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_source(path: Path) -> bool:
    return path.is_relative_to(ROOT / "src")


def count_lines(function: Function) -> int:
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1


def count_code(function: Function) -> int:
    """Return the lines of a function that are neither blank nor docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return sum(node.end_lineno - node.lineno + 1 for node in body if node.end_lineno)


def find_public(body: list[ast.stmt]) -> Iterator[Function | ast.ClassDef]:
    """Yield public definitions of a module or class; what is inside functions is not public."""
    for node in body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from find_public(node.body)


@dataclass(frozen=True)
class Measured:
    """A file: names of its long functions and of what is not documented, lines of its functions."""

    long: list[str]
    silent: list[str]
    code: list[int]


@cache
def measure(path: Path) -> Measured:
    tree = ast.parse(path.read_text("utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
    long = [node.name for node in functions if count_lines(node) > MOST_FUNCTION_LINES]
    silent = [node.name for node in find_public(tree.body) if not ast.get_docstring(node)]
    if path.stat().st_size and not ast.get_docstring(tree):
        silent.append(path.stem)
    return Measured(long, silent, [count_code(node) for node in functions])


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_is_short_and_documented(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) <= MOST_LINES
    assert not measure(path).long
    if is_source(path):
        assert not measure(path).silent


def test_functions_are_short_on_the_whole() -> None:
    """The median over the source of lines that are neither blank nor docstring."""
    lengths = [lines for path in filter(is_source, FILES) for lines in measure(path).code]
    assert statistics.median(lengths) <= MEDIAN_FUNCTION_LINES
