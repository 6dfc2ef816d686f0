"""Names that tables and pictures share."""

from __future__ import annotations


def name_state(state: int, num_states: int) -> str:
    """Return the number of an oracle state, marked if it is the worst or the best."""
    return f"{state}" + (" (worst)" if state == 0 else " (best)" if state == num_states - 1 else "")
