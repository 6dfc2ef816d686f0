"""`cf.fit` and what it returns."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import pytest

import covertfl as cf

LOG = str(resources.files("covertfl") / "data" / "participation.csv")


@pytest.fixture(scope="module")
def fitted() -> cf.Fit:
    return cf.fit(LOG, min_examples=6800)


def test_a_log_becomes_an_oracle(fitted: cf.Fit) -> None:
    assert fitted.oracle.num_states == 3 and len(fitted.cuts) == 2
    described = fitted.to_dict()
    assert described["success"] == fitted.oracle.success.tolist()
    assert "600" in repr(fitted) and "<table>" in fitted._repr_html_()


def test_the_fitted_problem_is_the_written_one(fitted: cf.Fit, tmp_path: Path) -> None:
    file = tmp_path / "problem.toml"
    fitted.save_problem(str(file))
    assert file.read_text() == fitted.format_problem()
    assert cf.solve(fitted.make_problem()).cost == cf.solve(file).cost
    assert cf.plan(fitted.make_problem()).to_dict() == cf.plan(file).to_dict()


def test_a_policy_is_searched_on_the_rounds(fitted: cf.Fit) -> None:
    found = fitted.search_policy(iterations=20)
    assert found.policy.table.min() >= 0.0 and found.policy.table.max() <= 1.0


@pytest.mark.parametrize(
    ("arguments", "options", "sentence"),
    [
        ((5,), {}, "log must be a path"),
        ((LOG,), {}, "min.examples"),
        ((LOG,), {"min_examples": 6800, "states": 1}, "states"),
        ((LOG,), {"min_examples": 6800, "column": "weather"}, "weather"),
    ],
)
def test_wrong_arguments_are_refused_in_a_sentence(
    arguments: Any, options: Any, sentence: str
) -> None:
    with pytest.raises(cf.InvalidInput, match=sentence):
        cf.fit(*arguments, **options)
