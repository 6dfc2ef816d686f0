"""`fit`: the oracle behind a log of past rounds, and the problem that it makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from covertfl.api.result import Result
from covertfl.decision.arguments import Source, read_callback, read_count, read_path
from covertfl.decision.oracle import Oracle
from covertfl.decision.problem_file import LoadedProblem, parse_problem
from covertfl.files.disk import write_atomically
from covertfl.fitting.log import Gaps, ParticipationLog, read_log
from covertfl.fitting.oracle import FittedOracle, fit_oracle
from covertfl.fitting.policy import LogPolicy, search_on_log
from covertfl.fitting.problem import format_problem

if TYPE_CHECKING:
    from rich.console import RenderableType

ROUNDS, UPDATES = 45, 16


@dataclass(frozen=True, eq=False, repr=False)
class Fit(Result):
    """An oracle fitted to a log, with 95% intervals.

    Parameters
    ----------
    details : estimates, counts and intervals
    """

    details: FittedOracle

    @property
    def oracle(self) -> Oracle:
        """Return the fitted oracle."""
        return self.details.oracle

    @property
    def cuts(self) -> tuple[float, ...]:
        """Return the values at which a better state begins."""
        return self.details.cuts

    def format_problem(self, *, rounds: int = ROUNDS, updates: int = UPDATES) -> str:
        """Return a problem file: a queue where updates arrive in the log, else a horizon."""
        numbers = {
            "rounds": read_count(rounds, "rounds"),
            "updates": read_count(updates, "updates"),
        }
        return format_problem(self.details, **numbers)

    def make_problem(self, *, rounds: int = ROUNDS, updates: int = UPDATES) -> LoadedProblem:
        """Return the problem with the evidence behind it, for `plan` and `solve`."""
        return parse_problem(self.format_problem(rounds=rounds, updates=updates), "fit")

    def save_problem(self, path: Source, *, rounds: int = ROUNDS, updates: int = UPDATES) -> None:
        """Write the problem file."""
        content = self.format_problem(rounds=rounds, updates=updates)
        write_atomically(read_path(path, "path"), content)

    def search_policy(
        self,
        *,
        seed: int = 0,
        iterations: int = 2000,
        rounds: int = ROUNDS,
        updates: int = UPDATES,
        on_progress: Callable[[str, float], None] | None = None,
    ) -> LogPolicy:
        """Search a policy on the recorded rounds themselves (Algorithm 1).

        The fitted probabilities are not used by the search, only to judge its result.
        """
        return search_on_log(
            self.details,
            seed=read_count(seed, "seed", least=0),
            iterations=read_count(iterations, "iterations"),
            rounds=read_count(rounds, "rounds"),
            updates=read_count(updates, "updates"),
            on_progress=read_callback(on_progress, "on_progress"),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return what `covertfl fit --json` prints."""
        from covertfl.display.as_json import describe_fit

        return describe_fit(self.details)

    def _facts(self) -> Mapping[str, str]:
        return {
            "rounds": str(self.details.num_rounds),
            "states": f"{self.oracle.num_states} by {self.details.column}",
            "success": " ".join(f"{prob:.3f}" for prob in self.oracle.success),
        }

    def __rich__(self) -> RenderableType:
        from covertfl.display.plan_tables import render_fit

        return render_fit(self.details)


def fit(
    log: Source | ParticipationLog,
    *,
    states: int | None = None,
    cuts: Sequence[float] | None = None,
    column: str = "clients",
    min_examples: float | None = None,
    gaps: Gaps = "refuse",
) -> Fit:
    """Return the oracle that a participation log shows, with 95% intervals (formula F11).

    Parameters
    ----------
    log : the path of a CSV file with columns round, clients, examples and, where known, success
        and arrival; or a log that was read before
    states : number of states, formed by quantiles; 3 where neither this nor `cuts` is given
    cuts : values at which a better state begins, rising
    column : numeric column that forms the states
    min_examples : examples from which a round is a success, for a log without that column
    gaps : skip to leave out missing rounds and blank cells, which are otherwise refused

    Raises
    ------
    InvalidInput
        if the log cannot be read or does not show an oracle
    """
    read = log if isinstance(log, ParticipationLog) else read_log(read_path(log, "log"), gaps=gaps)
    return Fit(
        fit_oracle(read, column=column, num_states=states, cuts=cuts, min_examples=min_examples)
    )
