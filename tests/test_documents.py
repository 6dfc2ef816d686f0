"""The documents say what is so: code runs, commands exist, links lead somewhere."""

from __future__ import annotations

import contextlib
import io
import re
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

from covertfl.cli import app
from covertfl.planner import plan_horizon
from covertfl.problem import FiniteHorizon
from covertfl.problem_file import build_problem, read_preset

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language: str) -> list[str]:
    fences = re.findall(r"^```(\w*)\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)
    return [body for name, body in fences if name == language]


def run_example(number: int) -> tuple[str, str]:
    """What an example of the readme prints, and what it is said to print."""
    pattern = r"^```python\n(.*?)^```\n\n```\n(.*?)^```"
    code, said = re.findall(pattern, README, flags=re.DOTALL | re.MULTILINE)[number]
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(code, "README.md", "exec"), {})
    return output.getvalue(), said


def test_readme_training_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to what another processor's rounding does to the training."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    printed, said = run_example(0)
    number = r"\d+(?:\.\d+)?"
    assert re.sub(number, "", printed) == re.sub(number, "", said)
    numbers = [float(text) for text in re.findall(number, printed)]
    assert numbers == pytest.approx([float(text) for text in re.findall(number, said)], abs=0.02)


def test_readme_policy_prints_what_it_says() -> None:
    printed, said = run_example(1)
    assert printed == said


def test_readme_problem_file_is_the_example() -> None:
    content = tomllib.loads(blocks("toml")[0])
    loaded = build_problem(content, "README.md")
    assert not isinstance(loaded.problem, FiniteHorizon)
    assert loaded.problem.limit == 3.0


def test_readme_advice_is_the_planners() -> None:
    import numpy as np

    problem = read_preset("sound/main").problem
    assert isinstance(problem, FiniteHorizon)
    advice = plan_horizon(problem, generator=np.random.default_rng(0)).advice
    assert advice in README.replace("\n> ", " ")


def test_every_command_is_in_the_readme() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert commands
    for name in commands:
        assert f"covertfl {name}" in README


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text("utf-8")):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_every_deviation_that_code_names_is_listed() -> None:
    listed = set(re.findall(r"\*\*(D\d+)\.", (ROOT / "docs/deviations.md").read_text("utf-8")))
    assert listed == {f"D{number}" for number in range(1, 25)}
    for path in (ROOT / "src").rglob("*.py"):
        named = set(re.findall(r"\bD\d+\b", path.read_text("utf-8")))
        assert named <= listed, f"{path.name} names {sorted(named - listed)}"


def test_files_that_the_paper_map_names_exist() -> None:
    text = (ROOT / "docs/paper_map.md").read_text("utf-8")
    for name in re.findall(r"`((?:solvers/)?[a-z_]+\.py)", text):
        assert (ROOT / "src/covertfl" / name).exists(), name
