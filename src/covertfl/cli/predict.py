"""The command `predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from covertfl.cli.options import JsonOption
from covertfl.cli.output import print_json, show_progress


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
