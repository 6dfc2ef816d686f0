"""Cases of a test of which only some run every time; the others are for `make test-slow`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def mark_slow(cases: Iterable[tuple[Any, ...]], fast: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Return the cases for `parametrize`, all but the fast ones marked as slow."""
    kept = list(fast)
    return [pytest.param(*case, marks=() if case in kept else pytest.mark.slow) for case in cases]
