"""What commands print: results on standard output, remarks and progress on standard error."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from covertfl.api.result import Result
    from covertfl.runs.progress import RunProgress
    from covertfl.runs.summary import RunSummary


def print_json(content: Mapping[str, Any]) -> None:
    """Print one JSON object on one line."""
    print(json.dumps(content, allow_nan=False))


def print_remark(sentence: str) -> None:
    """Print a sentence for people to standard error."""
    print(f"covertfl: {sentence}", file=sys.stderr)


def print_warnings(summaries: Sequence[RunSummary]) -> None:
    """Print the warnings of runs to standard error, each once, with the number of runs."""
    found = Counter(warning for summary in summaries for warning in summary.warnings)
    for warning, number in found.items():
        runs = f" ({number} of {len(summaries)} runs)" if len(summaries) > 1 else ""
        print_remark(f"warning: {warning}{runs}")


def print_result(result: Result, *, as_json: bool) -> None:
    """Print a result as one JSON object or as tables."""
    if as_json:
        print_json(result.to_dict())
        return
    from covertfl.display.tables import print_tables

    print_tables(result)


@contextmanager
def show_progress(what: str) -> Iterator[Callable[[str, float], None]]:
    """Show a bar with the elapsed time on standard error, if that is a terminal.

    Yields a callback that takes a detail and the share done, 0 if the share is not known.
    """
    if not sys.stderr.isatty():
        yield lambda _detail, _share: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)

        def update(detail: str, share: float) -> None:
            total = 1.0 if share > 0.0 else None
            progress.update(task, description=f"{what}: {detail}", total=total, completed=share)

        yield update


@contextmanager
def show_rounds(what: str) -> Iterator[Callable[[RunProgress], None] | None]:
    """Show a bar for training runs with the latest round, its state and the learner's score.

    Yields a callback that takes the progress of a run, None if nothing is shown.
    """
    if not sys.stderr.isatty():
        yield None
        return
    with show_progress(what) as update:
        rounds: dict[object, tuple[int, int]] = {}

        def update_round(progress: RunProgress) -> None:
            rounds[progress.run] = (progress.round, progress.rounds)
            done, total = (sum(numbers) for numbers in zip(*rounds.values(), strict=True))
            detail = (
                f"seed {progress.seed} round {progress.round}/{progress.rounds}, "
                f"oracle {progress.oracle_state}, backlog {progress.backlog}, "
                f"exposure {progress.exposure:.0%}, learner {progress.score:.3f}"
            )
            update(detail, done / max(total, 1))

        yield update_round
