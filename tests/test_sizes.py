"""Functions and files stay short, and every public one says what it does."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT

MOST_LINES, MOST_FUNCTION_LINES, MEDIAN_FUNCTION_LINES = 450, 60, 10
FOLDERS = ("src", "tests", "scripts", "benchmarks", "examples")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_source(path: Path) -> bool:
    return path.is_relative_to(ROOT / "src")


def list_functions(path: Path) -> list[Function]:
    tree = ast.parse(path.read_text("utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, Function)]


def count_lines(function: Function) -> int:
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1


def find_public(body: list[ast.stmt]) -> Iterator[Function | ast.ClassDef]:
    """Yield public definitions of a module or class; what is inside functions is not public."""
    for node in body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from find_public(node.body)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_is_short_and_documented(path: Path) -> None:
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= MOST_LINES
    long = [node.name for node in list_functions(path) if count_lines(node) > MOST_FUNCTION_LINES]
    assert not long
    if is_source(path):
        tree = ast.parse(text)
        assert not path.stat().st_size or ast.get_docstring(tree)
        silent = [node.name for node in find_public(tree.body) if not ast.get_docstring(node)]
        assert not silent


def test_functions_are_short_on_the_whole() -> None:
    """The median over the source of lines that are neither blank nor docstring."""
    lengths = []
    for path in filter(is_source, FILES):
        for function in list_functions(path):
            body = function.body[1:] if ast.get_docstring(function) else function.body
            lengths.append(
                sum(node.end_lineno - node.lineno + 1 for node in body if node.end_lineno)
            )
    assert statistics.median(lengths) <= MEDIAN_FUNCTION_LINES
