"""The flow of the package is one-way: no module imports one that stands above it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import covertfl

ROOT = Path(covertfl.__file__).parent

# From the bottom up.  A module may import those of lower layers and, in its own layer, those that
# stand before it.
LAYERS = (
    ("errors",),
    (
        "atomic_file",
        "toml_file",
        "oracle",
        "oracle_sampling",
        "intervals",
        "participation_log",
        "oracle_fit",
        "experience",
    ),
    ("problem", "policy", "problem_file", "policy_file"),
    (
        "queue_bounds",
        "queue_chain",
        "queue_evaluation",
        "horizon_evaluation",
        "updates_needed",
        "schedule_bound",
    ),
    (
        "solvers",
        "solvers.average_cost",
        "solvers.multiplier",
        "solvers.constrained",
        "solvers.occupation_lp",
        "solvers.backward_induction",
        "solvers.minority",
        "solvers.spga_state",
        "solvers.spga_kernel",
        "solvers.spga",
    ),
    ("structure", "planner", "fitted_problem", "spga_score", "log_policy"),
    (
        "seeding",
        "weights",
        "local_training",
        "mlp_kernel",
        "torch_kernel",
        "cnn_blocks",
        "cnn_passes",
        "cnn_triton",
        "cnn_ratings",
        "cnn_kernel",
        "local_kernels",
        "splits",
        "embedding",
        "tasks",
        "tasks.data_settings",
        "tasks.models",
        "tasks.task",
        "tasks.labelled_data",
        "tasks.toxicity",
        "tasks.embeddings",
        "tasks.digits",
        "tasks.mnist",
        "tasks.function",
        "tasks.registry",
        "participation",
        "decoys",
        "decoys.decoy",
        "decoys.update_rule",
        "decoys.step_length",
        "decoys.opinion",
        "decoys.mirrored",
        "decoys.public",
        "decoys.random_weights",
        "decoys.contradiction",
        "decoys.adversarial",
        "decoys.following",
        "decoys.registry",
        "update_queue",
        "learner",
        "transcript",
        "run_file",
        "world",
        "run_policy",
        "run_state",
        "federation",
        "client_answers",
        "function_answers",
        "engines",
        "engines.simulated",
        "preparation",
        "engines.flower.messages",
        "engines.flower.roll",
        "engines.flower.inner_strategies",
        "engines.flower.answers",
        "engines.flower.carrier",
        "engines.flower.strategy",
        "engines.flower.grid",
        "engines.flower.client_app",
        "engines.flower.eavesdropper_app",
        "engines.flower.server_app",
        "engines.flower.simulation",
        "engines.flower",
        "engines.flower.certificates",
        "engines.flower.deployment_fork",
        "engines.flower.deployment_roles",
        "engines.flower.deployment_keeper",
        "engines.flower.deployment_processes",
        "engines.flower.deployment_federation",
        "engines.flower.deployment_bundle",
        "engines.flower.deployment_server",
        "engines.flower.deployment",
        "training",
    ),
    (
        "eavesdroppers",
        "eavesdroppers.separation",
        "eavesdroppers.eavesdropper",
        "eavesdroppers.majority",
        "eavesdroppers.minority",
        "eavesdroppers.likelihood",
        "eavesdroppers.early_stop",
        "eavesdroppers.change_point",
        "eavesdroppers.repeat",
        "eavesdroppers.step_shape",
        "eavesdroppers.alignment",
        "eavesdroppers.own_data",
        "eavesdroppers.validation",
        "eavesdroppers.fine_tune",
        "eavesdroppers.ensemble",
        "eavesdroppers.train_alone",
        "eavesdroppers.registry",
        "model_mismatch",
        "audit",
        "coalitions",
        "audit_report",
        "audit_runs",
    ),
    (
        "results",
        "render",
        "plots",
        "spga_plots",
        "outcomes",
        "run_tables",
        "audit_tables",
        "audit_matrix",
    ),
    (
        "experiments",
        "experiments.cells",
        "experiments.experiment",
        "experiments.averages",
        "experiments.schedule",
        "experiments.scorer",
        "experiments.walks",
        "experiments.setups",
        "experiments.covert_runs",
        "experiments.table_main",
        "experiments.table_mnist",
        "experiments.table_fedsgd",
        "experiments.table_states",
        "experiments.random_policy",
        "experiments.figure_spga",
        "experiments.figure_tracking",
        "experiments.figure_cost",
        "experiments.theory_updates",
        "experiments.theory_structure",
        "experiments.theory_queue",
        "experiments.theory",
        "experiments.registry",
    ),
    ("report_records", "report_plots", "report_page", "report"),
    (
        "reproduction_figures",
        "reproduction_markdown",
        "reproduction_readings",
        "reproduction_tables",
        "reproduction_theory",
        "reproduction_page",
        "reproduction",
    ),
    ("demo_page", "demo"),
    ("cli",),
)
ORDER = [module for layer in LAYERS for module in layer]
FORBIDDEN_NAMES = {"utils", "helpers", "common", "misc"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def source_files() -> dict[str, Path]:
    return {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def find_imports(path: Path) -> set[str]:
    """Names of covertfl's modules that a file imports, at the top or inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            found.add(module)
            found |= {f"{module}.{name.name}" for name in node.names}
    prefix = "covertfl."
    return {name.removeprefix(prefix) for name in found if name.startswith(prefix)} & set(ORDER)


def test_every_module_has_its_place() -> None:
    modules = {name for name in source_files() if name not in {"", "data"}}
    assert modules == set(ORDER)


@pytest.mark.parametrize("module", ORDER)
def test_nothing_is_imported_from_above(module: str) -> None:
    imported = find_imports(source_files()[module]) - {module}
    above = {name for name in imported if ORDER.index(name) > ORDER.index(module)}
    assert not above, f"{module} imports {sorted(above)} from above"


def test_the_check_sees_imports(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text("def f():\n    from covertfl.solvers.constrained import solve_queue\n")
    assert find_imports(file) == {"solvers.constrained"}
    file.write_text("from covertfl import oracle, cli\nimport covertfl.problem\n")
    assert find_imports(file) == {"oracle", "cli", "problem"}


def test_flwr_is_imported_by_the_flower_engine_alone() -> None:
    for module, path in source_files().items():
        found = {
            (name.name if isinstance(node, ast.Import) else node.module or "").split(".")[0]
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in node.names
        }
        assert not found & {"flwr", "ray"} or module.startswith("engines.flower"), module


def test_importing_the_package_does_not_import_flwr() -> None:
    code = "import sys, covertfl, covertfl.training; sys.exit('flwr' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_catch_all_modules() -> None:
    assert not {name.rpartition(".")[2] for name in source_files()} & FORBIDDEN_NAMES


def test_public_names_resolve() -> None:
    for name in covertfl.__all__:
        assert getattr(covertfl, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        covertfl.nonsense  # noqa: B018


def test_typed_names_are_the_public_names() -> None:
    """What type checkers see is what the lazy import gives."""
    tree = ast.parse((ROOT / "__init__.py").read_text("utf-8"))
    typed = {
        name.asname: (node.module or "", name.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("covertfl.")
        for name in node.names
    }
    assert set(typed) == set(covertfl.__all__) - {"__version__"}
    for public, (module, name) in typed.items():
        assert public == name
        assert getattr(covertfl, name).__module__ in {module, "typing"}
