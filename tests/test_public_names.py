"""The public names are what they say, whatever else was imported before."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import covertfl as cf
from covertfl.models.export import export_model
from tests import ROOT
from tests.support.paper_queues import TEXT_ORACLE, reference_queue
from tests.support.small_runs import HORIZON

# Modules that cannot be imported by themselves: the command line's entry, and what needs a GPU.
APART = ("covertfl.__main__", "covertfl.kernels.cnn")
# The functions that solve or draw; each is called once below.
QUEUE, MAIN = reference_queue(), cf.load_problem("sound/main")
assert isinstance(MAIN, cf.FiniteHorizon)


def import_everything() -> None:
    for module in pkgutil.walk_packages(cf.__path__, "covertfl."):
        if not module.name.startswith(APART):
            importlib.import_module(module.name)


def call_all(folder: Path) -> dict[str, Callable[[], Any]]:
    """Return one call of each public name."""
    greedy = cf.GreedyPolicy()
    table = cf.solve(QUEUE).policy
    generator = np.random.default_rng(0)
    assert isinstance(MAIN, cf.FiniteHorizon)
    errors = {
        name: getattr(cf, name)
        for name in cf.__all__
        if inspect.isclass(getattr(cf, name)) and issubclass(getattr(cf, name), cf.CovertflError)
    }
    return {
        **{
            name: partial(kind, "a sentence", **({"best": 1.0} if name == "Infeasible" else {}))
            for name, kind in errors.items()
        },
        "load_problem": lambda: cf.load_problem("sound/queue"),
        "list_presets": cf.list_presets,
        "solve": lambda: cf.solve(QUEUE),
        "plan": lambda: cf.plan("sound/queue"),
        "fit": lambda: cf.fit(ROOT / "src/covertfl/data/participation.csv", min_examples=6800),
        "Run": lambda: cf.Run("toxicity"),
        "audit": lambda: cf.audit(folder),
        "load_model": lambda: cf.load_model(export_model(folder, folder / "x.safetensors").output),
        "Oracle": lambda: cf.Oracle(TEXT_ORACLE.transition, TEXT_ORACLE.success),
        "LearningCost": cf.LearningCost,
        "Action": lambda: cf.Action(1),
        "Observation": lambda: cf.Observation(0, 1),
        "GreedyPolicy": cf.GreedyPolicy,
        "RandomPlacement": lambda: cf.RandomPlacement(4),
        "QueueTable": lambda: cf.QueueTable(table.table),
        "HorizonTable": lambda: cf.HorizonTable(cf.solve(MAIN).policy.table),
        "build_threshold_table": lambda: cf.build_threshold_table(QUEUE, np.ones((3, 2))),
        "build_mixture_table": lambda: cf.build_mixture_table(QUEUE, 1, 2, 0.5),
        "build_sigmoid_table": lambda: cf.build_sigmoid_table(QUEUE, np.ones((3, 3, 2)), 1.0),
        "build_horizon_threshold_table": lambda: cf.build_horizon_threshold_table(
            MAIN, np.ones((MAIN.rounds, 3))
        ),
        "write_policy": lambda: cf.write_policy(folder / "policy.json", table),
        "read_policy": lambda: cf.read_policy(folder / "policy.json"),
        "evaluate_queue_policy": lambda: cf.evaluate_queue_policy(QUEUE, table),
        "simulate_queue_policy": lambda: cf.simulate_queue_policy(
            QUEUE, table, rounds=10, runs=2, generator=generator
        ),
        "evaluate_horizon_policy": lambda: cf.evaluate_horizon_policy(MAIN, greedy),
        "simulate_horizon_policy": lambda: cf.simulate_horizon_policy(
            MAIN, greedy, 2, generator=generator
        ),
        "bound_best_eavesdropper": lambda: cf.bound_best_eavesdropper(
            MAIN, greedy, num_samples=10, generator=generator
        ),
        "solve_minority": lambda: cf.solve_minority(MAIN),
    }


# Types that functions return, and the protocol of policies, are not called by users.
RETURNED = {
    "AuditReport",
    "Examples",
    "FiniteHorizon",
    "Fit",
    "Model",
    "Plan",
    "Policy",
    "Predictions",
    "QueueProblem",
    "RunProgress",
    "RunSummary",
    "Solution",
    "Threat",
    "TrainingResult",
    "TrainingTask",
    "__version__",
}


def test_no_package_shadows_a_public_name(tmp_path: Path) -> None:
    import_everything()
    cf.Run(**HORIZON).train(tmp_path / "run")
    calls = call_all(tmp_path / "run")
    assert set(calls) | RETURNED == set(cf.__all__)
    for name in cf.__all__:
        assert not isinstance(getattr(cf, name), ModuleType), name
    for call in calls.values():
        call()


def test_no_public_name_is_the_name_of_a_package_or_module() -> None:
    modules = {module.name for module in pkgutil.iter_modules(cf.__path__)}
    assert not modules & set(cf.__all__)


def test_what_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        cf.nonsense  # noqa: B018


def test_typed_names_are_the_public_names() -> None:
    """What type checkers see is what the lazy import gives."""
    tree = ast.parse((ROOT / "src/covertfl/__init__.py").read_text("utf-8"))
    typed = {
        name.asname: (node.module or "", name.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("covertfl.")
        for name in node.names
    }
    assert set(typed) == set(cf.__all__) - {"__version__"}
    for public, (module, name) in typed.items():
        assert public == name
        assert getattr(cf, name).__module__ == module


def test_the_api_page_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "write_api_page.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0, "run scripts/write_api_page.py"
