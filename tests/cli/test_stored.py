"""What commands print stays as it is, as JSON and for people: commands and their stored outputs.

Where other words are meant, `COVERTFL_STORE=1 pytest tests/cli/test_stored.py` stores them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import EXAMPLE_LOG, Run

STORED = Path(__file__).parent / "stored"
RUN_FILE = """
task = "digits"
rounds = 12
updates = 4
seed = 3
[data]
model = "logistic"
[federation]
clients = 6
participation = [2, 4, 6]
batch_size = 20
[policy]
kind = "optimal"
[decoy]
kind = "public"
"""
SEEDS_FILE = """
task = "digits"
rounds = 20
updates = 5
seed = 5
[data]
model = "logistic"
[federation]
clients = 6
participation = [2, 4, 6]
acceptance = "model"
algorithm = "fedsgd"
batch_size = 20
[policy]
kind = "minority"
[decoy]
kind = "mirrored"
"""

# The name of the stored output and the command, in order: later commands use earlier ones' files.
COMMANDS = {
    "presets": "presets --json",
    "preset": "presets sound/main --json",
    "solve_queue": "solve --preset sound/queue --policy-out policy.json --json",
    "solve_horizon": "solve --preset sound/main --json",
    "solve_lp": "solve --preset paper-code/queue --method lp --json",
    "solve_spga": "solve --preset paper-code/queue --method spga --iterations 30 --runs 2 --json",
    "solve_spga_horizon": "solve --preset sound/main --method spga --iterations 30 --json",
    "plan_horizon": "plan --preset sound/main --exposure 0.4 --epsilon 0.25 --json",
    "plan_queue": "plan --preset paper-code/queue --exposure 0.6 --json",
    "fit": "fit log.csv --cuts 8,15 --min-examples 6800 -o fitted.toml --json",
    "fit_policy": "fit log.csv --min-examples 6800 --policy log-policy.json --iterations 30 --json",
    "plan_fitted": "plan fitted.toml --json",
    "train": "train run.toml --out runs/digits --json",
    "train_seeds": "train seeds.toml --out runs/seeds --seeds 2 --json",
    "audit": "audit runs/digits --rehearsals 3 --json",
    "audit_seeds": "audit runs/seeds --json",
    "export": "export runs/digits -o model.safetensors --json",
    "report": "report runs/digits --json",
}
TRAINING = {"train", "train_seeds", "audit", "audit_seeds", "export", "report"}
LEFT_OUT = {"seconds", "version"}  # differ from one machine and release to the next


def leave_out(content: Any) -> Any:
    """Return the content without times and versions."""
    if isinstance(content, dict):
        return {key: leave_out(value) for key, value in content.items() if key not in LEFT_OUT}
    return [leave_out(value) for value in content] if isinstance(content, list) else content


def assert_same(found: Any, stored: Any, relative: float, where: str) -> None:
    """Compare JSON: the keys in order, everything but floats exactly."""
    assert type(found) is type(stored), where
    if isinstance(stored, dict):
        assert list(found) == list(stored), where
        for key, value in stored.items():
            assert_same(found[key], value, relative, f"{where}.{key}")
    elif isinstance(stored, list):
        assert len(found) == len(stored), where
        for index, value in enumerate(stored):
            assert_same(found[index], value, relative, f"{where}[{index}]")
    elif isinstance(stored, float):
        # A belief from few rehearsals is steep in eigenvectors, which depend on the processor.
        wide = 0.02 if where.endswith(".belief.probability") else relative
        assert found == pytest.approx(stored, rel=wide, abs=wide), where
    else:
        assert found == stored, where


@pytest.fixture
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with the files that the commands read."""
    for extra in ("torch", "matplotlib", "jinja2"):
        pytest.importorskip(extra)
    shutil.copy(EXAMPLE_LOG, tmp_path / "log.csv")
    (tmp_path / "run.toml").write_text(RUN_FILE)
    (tmp_path / "seeds.toml").write_text(SEEDS_FILE)
    monkeypatch.chdir(tmp_path)


def split_numbers(text: str) -> tuple[list[str], list[float]]:
    """Return the words of a line and the numbers between them, but seconds at its end."""
    words = re.split(r"(-?\d+(?:\.\d+)?(?:e-?\d+)?)", re.sub(r"[\d.e-]+ (│|s *)$", "", text))
    return [" ".join(word.split()) for word in words[::2]], [float(word) for word in words[1::2]]


@pytest.mark.usefixtures("_folder")
def test_words_are_those_stored(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    printed = {}
    for name, command in COMMANDS.items():
        outcome = run(*shlex.split(command.removesuffix(" --json")))
        assert outcome.status == 0, outcome.err
        printed[name] = outcome.out.splitlines()
    path = STORED / "printed.json"
    if os.environ.get("COVERTFL_STORE") == "1":
        path.write_text(json.dumps(printed, indent=1, ensure_ascii=False) + "\n")
    stored = json.loads(path.read_text())
    assert printed.keys() == stored.keys()
    for name, lines in stored.items():
        for found, line in zip(printed[name], lines, strict=True):
            (words, numbers), (kept, expected) = split_numbers(found), split_numbers(line)
            assert words == kept, name
            relative = 0.05 if name in TRAINING else 1e-3
            assert numbers == pytest.approx(expected, rel=relative, abs=relative), (name, line)


@pytest.mark.usefixtures("_folder")
def test_outputs_are_those_stored(run: Run) -> None:
    for name, command in COMMANDS.items():
        stored = json.loads((STORED / f"{name}.json").read_text())
        # Training rounds differently on other processors.
        relative = 1e-3 if name in TRAINING else 1e-9
        assert_same(leave_out(run(*shlex.split(command)).content), stored, relative, name)
