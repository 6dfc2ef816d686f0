"""The command `embed`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from covertfl.cli.options import JsonOption
from covertfl.cli.output import print_json, show_progress


def embed(
    texts: Annotated[Path, typer.Argument(metavar="FILE", help="Texts, .csv or .parquet.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="OUT.NPZ", help="Write vectors to this file.")
    ],
    text: Annotated[str, typer.Option(metavar="COLUMN", help="Column of the texts.")] = "text",
    label: Annotated[str, typer.Option(metavar="COLUMN", help="Column of the labels.")] = "label",
    as_json: JsonOption = False,
) -> None:
    """Turn labelled texts into vectors to train on.

    FILE is a .csv or .parquet file.  A run file with task = "embeddings" trains on the vectors.

    Example: covertfl embed comments.csv -o mine.npz --text comment --label toxic
    """
    from covertfl.tasks.text import write_embeddings

    with show_progress("embedding") as on_progress:
        read = write_embeddings(texts, output, text, label, on_progress=on_progress)
    counts = {name: int((read.labels == number).sum()) for number, name in enumerate(read.classes)}
    if as_json:
        print_json({"output": str(output), "rows": len(read.labels), "classes": counts})
    else:
        classes = ", ".join(f"{count:,} of class {name}" for name, count in counts.items())
        print(f"{output}: {len(read.labels):,} texts as vectors; {classes}")
