"""The command `embed`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from covertfl.cli.options import JsonOption
from covertfl.cli.output import print_json, show_progress


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
