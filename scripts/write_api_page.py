"""Write docs/api.md from the docstrings of the public names.

python scripts/write_api_page.py            # writes docs/api.md
python scripts/write_api_page.py --check    # exit status 1 where the page is out of date
"""

from __future__ import annotations

import argparse
import inspect
import sys
from pathlib import Path
from typing import Any

import covertfl

PAGE = Path(__file__).parent.parent / "docs" / "api.md"
COMMAND = "python scripts/write_api_page.py"
CHAPTERS = {
    "Deciding": "load_problem list_presets solve Solution plan Plan fit Fit",
    "Training": "Run RunProgress TrainingResult RunSummary TrainingTask Examples",
    "Auditing": "audit AuditReport Threat",
    "Models": "load_model Model Predictions",
    "Problems": "Oracle FiniteHorizon QueueProblem LearningCost Action",
    "Policies": (
        "Policy Observation QueueTable HorizonTable GreedyPolicy RandomPlacement solve_minority "
        "build_threshold_table build_mixture_table build_sigmoid_table "
        "build_horizon_threshold_table read_policy write_policy"
    ),
    "Evaluation": (
        "evaluate_queue_policy simulate_queue_policy evaluate_horizon_policy "
        "simulate_horizon_policy bound_best_eavesdropper"
    ),
    "Errors": (
        "CovertflError InvalidInput NoSolution Infeasible Unstable SplitChain SolverFailed Missing"
    ),
}
INTRODUCTION = f"""# Python interface

Every public name of `import covertfl as cf`, from its docstring; `{COMMAND}` writes this page.
Wrong arguments raise `InvalidInput` with one sentence.  Results are frozen; they have `to_dict()`
for JSON and, where there is something to see, `plot()`, which returns a matplotlib figure.  Paths
may be strings.  Names for users of Flower are in `covertfl.flower`, see [flower.md](flower.md).
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="compare only")
    text = make_page()
    if parser.parse_args().check:
        return int(PAGE.read_text("utf-8") != text)
    PAGE.write_text(text, "utf-8")
    return 0


def make_page() -> str:
    """Return the page, every public name once."""
    listed = [name for names in CHAPTERS.values() for name in names.split()]
    missing = set(covertfl.__all__) - {"__version__"} ^ set(listed)
    if missing:
        raise SystemExit(f"CHAPTERS and covertfl.__all__ differ in {', '.join(sorted(missing))}")
    parts = [INTRODUCTION]
    for title, names in CHAPTERS.items():
        parts.append(f"## {title}\n")
        parts += [describe(name, getattr(covertfl, name)) for name in names.split()]
    return "\n".join(parts)


def describe(name: str, value: Any) -> str:
    """Return a name's signature and docstring, and those of a class's public members."""
    lines = [f"### `cf.{name}`\n"]
    if callable(value) and not _is_plain_error(value):
        lines.append(f"```python\n{name}{_format_signature(value)}\n```\n")
    lines.append(f"```text\n{inspect.getdoc(value) or ''}\n```\n")
    if inspect.isclass(value) and not _is_plain_error(value):
        lines += _describe_members(value)
    return "\n".join(lines)


def _is_plain_error(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, Exception)


def _format_signature(value: Any) -> str:
    signature = inspect.signature(value)
    parts: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not any(p.startswith("*") for p in parts):
            parts.append("*")
        parts.append(_format_parameter(parameter))
    end = signature.return_annotation
    returned = "" if end is signature.empty else f" -> {end}"
    line = f"({', '.join(parts)}){returned}"
    if len(line) < 80:
        return line
    return "(\n" + "".join(f"    {part},\n" for part in parts) + f"){returned}"


def _format_parameter(parameter: inspect.Parameter) -> str:
    is_rest, is_keys = parameter.kind.name == "VAR_POSITIONAL", parameter.kind.name == "VAR_KEYWORD"
    stars = "**" if is_keys else "*" if is_rest else ""
    kind = "" if _is_empty(parameter.annotation) else f": {parameter.annotation}"
    default = "" if _is_empty(parameter.default) else f" = {parameter.default!r}"
    return f"{stars}{parameter.name}{kind}{default}"


def _is_empty(value: Any) -> bool:
    return value is inspect.Parameter.empty


def _describe_members(value: type) -> list[str]:
    rows = []
    for name, member in inspect.getmembers(value):
        if name.startswith("_") or not (inspect.isroutine(member) or isinstance(member, property)):
            continue
        if name in {"count", "index"} or not inspect.getdoc(member):
            continue
        if inspect.isbuiltin(member) or inspect.ismethoddescriptor(member):
            continue
        shown = name if isinstance(member, property) else f"{name}()"
        summary = (inspect.getdoc(member) or "").splitlines()[0]
        rows.append(f"- `{shown}`: {summary}")
    return [*rows, ""] if rows else []


if __name__ == "__main__":
    sys.exit(main())
