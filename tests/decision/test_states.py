"""What oracle states stand for: cuts, clients and examples by state."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from covertfl.decision.problem_file import parse_problem
from covertfl.decision.states import OracleStates
from covertfl.errors import InvalidInput
from tests.support.commands import QUEUE_FILE

SECTION = """
[states]
column        = "clients"
cuts          = [7.0, 12.0]
participation = [5, 9, 17]
examples      = [3442.5, 6423.8, 12155.7]
min_examples  = 6800.0
"""


@given(
    cuts=st.lists(st.integers(-20, 20), min_size=1, max_size=5, unique=True).map(sorted),
    value=st.floats(-30, 30),
)
def test_the_state_is_the_number_of_cuts_at_or_below_the_value(
    cuts: list[int], value: float
) -> None:
    states = OracleStates("quality", tuple(map(float, cuts)))
    assert states.classify(value) == sum(cut <= value for cut in cuts)
    assert states.classify([value, cuts[0]])[1] == 1
    assert states.num_states == len(cuts) + 1


def test_states_are_read_from_a_problem_file_and_written_back() -> None:
    states = parse_problem(QUEUE_FILE + SECTION, "problem.toml").states
    assert states == OracleStates(
        "clients", (7.0, 12.0), (5, 9, 17), (3442.5, 6423.8, 12155.7), 6800.0
    )
    assert states is not None and list(states.to_dict()) == re.findall(r"(?m)^(\w+) +=", SECTION)
    np.testing.assert_array_equal(states.classify([6, 7, 11, 12]), [0, 1, 1, 2])
    assert parse_problem(QUEUE_FILE, "problem.toml").states is None


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("cuts          = [7.0, 12.0]", "cuts = [7.0]", "participation must have 2 numbers"),
        ("cuts          = [7.0, 12.0]", "", r"\[states\] key cuts is missing"),
        ("cuts          = [7.0, 12.0]", "cuts = [12.0, 7.0]", "cuts must increase"),
        ("cuts          = [7.0, 12.0]", "cuts = [7.0, inf]", "finite numbers"),
        ("[5, 9, 17]", "[5, 6, 17]", r"participation\[1\] .* got 6, .* put into state 0"),
        ("[5, 9, 17]", "[5, 9]", "participation must have 3 numbers, .* got 2"),
        ("[5, 9, 17]", "[5, 9, 17.5]", r"participation\[2\] must be a whole number"),
        ("[3442.5, ", "[-1.0, ", "examples must be finite and at least 0"),
        ("6800.0", "0.0", "min_examples must be a finite number above 0"),
        ('"clients"', "3", "column must be text, got 3"),
        ("min_examples", "least_examples", "unknown key least_examples; allowed are column, cuts"),
    ],
)
def test_wrong_states_are_refused_in_a_sentence(before: str, after: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said) as caught:
        parse_problem(QUEUE_FILE + SECTION.replace(before, after), "problem.toml")
    assert str(caught.value).startswith("problem.toml: [states]")
    assert "\n" not in str(caught.value)


def test_the_number_of_states_is_the_oracles() -> None:
    with pytest.raises(InvalidInput, match=r"cuts must be 2 numbers, .* got 1"):
        parse_problem(QUEUE_FILE + "[states]\ncolumn = 'x'\ncuts = [1.0]\n", "problem.toml")


@pytest.mark.parametrize("column", ["clients", "quality"])
def test_only_states_by_clients_bind_the_participation(column: str) -> None:
    states: Any = OracleStates(column, (7.0, 12.0))
    states.check_participation([5, 9, 17])
    if column == "clients":
        with pytest.raises(InvalidInput, match="oracle state 1"):
            states.check_participation([5, 17, 17])
    else:
        states.check_participation([9, 9, 9])
