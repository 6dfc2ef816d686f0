"""Arrivals of one size and of several: support, indexes, draws, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from covertfl.api.problem import describe_problem
from covertfl.decision.problem import LearningCost, QueueProblem
from covertfl.decision.problem_file import build_problem, parse_problem
from covertfl.errors import InvalidInput
from covertfl.runs.run_file import format_toml
from tests.support.paper_queues import FALLING_COST, TEXT_ORACLE
from tests.support.same_problem import same_problem


def make_queue(**arrivals: Any) -> QueueProblem:
    return QueueProblem(TEXT_ORACLE, FALLING_COST, LearningCost(), limit=3.0, **arrivals)


def test_sizes_ascend_after_none() -> None:
    problem = make_queue(arrival_sizes={4: 0.25, 1: 0.5})
    assert problem.arrival_support.tolist() == [0, 1, 4]
    assert problem.arrival_probs.tolist() == [0.25, 0.5, 0.25]
    assert (problem.load, problem.largest_arrival) == (1.5, 4)


def test_one_size_is_the_same_in_both_forms() -> None:
    one, other = make_queue(arrival_sizes={4: 0.1}), make_queue(arrival_prob=0.1, arrival_size=4)
    for name in ("arrival_support", "arrival_probs"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes()
    assert one.load == other.load == 0.1 * 4


def test_a_size_that_is_not_foreseen_has_the_index_of_the_next_larger_one() -> None:
    problem = make_queue(arrival_sizes={2: 0.1, 5: 0.1})
    assert problem.index_arrivals(np.arange(8)).tolist() == [0, 1, 1, 2, 2, 2, 2, 2]
    one = make_queue(arrival_prob=0.1, arrival_size=4)
    assert one.index_arrivals(np.arange(7)).tolist() == [0, 1, 1, 1, 1, 1, 1]


def test_draws_have_the_probabilities() -> None:
    problem = make_queue(arrival_sizes={1: 0.125, 3: 0.5})
    uniforms = np.arange(16) / 16.0
    assert problem.draw_arrivals(uniforms).tolist() == [1] * 2 + [2] * 8 + [0] * 6
    certain = make_queue(arrival_sizes={1: 0.3, 2: 0.3, 3: 0.4})
    assert certain.arrival_probs[0] == 0.0
    assert certain.draw_arrivals(np.array([0.0, 0.999999999])).tolist() == [1, 3]


@pytest.mark.parametrize(
    ("arrivals", "said"),
    [
        ({}, "arrival_prob is missing: give arrival_prob and arrival_size, or arrival_sizes"),
        ({"arrival_prob": 0.1}, "arrival_size is missing: give"),
        ({"arrival_prob": 0.1, "arrival_sizes": {1: 0.1}}, "takes the place of the other two"),
        ({"arrival_sizes": {}}, "arrival_sizes must have a probability by size, got {}"),
        ({"arrival_sizes": [0.1]}, "arrival_sizes must have a probability by size"),
        ({"arrival_sizes": {0: 0.1}}, "a size in arrival_sizes must be a whole number of at least"),
        ({"arrival_sizes": {1.5: 0.1}}, "a size in arrival_sizes must be a whole number"),
        ({"arrival_sizes": {2: 0.0}}, r"arrival_sizes\.2 must lie in \(0, 1\], got 0"),
        ({"arrival_sizes": {2: "x"}}, r"arrival_sizes\.2 must lie in \(0, 1\], got 'x'"),
        ({"arrival_sizes": {1: 0.6, 2: 0.5}}, "arrival_sizes must sum to at most 1, got 1.1"),
    ],
)
def test_arrivals_that_are_none(arrivals: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        make_queue(**arrivals)


FILE = """
[oracle]
transition = [[0.8, 0.2, 0.0], [0.3, 0.5, 0.2], [0.0, 0.2, 0.8]]
success    = [0.1, 0.43, 0.95]
[cost]
privacy  = [1.8, 0.8, 0.3]
learning = { shape = "linear", scale = 0.6, by_state = [1, 0.5, 2.0] }
[queue]
arrival_sizes  = { 4 = 0.02, 1 = 0.05 }
learning_limit = 3.0
"""


def test_both_extensions_are_read_from_a_file_and_written_again() -> None:
    problem = parse_problem(FILE, "file").problem
    assert isinstance(problem, QueueProblem)
    assert problem.arrival_sizes == {1: 0.05, 4: 0.02}
    assert problem.learning_cost.by_state == (1.0, 0.5, 2.0)
    again = parse_problem(format_toml(describe_problem(problem)), "again").problem
    assert same_problem(problem, again)
    assert same_problem(problem, build_problem(describe_problem(problem), "sections").problem)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("4 =", "x ="), "[queue] a size in arrival_sizes must be a whole number in 1.."),
        (("4 =", "0 ="), "[queue] a size in arrival_sizes must be a whole number in 1.."),
        (("4 =", "99999999999 ="), "[queue] a size in arrival_sizes must be"),
        (("{ 4 = 0.02, 1 = 0.05 }", "0.1"), "[queue] arrival_sizes must be a table of"),
        (("0.02", '"a"'), "[queue] arrival_sizes.'4' must be a number, got 'a'"),
        (("0.02", "0.96"), "[queue] arrival_sizes must sum to at most 1"),
        (("learning_limit", "arrival_prob = 0.1\nlearning_limit"), "[queue] arrival_sizes takes"),
        (("[1, 0.5, 2.0]", "[1, 2]"), "[cost] learning.by_state must have one factor for each"),
        (("[1, 0.5, 2.0]", "[1, -2, 1]"), "[cost] learning.by_state[1] must be a finite number"),
        (("[1, 0.5, 2.0]", "[[1], [1], [1]]"), "[cost] learning.by_state[0] must be a number"),
        (("[1, 0.5, 2.0]", "2"), "[cost] learning.by_state must be a list, got 2"),
    ],
)
def test_mistakes_in_a_file_are_named(wrong: tuple[str, str], said: str) -> None:
    assert wrong[0] in FILE
    with pytest.raises(InvalidInput) as caught:
        parse_problem(FILE.replace(*wrong), "p.toml")
    assert str(caught.value).startswith(f"p.toml: {said}")


def test_a_horizon_has_no_cost_by_state() -> None:
    text = FILE[: FILE.index("[queue]")] + "[horizon]\nrounds = 9\nupdates = 2\n"
    with pytest.raises(InvalidInput, match=r"\[cost\] learning.by_state is for queue problems"):
        parse_problem(text, "p.toml")
