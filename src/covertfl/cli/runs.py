"""Commands on runs and their data: `train`, `federation`, `export`, `predict` and `embed`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from covertfl.cli.terminal import (
    CommandGroup,
    ForceOption,
    JsonOption,
    ResumeOption,
    RunFileArgument,
    advise_to_resume,
    check_resume_and_force,
    print_json,
    print_result,
    print_warnings,
    show_progress,
    show_rounds,
)


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
    from covertfl.runs.settings import read_run
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


federation = typer.Typer(
    cls=CommandGroup,
    help="Make and keep what belongs to a federation, not to a single run.",
    no_args_is_help=True,
)


@federation.callback()
def _group() -> None:
    pass


@federation.command()
def init(
    run: Annotated[Path, typer.Argument(metavar="RUN.TOML", help="A run file of the federation.")],
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Write the federation's secret to this file."
        ),
    ] = Path("federation.json"),
    as_json: JsonOption = False,
) -> None:
    """Make the secret of a federation, for a scheme that has one.

    All runs over the same clients must use the same secret, or a second run gives the true models
    of both away.  Name the file in the run file, [federation] secret, and keep it on the server:
    only its owner may read it.  An existing file is never replaced.

    Example: covertfl federation init run.toml -o federation.json
    """
    from covertfl.runs.settings import read_run
    from covertfl.runs.train import find_task, naming_run_file, require_torch

    require_torch()
    settings = read_run(run)
    task = find_task(settings)
    with naming_run_file(settings):
        trajectories = settings.scheme.write_secret(str(output), task)
    if as_json:
        print_json({"output": str(output), "trajectories": trajectories})
    else:
        print(
            f"{output}: flips for up to {trajectories} trajectories.  Keep it for all runs of this "
            f'federation: [federation] secret = "{output}".'
        )
        if settings.sections.data.seed is None:
            print(
                f"Set [data] seed = {settings.seed}, too: it keeps who holds what in a simulated "
                "federation while `seed` varies the run."
            )


def export(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run.")],
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="MODEL.SAFETENSORS", help="Write the model to this file."
        ),
    ],
    version: Annotated[
        int | None,
        typer.Option(min=0, help="Of a service: the version to export, not its latest state."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the true model of a run to a file.

    The file says all that is needed to use the model: architecture, encoder of texts,
    standardisation, classes, threshold and results.  A model card in Markdown is written beside it.
    `covertfl predict` uses the model.  Hand it over on a channel that no client can read: sent
    through the federation, it would reveal at once what the whole run has hidden.

    Example: covertfl export runs/first -o model.safetensors
    """
    from covertfl.models.export import export_model

    exported = export_model(run, output, version=version)
    if as_json:
        print_json(exported.to_dict())
    else:
        print(
            f"{output}: the true weights after {exported.rounds} rounds and "
            f"{exported.updates_done} updates; {exported.card}: the model card.  "
            "Keep both off the channel that clients can read."
        )


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model that export wrote.")],
    inputs: Annotated[
        Path,
        typer.Argument(metavar="INPUT", help="Texts, .csv, .tsv or .parquet; or vectors, .npz."),
    ],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="SCORED.CSV", help="Write the scored rows here."),
    ],
    text: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Column of the texts.",
            show_default="the one trained on, or the only one with texts",
        ),
    ] = None,
    prefix: Annotated[
        str, typer.Option(help="Put before the names of the added columns, label and score.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Classify texts or vectors with an exported model.

    INPUT needs no labels.  The output, .csv, .tsv or .parquet, has the columns of INPUT and then
    label, the name of the class, and score, the probability of that class.

    Example: covertfl predict model.safetensors texts.csv -o scored.csv
    """
    from covertfl.models.predict import predict_file

    with show_progress("predicting") as on_progress:
        found = predict_file(
            model, inputs, output, text_column=text, prefix=prefix, on_progress=on_progress
        )
    if as_json:
        print_json({"output": str(output), "rows": len(found.labels), "classes": found.count()})
    else:
        classes = ", ".join(f"{count:,} of class {name}" for name, count in found.count().items())
        print(f"{output}: {len(found.labels):,} rows; {classes}")


def embed(
    texts: Annotated[Path, typer.Argument(metavar="FILE", help="Texts, .csv, .tsv or .parquet.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="OUT.NPZ", help="Write vectors to this file.")
    ],
    text: Annotated[str, typer.Option(metavar="COLUMN", help="Column of the texts.")] = "text",
    label: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="Column of the labels; without it, texts have no labels."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Turn texts into vectors to train on or to predict from.

    A run file with task = "embeddings" trains on the vectors of labelled texts.  Classes keep their
    names.  Texts without labels become vectors that `covertfl predict` takes.

    Example: covertfl embed comments.csv -o mine.npz --text comment --label toxic
    """
    from covertfl.tasks.text import write_embeddings

    with show_progress("embedding") as on_progress:
        read = write_embeddings(texts, output, text, label, on_progress=on_progress)
    counts = {name: int((read.labels == number).sum()) for number, name in enumerate(read.classes)}
    if as_json:
        print_json({"output": str(output), "rows": len(read.texts), "classes": counts})
    else:
        classes = ", ".join(f"{count:,} of class {name}" for name, count in counts.items())
        found = classes or "without labels (--label COLUMN reads them)"
        print(f"{output}: {len(read.texts):,} texts as vectors; {found}")
