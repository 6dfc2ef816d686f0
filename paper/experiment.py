"""What an experiment is: a name, a place in the paper, and a function from a request to a result.

A result is a dictionary that is written to a JSON file; tables and pictures are made from these
files alone (`paper.page`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from covertfl.decision.problem import QueueProblem
from covertfl.decision.problem_file import read_preset
from covertfl.errors import InvalidInput
from paper.cells import CellStore

Reading = Literal["sound", "paper-text", "paper-code"]
ResultDict = dict[str, Any]
MOST_SEEDS = 10_000
LAST_SEED = 2**31


@dataclass(frozen=True)
class Request:
    """The options of an experiment.

    Parameters
    ----------
    reading : of the paper, the first part of a preset's name
    seeds : number of runs for each condition, None for the experiment's own number
    quick : use fewer seeds and smaller models, as a check that everything runs
    device : of the training, cpu or cuda
    first_seed : the runs have the seeds first_seed, first_seed + 1, ...
    """

    reading: Reading = "sound"
    seeds: int | None = None
    quick: bool = False
    device: str = "cpu"
    first_seed: int = 0

    def __post_init__(self) -> None:
        if self.reading not in get_args(Reading):
            raise InvalidInput(
                f"preset must be one of {', '.join(get_args(Reading))}, got {self.reading!r}"
            )
        if self.seeds is not None and not 1 <= self.seeds <= MOST_SEEDS:
            raise InvalidInput(f"seeds must lie in 1..{MOST_SEEDS}, got {self.seeds}")
        if not 0 <= self.first_seed <= LAST_SEED:
            raise InvalidInput(f"first_seed must lie in 0..{LAST_SEED}, got {self.first_seed}")

    def count_seeds(self, full: int, quick: int) -> int:
        """Return the number of seeds: as requested, `quick` in the short form, or `full`."""
        if self.seeds is not None:
            return self.seeds
        return quick if self.quick else full

    def list_seeds(self, full: int, quick: int) -> range:
        """Return the seeds of the runs, as many as `count_seeds` says."""
        return range(self.first_seed, self.first_seed + self.count_seeds(full, quick))


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    Parameters
    ----------
    name, title, paper : on the command line, on the page, and where the paper has it
    run : compute the result; stored parts are read from the store and new ones written to it
    uses_gpu : whether it trains on the requested device; others always use the CPU
    seeds : numbers of seeds in full and in the short form, None if its runs are not numbered
    check : load data, before anything is computed, or raise if it is missing; None if all is in the
        package
    """

    name: str
    title: str
    paper: str
    run: Callable[[Request, CellStore], ResultDict]
    uses_gpu: bool = False
    seeds: tuple[int, int] | None = None
    check: Callable[[], None] | None = None


def load_queue(name: str) -> QueueProblem:
    """Load a queue preset."""
    problem = read_preset(name).problem
    assert isinstance(problem, QueueProblem)
    return problem
