"""Cases of a test of which only some run every time; the others are for `make test-slow`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

# Whether to try what takes minutes, as `make soak` does.
IS_SOAK = os.environ.get("COVERTFL_SOAK") == "1"


def mark_slow(cases: Iterable[Any], fast: Iterable[Any]) -> list[Any]:
    """Return the cases for `parametrize`, tuples or single values, all but the fast ones slow."""
    cases, kept = list(cases), list(fast)
    assert all(case in cases for case in kept)
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if case in kept else pytest.mark.slow,
        )
        for case in cases
    ]
