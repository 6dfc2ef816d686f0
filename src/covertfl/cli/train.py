"""The command `train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from covertfl.cli.options import (
    ForceOption,
    JsonOption,
    ResumeOption,
    RunFileArgument,
    check_resume_and_force,
)
from covertfl.cli.output import advise_to_resume, print_result, print_warnings, show_rounds


def train(
    run: RunFileArgument,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the run.")],
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000,
            help="Number of runs, in DIR/seed-0, DIR/seed-1 ...; without it, one run in DIR.",
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda, instead of the run file's device.")
    ] = None,
    resume: ResumeOption = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train a model covertly, as a run file describes.

    In each round clients are sent the true weights or a decoy's, as the policy decides.
    DIR/public holds what clients were sent, DIR/private what was done: never share the second.
    A run that was interrupted continues with --resume, with the same results.

    Example: covertfl train run.toml --out runs/first --seeds 10
    """
    from covertfl.api.run import TrainingResult
    from covertfl.runs.run_file import read_run
    from covertfl.training import train as train_runs

    check_resume_and_force(resume, force)
    settings = read_run(run)
    if device is not None:
        settings = settings.with_device(device)
    with advise_to_resume(), show_rounds("training") as on_round:
        summaries = train_runs(
            settings, out, seeds=seeds, resume=resume, force=force, on_round=on_round
        )
    print_warnings(summaries)
    print_result(TrainingResult(out, tuple(summaries)), as_json=as_json)
