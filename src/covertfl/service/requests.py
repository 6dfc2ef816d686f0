"""Requests for retraining: what a user asks for, checked.

A request is a task of the queue with content.  `purge` takes rows or clients out of the training
data, `context` gives a client new rows, `shift` updates the model on what clients hold now, and
`rollback` returns to a version.  Each owes a number of updates, or as many as it takes until the
validation loss no longer improves.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import io
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from covertfl.arrays import FloatArray, IntArray
from covertfl.errors import InvalidInput
from covertfl.files.text import describe_unknown_keys, parse_json, shorten

Kind = Literal["purge", "context", "shift", "rollback"]
State = Literal["waiting", "serving", "done", "cancelled"]
# Most updates of a request, and of one that ends by its loss and does not say.
MOST_UPDATES, MOST_BY_LOSS = 1_000_000, 1_000
MOST_ROWS = 1_000_000
MOST_TEXT = 1_000
MOST_BYTES = 2**28  # of a context's arrays, unpacked
# What numpy and zipfile raise for files that are damaged, encrypted, or packed in another way.
BROKEN = (
    *(OSError, EOFError, ValueError, KeyError, RuntimeError, MemoryError),
    *(binascii.Error, struct.error, zipfile.BadZipFile, zlib.error),
)

Number = Annotated[int, Field(ge=0, le=2**53)]
Text = Annotated[str, Field(max_length=MOST_TEXT)]
# What each key allows, for messages.
ALLOWED = {
    "kind": "one of purge, context, shift, rollback",
    "updates": f"a whole number in 1..{MOST_UPDATES}",
    "patience": f"a whole number in 1..{MOST_UPDATES}",
    "note": f"text of at most {MOST_TEXT} characters",
    "due": "a date such as 2026-12-01",
    "key": f"text of 1 to {MOST_TEXT} characters",
    "restart": "true or false",
    "rows": f"a list of 1 to {MOST_ROWS} row numbers",
    "clients": "a list of client numbers",
    "exact": "true or false",
    "client": "the number of a client",
    "replace": "true or false",
    "data": "an .npz file in base64",
    "version": "the number of a version",
}
# Keys that only one kind of request has.
OWN_KEYS: Mapping[str, Kind] = {
    **dict.fromkeys(("rows", "clients", "exact"), "purge"),
    **dict.fromkeys(("client", "replace", "data"), "context"),
    "version": "rollback",
}


class RequestBody(BaseModel):
    """The JSON object that asks for a request.

    Parameters
    ----------
    updates : updates that are owed; with `patience` the most there may be
    patience : ends when the validation loss has not improved for so many updates
    due : date, in the service's time zone
    key : makes a repeated request harmless: the same key and body are the same request
    restart : whether the server's optimizer (FedSGD) starts anew with this task
    rows, clients, exact : of a purge, see `replay` for an exact one
    client, replace, data : of a context: whose rows, whether they replace all it has, and an .npz
        file with `features` and `labels` in base64
    version : that a rollback returns to
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    kind: Kind
    updates: Annotated[int, Field(ge=0, le=MOST_UPDATES)] | None = None
    patience: Annotated[int, Field(ge=1, le=MOST_UPDATES)] | None = None
    note: Text = ""
    due: str | None = None
    key: Annotated[str, Field(min_length=1, max_length=MOST_TEXT)] | None = None
    restart: bool = False
    rows: Annotated[list[Number], Field(max_length=MOST_ROWS)] = Field(default_factory=list)
    clients: Annotated[list[Number], Field(max_length=MOST_ROWS)] = Field(default_factory=list)
    exact: bool = False
    client: Number | None = None
    replace: bool = False
    data: str | None = None
    version: Number | None = None

    @property
    def size(self) -> int:
        """Updates that the request owes at most."""
        if self.updates is not None:
            return self.updates
        return MOST_BY_LOSS if self.patience is not None else 0


@dataclass(frozen=True)
class Limits:
    """What requests of one service may name.

    Parameters
    ----------
    clients : number of clients
    rows : number of rows in the training data, those of contexts included
    changes_data : whether the service holds the clients' data; on Flower they hold it themselves
    rolls_back : whether all that a rollback restores is the service's own
    shape : of one example's features
    classes : names of the classes
    has_loss : whether there are validation data to end a task by
    """

    clients: int
    rows: int
    changes_data: bool
    rolls_back: bool = True
    shape: tuple[int, ...] = ()
    classes: tuple[str, ...] = ()
    has_loss: bool = True


def parse_request(content: bytes | str) -> RequestBody:
    """Return the request that a JSON object describes.

    Raises
    ------
    InvalidInput
        naming the key, what is allowed and what came
    """
    found = parse_json(content, "the body")
    if not isinstance(found, dict):
        raise InvalidInput(f"the body must be a JSON object, got {shorten(found)}")
    try:
        body = RequestBody.model_validate(found)
    except ValidationError as error:
        raise InvalidInput(_describe(error, found)) from error
    _check_keys(body, found)
    _check_size(body)
    if body.due is not None:
        _check_due(body.due)
    return body


def _describe(error: ValidationError, content: Mapping[str, Any]) -> str:
    unknown = [found["loc"] for found in error.errors() if found["type"] == "extra_forbidden"]
    if unknown:
        return describe_unknown_keys(unknown, lambda _: list(RequestBody.model_fields))
    location = error.errors()[0]["loc"]
    if not location:
        return f"the body must have keys of valid text, allowed are {', '.join(ALLOWED)}"
    key = str(location[0])
    if key not in content:
        return f"{key} is missing; it must be {ALLOWED[key]}"
    return f"{key} must be {ALLOWED[key]}, got {shorten(content[key])}"


