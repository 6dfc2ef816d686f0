"""What attacks have in common: how many runs they try, and how they note what they got."""

from __future__ import annotations

import os
from collections.abc import Callable

from covertfl.intervals import wilson_interval


def attack_seeds() -> int:
    """Return the number of runs that a statistical attack tries; `make attack` asks for more."""
    return int(os.environ.get("COVERTFL_ATTACK_SEEDS", "60"))


def require_guess(
    record: Callable[[str, object], None], what: str, right: float, runs: int, chance: float = 0.5
) -> None:
    """Note how often an attack was right, and fail unless that is no more than a guess.

    Parameters
    ----------
    record : pytest's `record_property`
    right : right guesses in so many runs, a tie shared
    chance : of a guess; it must be inside the 99.9% interval of the share
    """
    record(what, f"{right:g} of {runs}")
    low, high = wilson_interval(right, runs, confidence=0.999)
    assert low <= chance <= high, f"{what}: right in {right:g} of {runs} runs"
