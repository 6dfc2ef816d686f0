"""The threat model in types: an eavesdropper is given queries and means, and nothing else."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

import covertfl as cf
from covertfl import eavesdroppers
from covertfl.eavesdroppers.registry import BY_SCHEDULE, find_class, list_possible
from tests.support.seen_queries import (
    EAVESDROPPERS,
    KnownScheme,
    Means,
    Rehearsed,
    SeenQuery,
    listen,
    make_eavesdropper,
    make_line_means,
    make_queries,
    vector,
)
from tests.test_architecture import find_imports, package_of, source_files

FOLDER = Path(eavesdroppers.__path__[0])
# Packages that hold, write or read the learner's side of a run; of these, only `runs.public` is
# restricted to what clients were sent.
PRIVATE_PACKAGES = {"runs", "engines", "training", "auditing", "cli"}
PUBLIC_MODULES = {"runs.public"}
NEEDS = {name: needs for name in EAVESDROPPERS if (needs := find_class(name).needs)}


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


def test_a_query_holds_only_what_was_sent() -> None:
    fields = {field.name for field in dataclasses.fields(SeenQuery)}
    assert fields == {"round", "trajectory", "weights", "moved"}


def find_reach(module: str) -> set[str]:
    """Return all modules that a module imports, directly or not."""
    files, waiting = source_files(), [module]
    reached: set[str] = set()
    while waiting:
        for found in find_imports(files[waiting.pop()]) - reached:
            reached.add(found)
            waiting.append(found)
    return reached


def find_private(module: str) -> set[str]:
    """Return the modules on the learner's side that a module imports, directly or not."""
    reached = find_reach(module) - PUBLIC_MODULES
    return {name for name in reached if package_of(name) in PRIVATE_PACKAGES}


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda file: file.stem)
def test_no_way_leads_to_private_records(file: Path) -> None:
    name = "eavesdroppers" if file.stem == "__init__" else f"eavesdroppers.{file.stem}"
    assert not find_private(name)
    used = {node.id for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Name)}
    assert not used & {"open", "Path", "os", "eval", "exec", "__import__"}


def test_the_check_finds_private_modules_behind_others() -> None:
    private = find_private("training")
    assert {package_of(name) for name in private} >= {"runs", "engines"}
    assert not private <= find_imports(source_files()["training"])


def test_the_check_knows_every_package() -> None:
    """A private package that was renamed must not drop out of the check unnoticed."""
    assert {package_of(name) for name in source_files()} >= PRIVATE_PACKAGES


@cache
def all_means() -> Means:
    problem = cf.load_problem("sound/main")
    scheme = KnownScheme(problem, cf.solve(problem).policy)
    means = make_line_means()
    names = ("step-shape: length", "validation: last loss", "alignment: cosine")
    drawn = np.random.default_rng(0).standard_normal((6, 3, 3))
    return dataclasses.replace(
        means,
        scheme=scheme,
        pivot="weight",
        axes=np.eye(1),
        fresh=means.data,
        mark=vector(0.6, 0.8),
        other_run=make_queries([(0, (0.0, 0.0)), (0, (1.0, 0.0))]),
        rehearsed=Rehearsed(drawn, np.arange(6) % 3, names),
    )


@pytest.mark.parametrize("name", EAVESDROPPERS)
def test_beliefs_are_probabilities_and_every_round_has_an_estimate(name: str) -> None:
    generator = np.random.default_rng(3)
    sent = [(0, (1.0, 0.0)), (1, (30.0, 1.0)), (2, (-30.0, 2.0))]
    latest = {number: np.array(weights) for number, weights in sent}
    for _ in range(12):
        number = int(generator.integers(3))
        latest[number] = latest[number] + generator.integers(0, 2, size=2)
        sent.append((number, tuple(latest[number].tolist())))
    eavesdropper = make_eavesdropper(name, all_means())
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
    bare += ["rounding"]
    assert list_possible(Means()) == bare
    assert list_possible(all_means()) == list(EAVESDROPPERS)
    assert set(NEEDS) == set(EAVESDROPPERS) - set(bare)
    assert set(BY_SCHEDULE) <= set(EAVESDROPPERS)


def test_each_has_its_tier() -> None:
    tiers = {name: kind.tier for name, kind in EAVESDROPPERS.items()}  # type: ignore[attr-defined]
    assert {name for name, tier in tiers.items() if tier == "D"} == {
        "fresh-labels",
        "fresh-labels-5",
        "fresh-labels-100",
        "unlabelled",
    }
    for name, tier in tiers.items():
        needs = set(NEEDS.get(name, ()))
        assert ("fresh" in needs) == (tier == "D")
        assert not needs & {"data", "reply", "mark"} or tier in "BC"
        if needs & {"reply", "mark"}:
            assert tier == "C"


@pytest.mark.parametrize("name", NEEDS)
def test_what_is_missing_is_said_in_a_sentence(name: str) -> None:
    with pytest.raises(cf.InvalidInput, match=r"needs .*, got none$"):
        make_eavesdropper(name, Means())


def test_the_sentence_names_all_that_is_missing() -> None:
    with pytest.raises(cf.InvalidInput, match="FreshLabels needs a model and examples that the le"):
        make_eavesdropper("fresh-labels", Means())


@pytest.mark.parametrize("name", EAVESDROPPERS)
def test_figures_have_one_number_for_each_trajectory(name: str) -> None:
    sent = [(0, (1.0, 0.0)), (1, (9.0, 1.0)), (0, (2.0, 0.0))]
    for number in range(1, len(sent) + 1):
        eavesdropper = listen(name, make_queries(sent[:number]), all_means())
        for figure, values in eavesdropper.figures().items():
            assert values.shape == (min(number, 2),), figure
            assert np.all(np.isfinite(values)), figure
