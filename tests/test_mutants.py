"""Known bugs fit the code, and random ones are drawn where they can be noticed."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


MUTANTS = load("known_bugs").MUTANTS
BUGS = load("random_bugs")
SOURCE = '''"""Text of 3 words."""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    LEFT_ALONE = 3

def choose(values: list[int], least: int = 2) -> "int | None":
    """Return 1 of 2 values."""
    for value in values:
        if (value < least  # not <= here
                and value):
            raise ValueError("a" + str(1 + 1))
    return sum(v * 0.5 for v in values if v) or None
'''
CHANGES = {
    "2 to 3": "least: int = 3)",
    "not (value < least and value)": "(not (value < least",
    "and to or": "(value < least) or (value)",
    "< to <=": "(value <= least  # not <= here",
    "or to and": "(sum(v * 0.5 for v in values if v)) and (None)",
    "* to /": "v / 0.5",
    "0.5 to 1.0": "v * 1.0",
    "not (v)": "if (not (v))",
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_bug_can_be_injected(mutant: Any) -> None:
    changed = mutant.inject(ROOT)
    compile(changed, mutant.file, "exec")
    assert changed != mutant.find(ROOT).read_text()
    for test in mutant.tests.split():
        assert (ROOT / test.partition("::")[0]).exists(), test


def test_names_differ() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_changes_are_those_of_operators_constants_and_conditions(tmp_path: Path) -> None:
    (tmp_path / "choose.py").write_text(SOURCE)
    sites = BUGS.find_sites(tmp_path)
    assert {site.key.change for site in sites} == CHANGES.keys()
    for site in sites:
        changed = site.inject(tmp_path).decode()
        ast.parse(changed)
        assert CHANGES[site.key.change] in changed


def test_a_change_is_found_again_in_a_function_that_moved(tmp_path: Path) -> None:
    (tmp_path / "choose.py").write_text(SOURCE)
    drawn = BUGS.draw(BUGS.find_sites(tmp_path), 3, seed=1)
    assert drawn == BUGS.draw(BUGS.find_sites(tmp_path), 3, seed=1)
    (tmp_path / "choose.py").rename(tmp_path / "moved.py")
    (tmp_path / "moved.py").write_text(
        "FIRST = 1\n" + SOURCE.replace("values if v", "values  if v")
    )
    found = {site.key: [site] for site in BUGS.find_sites(tmp_path)}
    for site in drawn:
        again = BUGS.find_again((site.file, site.key), found)
        assert (again.file, again.key) == ("moved.py", site.key)
    assert BUGS.find_again((drawn[0].file, drawn[0].key), {}) is None
