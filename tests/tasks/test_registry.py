"""The registry and the settings that every task takes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from covertfl.errors import InvalidInput
from covertfl.tasks.registry import TASKS, make_task
from covertfl.tasks.task import DataSettings


def test_tasks_are_those_of_a_run_file() -> None:
    assert list(TASKS) == ["toxicity", "embeddings", "digits", "mnist"]


def test_registry_makes_the_task_named() -> None:
    assert make_task(DataSettings(task="toxicity")).name == "toxicity"
    with pytest.raises(InvalidInput, match=r"task must be one of toxicity, .*, got 'cats'"):
        make_task(DataSettings(task="cats"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"public_classes": 2}, "public_classes needs more than two classes"),
        ({"model": "bert"}, "model must be head, logistic or mlp with task = toxicity, got bert"),
        ({"clients": 5000}, "5000 clients need at least 40000 examples together"),
    ],
)
def test_settings_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make_task(DataSettings(task="toxicity", **change))


def test_registry_does_not_import_torch() -> None:
    code = (
        "import sys; from covertfl.tasks.registry import *; "
        "make_task(DataSettings(task='toxicity')); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
