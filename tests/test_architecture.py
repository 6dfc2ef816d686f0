"""A package imports only packages above it in the table `MAY_IMPORT`, so nothing flows back."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import covertfl
from covertfl.schemes.registry import SCHEMES

SOURCE = Path(covertfl.__file__).parent
FORBIDDEN_NAMES = {"utils", "helpers", "common", "misc"}

# Every package, and every module that stands alone, with what it may import.  A package may import
# itself; a name stands for all that is under it; errors and arrays are open to all.
MAY_IMPORT = {
    "errors": "",
    "arrays": "",
    "intervals": "",
    "seeding": "",
    "files": "",
    "plugins": "files",
    "processes": "",
    "decision": "files",
    "evaluation": "decision",
    "solvers": "decision evaluation",
    "fitting": "intervals files decision evaluation solvers",
    "planning": "decision evaluation solvers fitting",
    "kernels": "",
    "tasks": "files seeding kernels plugins",
    "schemes": "files seeding decision solvers fitting planning kernels tasks plugins",
    "eavesdroppers": "decision evaluation kernels plugins",
    "runs": "files seeding decision fitting kernels tasks schemes eavesdroppers",
    "engines": "files processes seeding decision kernels tasks schemes runs",
    "flower": "kernels tasks engines",
    "training": "seeding runs engines",
    "auditing": "files seeding intervals decision evaluation kernels tasks schemes runs training "
    "eavesdroppers",
    "display": "files solvers fitting planning runs auditing",
    "report": "files runs",
    "api": "files decision solvers fitting planning tasks schemes runs training eavesdroppers "
    "auditing display report",
    "models": "files kernels tasks runs api",
    "demo": "files decision evaluation planning schemes runs training auditing report",
    "service": "files processes decision evaluation kernels tasks schemes runs engines "
    "eavesdroppers auditing models",
    "cli": "decision fitting planning tasks runs training models engines auditing "
    "display api report demo service",
}
# What every package may know of schemes: the protocol, the registry, and replies.
OPEN_SCHEMES = {"schemes.scheme", "schemes.registry", "schemes.replies"}
# These say in words, numbers and rows what a scheme costs and gives, and decide nothing by it.
DESCRIBE_SCHEMES = ("planning", "display", "demo")


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def source_files() -> dict[str, Path]:
    return {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


MODULES = source_files()


@cache
def list_imported(text: str) -> set[str]:
    """Return all names that code imports, at the top or inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            module = node.module or ""
            found |= {module, *(f"{module}.{name.name}" for name in node.names)}
    return found


def find_imports(path: Path) -> set[str]:
    """Return covertfl's modules that a file imports."""
    found = list_imported(path.read_text("utf-8"))
    inside = {name.removeprefix("covertfl.") for name in found if name.startswith("covertfl.")}
    modules = inside & set(MODULES)
    # `from covertfl.solvers import minority` names a module of a package, not its front.
    return {name for name in modules if not any(other.startswith(f"{name}.") for other in modules)}


def package_of(module: str) -> str:
    return module.partition(".")[0]


def test_every_package_has_its_place() -> None:
    assert {package_of(name) for name in MODULES} - {"", "__main__", "data"} == set(MAY_IMPORT)


def test_a_package_may_import_only_those_above_it() -> None:
    """No entry names a package further down, so there is no cycle."""
    order = list(MAY_IMPORT)
    for package, allowed in MAY_IMPORT.items():
        for name in allowed.split():
            assert order.index(name) < order.index(package), f"{package} lists {name}"


def test_nothing_else_is_imported() -> None:
    wrong = []
    for module, path in MODULES.items():
        package = package_of(module)
        if package in MAY_IMPORT:
            allowed = {"", package, "errors", "arrays", *MAY_IMPORT[package].split()}
            others = {name for name in find_imports(path) if package_of(name) not in allowed}
            wrong += [f"{module} imports {name}" for name in sorted(others)]
    assert not wrong


def test_no_package_knows_a_scheme_by_name() -> None:
    """Rounds, engines, records, service and audit know the protocol; a scheme is one module."""
    named = re.compile("|".join((*SCHEMES, "replicas?", "scheduled", "silent")))
    wrong = []
    for module, path in MODULES.items():
        package = package_of(module)
        if package == "schemes":
            continue
        inside = {name for name in find_imports(path) if package_of(name) == "schemes"}
        wrong += [f"{module} imports {name}" for name in inside - OPEN_SCHEMES]
        if package not in DESCRIBE_SCHEMES:
            found = [name for name in list_names(path.read_text("utf-8")) if named.fullmatch(name)]
            wrong += [f"{module} names {name}" for name in found]
    assert not wrong


def test_the_check_of_names_sees_them() -> None:
    text = 'def f(a):\n    if a.is_exchangeable or a.kind == "silent":\n        pass\n'
    assert {"exchangeable", "silent"} <= set(list_names(text))
    assert "exchangeable" not in list_names('def f():\n    """Of exchangeable runs."""\n')


def list_names(text: str) -> list[str]:
    """Return the words of identifiers and the strings that code compares or passes on.

    Docstrings, and sentences in messages, do not decide anything.
    """
    tree = ast.parse(text)
    documents = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
        and len(ast.unparse(node.body[0]).split()) > 1
    }
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found += [] if id(node) in documents else [node.value]
        for field in ("id", "attr", "arg", "name"):
            name = getattr(node, field, None)
            found += name.lower().split("_") if isinstance(name, str) else []
    return found


def test_the_package_imports_nothing_of_the_checkout() -> None:
    outside = {"paper", "tests", "scripts", "benchmarks"}
    for module, path in MODULES.items():
        found = {name.split(".")[0] for name in list_imported(path.read_text("utf-8"))}
        assert not found & outside, module


def test_no_modules_import_each_other_in_a_circle() -> None:
    waiting = {name: find_imports(path) - {name} for name, path in MODULES.items()}
    while free := [name for name, needs in waiting.items() if not needs & set(waiting)]:
        for name in free:
            del waiting[name]
    assert not waiting


def test_the_check_sees_imports(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text("def f():\n    from covertfl.solvers.constrained import solve_queue\n")
    assert find_imports(file) == {"solvers.constrained"}
    file.write_text("from covertfl.decision import oracle\nimport covertfl.errors\n")
    assert find_imports(file) == {"decision.oracle", "errors"}


def test_flwr_is_imported_by_the_flower_engine_alone() -> None:
    for module, path in MODULES.items():
        found = {name.split(".")[0] for name in list_imported(path.read_text("utf-8"))}
        assert not found & {"flwr", "ray"} or module.startswith("engines.flower"), module


def test_importing_the_package_does_not_import_flwr() -> None:
    code = "import sys, covertfl, covertfl.training; sys.exit('flwr' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_catch_all_modules() -> None:
    assert not {name.rpartition(".")[2] for name in MODULES} & FORBIDDEN_NAMES
