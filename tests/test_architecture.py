"""A package imports only packages above it in the table `MAY_IMPORT`, so nothing flows back."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import covertfl

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
    "decoys": "kernels tasks plugins",
    "runs": "files seeding decision solvers fitting kernels tasks decoys",
    "engines": "files processes seeding decision kernels tasks decoys runs",
    "flower": "kernels tasks engines",
    "training": "seeding runs engines",
    "eavesdroppers": "decision evaluation kernels plugins",
    "auditing": "files seeding intervals decision evaluation kernels tasks decoys runs engines "
    "training eavesdroppers",
    "display": "files solvers fitting planning runs auditing",
    "report": "files runs",
    "api": "files decision solvers fitting planning tasks runs training eavesdroppers "
    "auditing display report",
    "models": "files kernels tasks runs api",
    "demo": "files decision evaluation planning runs training auditing report",
    "service": "files processes decision evaluation kernels tasks runs engines eavesdroppers "
    "auditing models",
    "cli": "decision fitting planning tasks runs training models engines auditing "
    "display api report demo service",
}


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
