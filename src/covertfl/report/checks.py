"""The keys of result files that a report needs, and the values they may have."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any


def is_count(value: object) -> bool:
    """Return whether a value is a non-negative integer."""
    return type(value) is int and value >= 0  # type() because true is an int as well


def is_number(value: object) -> bool:
    """Return whether a value is a finite number."""
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def _is_number_or_none(value: object) -> bool:
    return value is None or is_number(value)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def _is_interval(value: object) -> bool:
    is_pair = isinstance(value, list) and len(value) == 2 and all(map(is_number, value))
    return value is None or is_pair


Checks = Mapping[str, Callable[[object], bool]]
# The keys that a report needs in each kind of record.
PUBLIC: Checks = {"round": is_count}
METRICS: Checks = {
    "round": is_count,
    "learner_score": _is_number_or_none,
    "backlog": is_count,
    "exposure": is_number,
}
ROUNDS: Checks = {
    "round": is_count,
    "oracle_state": is_count,
    "backlog": is_count,
    "learn_prob": is_number,
    "action": _is_text,
    "updated": _is_flag,
    "rejected": _is_list,
}
UPDATES: Checks = {"came": is_count, "done": is_count}
EAVESDROPPER: Checks = {
    "threat": _is_text,
    "verdict": _is_text,
    "names_true": _is_number_or_none,
    "interval": _is_interval,
    "final_accuracy": _is_number_or_none,
    "final_interval": _is_interval,
    "worst_accuracy": _is_number_or_none,
    "advantage": _is_number_or_none,
}
COALITION: Checks = {
    "names_true": _is_number_or_none,
    "interval": _is_interval,
    "final_accuracy": _is_number_or_none,
}


def find_wrong(record: Mapping[str, Any], checks: Checks) -> str | None:
    """Return the first key that is missing or has an invalid value, None if all are valid."""
    return next((key for key, is_right in checks.items() if not is_right(record.get(key))), None)
