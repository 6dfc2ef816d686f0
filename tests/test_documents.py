"""The documents agree with the code: examples run, commands, links and named places exist."""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from typer.main import get_command

import covertfl as cf
from covertfl.cli.app import app
from covertfl.decision.problem_file import build_problem, read_preset
from covertfl.planning.horizon import plan_horizon
from covertfl.runs.settings import build_run
from tests import ROOT
from tests.support.documents import find_blocks

README = (ROOT / "README.md").read_text("utf-8")
FLOWER = (ROOT / "docs" / "flower.md").read_text("utf-8")
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language: str, text: str = README) -> list[str]:
    """Return the code blocks of one language."""
    return find_blocks(language, text)


def find_block(language: str, word: str, text: str = README) -> str:
    """Return the only block of a language that contains a word."""
    [block] = [body for body in blocks(language, text) if word in body]
    return block


def run_example(number: int) -> tuple[str, str]:
    """Return what an example of the README prints, and the output shown below it."""
    pattern = r"^```python\n(.*?)^```\n\n```\n(.*?)^```"
    code, said = re.findall(pattern, README, flags=re.DOTALL | re.MULTILINE)[number]
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(code, "README.md", "exec"), {})
    return output.getvalue(), said


@pytest.mark.slow
def test_readme_training_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers may differ a little, because rounding differs between processors."""
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
    content = tomllib.loads(find_block("toml", "[oracle]"))
    loaded = build_problem(content, "README.md")
    assert not isinstance(loaded.problem, cf.FiniteHorizon)
    assert loaded.problem.limit == 3.0


def test_readme_advice_is_the_planners() -> None:
    problem = read_preset("sound/main").problem
    assert isinstance(problem, cf.FiniteHorizon)
    plan = plan_horizon(problem, generator=np.random.default_rng(0))
    quoted = README.replace("\n> ", " ")
    assert plan.advice in quoted
    assert plan.exchangeable.advice in quoted


@pytest.mark.parametrize("text", [README, FLOWER], ids=["README.md", "flower.md"])
def test_the_run_file_of_deploy_local_fits_its_command(tmp_path: Path, text: str) -> None:
    pytest.importorskip("flwr")
    pytest.importorskip("torch")
    from covertfl.engines.flower.deployment.checks import find_shortage
    from covertfl.engines.flower.deployment.run import Deployment

    assert "\ncovertfl deploy-local run.toml --nodes 4 " in text
    content = tomllib.loads(find_block("toml", "toxicity", text))
    settings = build_run(content, "run.toml", folder=tmp_path)
    Deployment(settings, tmp_path / "out", num_nodes=4)
    assert find_shortage(settings, 4) is None
    assert settings.sections.federation.clients == 4


def test_the_example_with_your_own_model_runs_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flwr")
    pytest.importorskip("torch")
    from flwr.serverapp.strategy import FedAvg

    from covertfl.flower import InProcessGrid
    from tests.support.flower_runs import make_app, make_model

    (tmp_path / "run.toml").write_text(find_block("toml", '"own"', FLOWER))
    code = find_block("python", "make_server_task", FLOWER)
    features = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    labels = (features[:, 0] > 0.0).astype(np.float32)
    arrays = {f"{name}_features": features for name in ("public", "test")}
    arrays |= {f"{name}_labels": labels for name in ("public", "test")}
    given = {"FedAvg": FedAvg, "make_model": make_model, "grid": InProcessGrid(make_app(), 4)}
    monkeypatch.chdir(tmp_path)
    # Fewer rounds, and nodes of the size that the test uses.
    code = code.replace("num_rounds=45", "num_rounds=6").replace("examples=500", "examples=40")
    exec(compile(code, "flower.md", "exec"), {**arrays, **given})
    summary = json.loads((tmp_path / "runs/own/summary.json").read_text())
    assert summary["rounds"] == 6
    assert summary["updates_done"] > 0


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
    assert listed == {f"D{number}" for number in range(1, 28)}
    for path in (ROOT / "src").rglob("*.py"):
        named = set(re.findall(r"\bD\d+\b", path.read_text("utf-8")))
        assert named <= listed, f"{path.name} names {sorted(named - listed)}"


def find_places(text: str) -> list[tuple[str, list[str]]]:
    """Return the Python files named in backticks, each with the names said to be in it."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    found = re.findall(r"`([\w/]+\.py)(?:: ([\w., ]+))?`", prose)
    return [(path, names.split(", ") if names else []) for path, names in found]


def list_defined(path: Path) -> set[str]:
    """Return the functions, classes, methods and constants that a file defines."""
    defined: set[str] = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        if isinstance(node, ast.ClassDef):
            inside = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            defined |= {f"{node.name}.{part.name}" for part in inside}
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        defined |= {target.id for target in targets if isinstance(target, ast.Name)}
    return defined


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_named_files_define_the_names_given_with_them(document: Path) -> None:
    missing = []
    for name, identifiers in find_places(document.read_text("utf-8")):
        candidates = [folder / name for folder in (ROOT / "src/covertfl", ROOT)]
        path = next((path for path in candidates if path.exists()), None)
        if path is None:
            missing.append(name)
        else:
            lost = set(identifiers) - list_defined(path)
            missing += [f"{name}: {identifier}" for identifier in sorted(lost)]
    assert not missing, f"{document.name} names what is not there"


def test_the_paper_map_covers_every_equation_and_formula() -> None:
    text = (ROOT / "docs/paper_map.md").read_text("utf-8")
    parts = [f"({number})" for number in range(1, 16)]
    parts += [f"| F{number} |" for number in range(1, 12)]
    parts += [f"Theorem {number}" for number in range(1, 5)]
    parts += ["Lemma 1", "Lemma 2", "Lemma 3", "Definition 1", "Definition 2", "Algorithm 1"]
    parts += ["Table 1", "Table 2", "Tables 3 and 4", *(f"Figure {n}" for n in range(1, 7))]
    parts += [f"assumption {name}" for name in ("A1", "A2", "E1", "E2", "E3", "M1", "M4")]
    assert [part for part in parts if not re.search(re.escape(part) + r"(?!\d)", text)] == []


def test_the_architecture_page_lists_every_package() -> None:
    text = (ROOT / "docs/architecture.md").read_text("utf-8")
    source = ROOT / "src/covertfl"
    packages = {path.parent.relative_to(source).as_posix() for path in source.rglob("__init__.py")}
    named = {name.strip("/") for name in re.findall(r"`([\w/]+/)`", text)}
    inner = {name for name in packages if name.startswith("kernels/")}
    assert packages - inner - {"."} <= named


def test_every_argument_of_the_covert_strategy_is_documented() -> None:
    pytest.importorskip("flwr")
    pytest.importorskip("torch")
    from covertfl.flower import CovertStrategy, RoundSettings

    tables = "\n".join(line for line in FLOWER.splitlines() if line.startswith("| `"))
    for function in (CovertStrategy, CovertStrategy.start):
        names = set(inspect.signature(function).parameters) - {"self"}
        assert not [name for name in names if f"`{name}`" not in tables]
    names = set(inspect.signature(RoundSettings).parameters)
    assert not [name for name in names if f"{name}=..." not in tables]
