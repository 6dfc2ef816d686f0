"""The list of known bugs fits the code: each can still be injected, and its tests exist."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest

from tests import ROOT


def load_mutants() -> Any:
    spec = importlib.util.spec_from_file_location("known_bugs", ROOT / "scripts" / "known_bugs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["known_bugs"] = module
    spec.loader.exec_module(module)
    return module


MUTANTS = load_mutants().MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_bug_can_be_injected(mutant: Any) -> None:
    changed = mutant.inject(ROOT / "src" / "covertfl")
    compile(changed, mutant.file, "exec")
    assert changed != (ROOT / "src" / "covertfl" / mutant.file).read_text()
    for test in mutant.tests.split():
        assert (ROOT / test.partition("::")[0]).exists(), test


def test_names_differ() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
