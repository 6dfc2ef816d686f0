"""What oracle states stand for: cuts, clients and examples by state."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from covertfl.decision.states import OracleStates
from covertfl.errors import InvalidInput


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


@pytest.mark.parametrize("column", ["clients", "quality"])
def test_only_states_by_clients_bind_the_participation(column: str) -> None:
    states: Any = OracleStates(column, (7.0, 12.0))
    states.check_participation([5, 9, 17])
    if column == "clients":
        with pytest.raises(InvalidInput, match="oracle state 1"):
            states.check_participation([5, 17, 17])
    else:
        states.check_participation([9, 9, 9])
