"""What an experiment is: a name, a place in the paper, and a function from a request to a result.

A result is a plain dictionary that goes to a JSON file; tables and pictures are made from such
files alone (`reproduction_page`, `reproduction_figures`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from covertfl.errors import InvalidInput
from covertfl.experiments.trials.cells import CellStore

Reading = Literal["sound", "paper-text", "paper-code"]
Result = dict[str, Any]
MOST_SEEDS = 10_000


@dataclass(frozen=True)
class Request:
    """How an experiment is to be run.

    Parameters
    ----------
    reading : of the paper, the first part of a preset's name
    seeds : runs of each condition, None for the experiment's own number
    quick : fewer seeds and smaller models, to see that all of it works
    device : of the training, cpu or cuda
    """

    reading: Reading = "sound"
    seeds: int | None = None
    quick: bool = False
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.reading not in get_args(Reading):
            raise InvalidInput(
                f"preset must be {', '.join(get_args(Reading))}, got {self.reading!r}"
            )
        if self.seeds is not None and not 1 <= self.seeds <= MOST_SEEDS:
            raise InvalidInput(f"seeds must lie in 1..{MOST_SEEDS}, got {self.seeds}")

    def count_seeds(self, full: int, quick: int) -> int:
        """Seeds of an experiment that has `full` of them, or `quick` where it is shortened."""
        if self.seeds is not None:
            return self.seeds
        return quick if self.quick else full


def _need_nothing() -> None:
    """Some experiments need no data but those that are shipped."""


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    Parameters
    ----------
    name : on the command line
    title : on the page
    paper : where the paper has it
    run : carries it out; finished parts are taken from the store and new ones put there
    uses_gpu : whether it trains on the device that is asked for; others always use the processor
    check : raises where data are missing, before anything is computed
    """

    name: str
    title: str
    paper: str
    run: Callable[[Request, CellStore], Result]
    uses_gpu: bool = False
    check: Callable[[], None] = _need_nothing