def _check_keys(body: RequestBody, given: Mapping[str, Any]) -> None:
    """Refuse keys of another kind, and a request without what its kind needs."""
    for key, kind in OWN_KEYS.items():
        if key in given and given[key] is not None and body.kind != kind:
            raise InvalidInput(f"{key} is for kind {kind}, got kind {body.kind}")
    if body.kind == "purge" and not (body.rows or body.clients):
        raise InvalidInput("a purge needs rows or clients, got neither")
    if body.kind == "context":
        for key in ("client", "data"):
            if getattr(body, key) is None:
                raise InvalidInput(f"{key} is missing; it must be {ALLOWED[key]}")
    if body.kind == "rollback" and body.version is None:
        raise InvalidInput(f"version is missing; it must be {ALLOWED['version']}")


def _check_size(body: RequestBody) -> None:
    if body.kind == "rollback":
        return
    if body.updates is None and body.patience is None:
        raise InvalidInput(
            f"updates is missing; it must be {ALLOWED['updates']}, or give patience to end by the "
            "validation loss"
        )
    if body.updates == 0:
        raise InvalidInput(f"updates must be {ALLOWED['updates']}, got 0")


def _check_due(due: str) -> None:
    try:
        datetime.date.fromisoformat(due)
    except ValueError as error:
        raise InvalidInput(f"due must be {ALLOWED['due']}, got {shorten(due)}") from error


def check_request(body: RequestBody, limits: Limits) -> None:
    """Raise InvalidInput if a request names what the service does not have or cannot change."""
    for key, values, most in (
        ("rows", body.rows, limits.rows),
        ("clients", body.clients, limits.clients),
        ("client", [] if body.client is None else [body.client], limits.clients),
    ):
        if values and max(values) >= most:
            raise InvalidInput(f"{key} must lie in 0..{most - 1}, got {max(values)}")
    if not limits.changes_data and (body.rows or body.exact or body.kind == "context"):
        raise InvalidInput(
            "clients on Flower hold their own data: change it there and ask for a shift, or purge "
            f"whole clients, got kind {body.kind}{' with exact' * body.exact}"
        )
    if body.patience is not None and not limits.has_loss:
        raise InvalidInput("patience needs validation data, and this service has none")
    if not limits.rolls_back and body.kind == "rollback":
        raise InvalidInput(
            "a strategy of your own keeps a state that versions do not hold, so kind must be "
            "purge, context or shift, got rollback"
        )
    if body.kind == "context":
        read_examples(body.data or "", limits)


def read_examples(data: str, limits: Limits) -> tuple[FloatArray, IntArray]:
    """Return features (n, ...) and class numbers (n,) of an .npz file in base64.

    Raises
    ------
    InvalidInput
        if it is not such a file, its features have another shape or are not finite, or it has
        labels that the task does not know
    """
    arrays = _load(data, ("features", "labels"), ("classes",))
    features, labels = arrays["features"], arrays["labels"]
    if features.shape[1:] != limits.shape or not len(features):
        shape = ", ".join(map(str, ("n", *limits.shape)))
        raise InvalidInput(f"data: features must have shape ({shape}), got {features.shape}")
    if features.dtype.kind not in "fiub" or not np.isfinite(features).all():
        raise InvalidInput("data: features must be finite numbers")
    if labels.shape != features.shape[:1]:
        raise InvalidInput(f"data: labels must have shape ({len(features)},), got {labels.shape}")
    return features.astype(np.float64), _find_classes(labels, arrays.get("classes"), limits.classes)


def count_rows(body: RequestBody) -> int | None:
    """Return how many rows a request takes out or brings, None if it is about none."""
    if body.kind == "purge":
        return len(body.rows)
    return len(_load(body.data or "", ("labels",))["labels"]) if body.kind == "context" else None


def _load(
    data: str, wanted: tuple[str, ...], further: tuple[str, ...] = ()
) -> dict[str, npt.NDArray[Any]]:
    """Return the wanted arrays of an .npz file in base64, and further ones that it may have."""
    try:
        archive = np.load(io.BytesIO(base64.b64decode(data, validate=True)), allow_pickle=False)
        names = list(getattr(archive, "files", []))
        _check_unpacked(archive, names)
        arrays = {name: archive[name] for name in (*wanted, *further) if name in names}
    except InvalidInput:
        raise
    except BROKEN as error:
        raise InvalidInput(f"data must be {ALLOWED['data']}: {error}") from error
    if not set(wanted) <= set(arrays):
        came = ", ".join(names) or "none with a name"
        raise InvalidInput(f"data must hold the arrays features and labels, got {came}")
    return arrays


def _find_classes(
    labels: npt.NDArray[Any], names: npt.NDArray[Any] | None, known: tuple[str, ...]
) -> IntArray:
    """Return the class numbers of labels: names of classes, or their numbers.

    Numbers count the `names` that come with the labels, or else the known ones.
    """
    values, places = np.unique(labels, return_inverse=True)
    numbers = []
    for value in values.tolist():
        name = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
        meant = known if names is None else [str(one) for one in names.ravel().tolist()]
        if name.isdecimal() and int(name) < len(meant) and (names is not None or name not in known):
            name = meant[int(name)]
        if name not in known:
            allowed = ", ".join(known)
            raise InvalidInput(f"data: labels must be among {allowed}, got {shorten(value)}")
        numbers.append(known.index(name))
    return np.array(numbers, dtype=np.int64)[places]


def _check_unpacked(archive: Any, names: list[str]) -> None:
    """Refuse a small file that fills the memory once it is unpacked."""
    size = sum(part.file_size for part in archive.zip.infolist()) if names else 0
    if size > MOST_BYTES:
        raise InvalidInput(f"data must unpack to at most {MOST_BYTES} bytes, got {size}")
