"""The threat model in types: an eavesdropper gets queries and means, and can reach nothing else."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

from covertfl import eavesdroppers
from covertfl.decision.problem_file import read_preset
from covertfl.eavesdroppers.eavesdropper import Means, Scheme, SeenQuery
from covertfl.eavesdroppers.registry import BY_SCHEDULE, EAVESDROPPERS, NEEDS, list_possible
from covertfl.solvers.backward_induction import solve_horizon
from tests.support.seen_queries import make_line_means, make_queries
from tests.test_architecture import find_imports, source_files

FOLDER = Path(eavesdroppers.__path__[0])
# What knows or reads the learner's side.
PRIVATE = {
    "transcript",
    "learner",
    "federation",
    "client_answers",
    "function_answers",
    "training",
    "run_file",
    "run_policy",
    "engines.simulated",
    "audit",
    "coalitions",
}


@pytest.mark.parametrize("name", EAVESDROPPERS)
def test_an_eavesdropper_is_handed_means_and_queries(name: str) -> None:
    kind: Any = EAVESDROPPERS[name]
    made = inspect.signature(kind)
    assert list(made.parameters) == ["means"]
    assert get_type_hints(kind.__init__)["means"] is Means
    observed = inspect.signature(kind.observe)
    assert list(observed.parameters) == ["self", "query"]
    assert get_type_hints(kind.observe)["query"] is SeenQuery
    for answer in (kind.belief, kind.estimate):
        assert list(inspect.signature(answer).parameters) == ["self"]


def test_a_query_tells_only_what_was_sent() -> None:
    fields = {field.name for field in dataclasses.fields(SeenQuery)}
    assert fields == {"round", "trajectory", "weights", "moved"}


def find_reach(module: str) -> set[str]:
    """All modules that a module imports, directly or not."""
    files, waiting = source_files(), [module]
    reached: set[str] = set()
    while waiting:
        for found in find_imports(files[waiting.pop()]) - reached:
            reached.add(found)
            waiting.append(found)
    return reached


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda file: file.stem)
def test_no_way_leads_to_private_records(file: Path) -> None:
    name = "eavesdroppers" if file.stem == "__init__" else f"eavesdroppers.{file.stem}"
    assert not find_reach(name) & PRIVATE
    used = {node.id for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Name)}
    assert not used & {"open", "Path", "os", "eval", "exec", "__import__"}


def test_the_check_of_reach_sees_what_is_behind() -> None:
    assert PRIVATE & find_reach("audit_runs") >= {"transcript", "federation", "training"}


def all_means() -> Means:
    problem = read_preset("sound/main").problem
    scheme = Scheme(problem, solve_horizon(problem).policy)  # type: ignore[arg-type]
    return dataclasses.replace(make_line_means(), scheme=scheme)


@pytest.mark.parametrize("name", EAVESDROPPERS)
def test_beliefs_are_chances_and_there_is_an_estimate_after_every_round(name: str) -> None:
    generator = np.random.default_rng(3)
    sent = [(0, (1.0, 0.0)), (1, (30.0, 1.0)), (2, (-30.0, 2.0))]
    latest = {number: np.array(weights) for number, weights in sent}
    for _ in range(12):
        number = int(generator.integers(3))
        latest[number] = latest[number] + generator.integers(0, 2, size=2)
        sent.append((number, tuple(latest[number].tolist())))
    eavesdropper = EAVESDROPPERS[name](all_means())
    for query in make_queries(sent):
        eavesdropper.observe(query)
        belief = eavesdropper.belief()
        seen = 1 + max(number for number, _ in sent[: query.round])
        assert belief.shape == (seen,)
        assert np.all(belief >= 0.0) and belief.sum() == pytest.approx(1.0, abs=1e-12)
        estimate = eavesdropper.estimate()
        assert len(estimate) >= 1
        assert all(weights.dtype == np.float32 and weights.shape == (2,) for weights in estimate)


def test_each_says_its_threat_in_one_line() -> None:
    threats = [kind.threat for kind in EAVESDROPPERS.values()]  # type: ignore[attr-defined]
    assert len(set(threats)) == len(threats)
    assert all(threat and "\n" not in threat for threat in threats)


def test_what_is_possible_follows_from_the_means() -> None:
    bare = ["majority", "minority", "early-stop", "change-point", "repeat", "step-shape"]
    assert list_possible(Means()) == bare
    assert list_possible(all_means()) == list(EAVESDROPPERS)
    assert set(NEEDS) == set(EAVESDROPPERS) - set(bare)
    assert set(BY_SCHEDULE) <= set(EAVESDROPPERS)
