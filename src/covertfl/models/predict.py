"""Files of inputs, scored by an exported model."""

from __future__ import annotations

import os

from covertfl.errors import InvalidInput
from covertfl.files.table import Table, read_table, require_suffix, write_table
from covertfl.models.load import Model, OnProgress, Predictions, load_model
from covertfl.tasks.embeddings import read_features
from covertfl.tasks.text_file import read_texts

ADDED = ("label", "score")
VECTORS = ".npz"


def predict_file(
    model: str | os.PathLike[str],
    inputs: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    text_column: str | None = None,
    prefix: str = "",
    on_progress: OnProgress | None = None,
) -> Predictions:
    """Score a file and write its columns, then `label` and `score`.

    Parameters
    ----------
    model : file that `covertfl export` wrote
    inputs : .csv, .tsv or .parquet file with texts, or .npz file with `features`; labels are not
        needed
    output : .csv, .tsv or .parquet file; `label` is the name of a class and `score` its probability
    text_column : column of the texts; None for the one that the model was trained on or, if the
        file does not have it, the only column with texts
    prefix : put in front of the names of the two columns

    Raises
    ------
    InvalidInput
        if a file is not valid, or does not fit the model
    Missing
        if a dependency is missing
    """
    require_suffix(output)
    loaded, name = load_model(model), os.fspath(inputs)
    if require_suffix(name, VECTORS) == VECTORS:
        if text_column is not None:
            raise InvalidInput(f"{name} holds vectors and no column {text_column}")
        features = read_features(name)
        table, found = Table(name, (), (), ()), loaded.predict(features, on_progress=on_progress)
    else:
        table = read_table(name)
        _require_new_columns(table, [prefix + column for column in ADDED])
        column = text_column or find_text_column(table, loaded)
        found = loaded.predict(read_texts(table, column), on_progress=on_progress)
    added = {prefix + "label": found.labels, prefix + "score": found.scores.tolist()}
    write_table(output, table, added)
    return found


def find_text_column(table: Table, model: Model) -> str:
    """Return the column of a table that holds the texts for a model.

    It is the one that the model was trained on or, if the table does not have it, the only one with
    a cell that is neither empty nor a number.

    Raises
    ------
    InvalidInput
        if there is no such column, or more than one
    """
    trained = None if model.encoder is None else model.encoder.text_column
    if trained in table.header and trained is not None:
        return trained
    found = [name for name in table.header if any(map(_is_text, table.find(name)))]
    if len(found) == 1 or len(table.header) == 1:
        return (*found, *table.header)[0]
    raise InvalidInput(
        f"{table.path}: choose the column of the texts with --text, one of "
        f"{', '.join(found or table.header)}"
    )


def _is_text(cell: object) -> bool:
    if not isinstance(cell, str) or not cell.strip():
        return False
    try:
        float(cell)
    except ValueError:
        return True
    return False


def _require_new_columns(table: Table, added: list[str]) -> None:
    """Raise InvalidInput if a table has a column with the name of one that is to be added."""
    for name in added:
        if name in table.header:
            raise InvalidInput(
                f"{table.path} has a column {name} already: choose other names for the columns to "
                "be added, with a prefix such as --prefix predicted_"
            )
