"""A client that listens: it takes part as others do and keeps what it is sent.

Its folder is a public folder as the audit reads it.  It sees the rounds in which it was asked, and
those alone.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp

from covertfl.engines.flower.messages import ROUND
from covertfl.files.atomic import write_atomically
from covertfl.kernels.weights import name_content


def make_eavesdropper_app(app: ClientApp, folder: str | os.PathLike[str]) -> ClientApp:
    """A client app that records every query into a folder and answers as another app does.

    Parameters
    ----------
    app : any client app; it does not notice
    folder : `rounds.jsonl` and `weights/` for `covertfl audit`, `evaluations.jsonl` for arrays that
        came to be evaluated, `metadata.jsonl` with all else that a message shows, and when, and
        `replies.jsonl` with the times at which its own answers left
    """
    spy, records = ClientApp(), Path(folder)

    @spy.train()
    def train(message: Message, context: Context) -> Message:
        number = listen(message, records, "rounds.jsonl")
        reply = app(message, context)
        _append(records / "replies.jsonl", {"round": number, "replied": time.time()})
        return reply

    @spy.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        listen(message, records, "evaluations.jsonl")
        return app(message, context)

    return spy


def listen(message: Message, folder: Path, file: str) -> int:
    """Record a query; gives its round."""
    received = time.time()
    (folder / "weights").mkdir(parents=True, exist_ok=True)
    names = [_keep(arrays, folder) for arrays in message.content.array_records.values()]
    number = _find_round(message, folder / file)
    for name in names:
        _append(folder / file, {"round": number, "client": None, "weights": name})
    _append(folder / "metadata.jsonl", describe_message(message, received))
    return number


def describe_message(message: Message, received: float) -> dict[str, Any]:
    """Everything that a message shows to its node, except for the values of the weights."""
    metadata = {
        key.lstrip("_"): value
        for key, value in vars(message.metadata).items()
        if isinstance(value, str | int | float | None)
    }
    arrays = {
        record: [[name, array.dtype, list(array.shape), array.stype, len(array.data)]
                 for name, array in content.items()]
        for record, content in message.content.array_records.items()
    }  # fmt: skip
    headers = {
        record: [[name, _read_header(array.data)] for name, array in content.items()]
        for record, content in message.content.array_records.items()
    }
    config = {
        record: [[key, repr(value)] for key, value in content.items()]
        for record, content in message.content.config_records.items()
    }
    return {
        "received": received,
        "metadata": metadata,
        "records": list(message.content),
        "arrays": arrays,
        "headers": headers,
        "config": config,
    }


def _read_header(data: bytes) -> str:
    """What stands before the numbers of an array: their kind, shape and order."""
    return data[: data.find(b"\n") + 1].decode("latin-1")


def _keep(arrays: ArrayRecord, folder: Path) -> str:
    """Write weights down; gives their name.

    Known ones are written again: what the listener hears must not change how long it listens, or
    it would find its own traces in the times that it notes.
    """
    from safetensors.numpy import save

    parts = {name: np.ascontiguousarray(array.numpy()) for name, array in arrays.items()}
    content = save(parts)
    name = name_content(content)
    write_atomically(folder / "weights" / f"{name}.safetensors", content)
    return name


def _find_round(message: Message, path: Path) -> int:
    """The round that the server says, or else the number of queries so far."""
    for config in message.content.config_records.values():
        number = config.get(ROUND)
        if type(number) is int:
            return number
    return 1 + (path.read_bytes().count(b"\n") if path.exists() else 0)


def _append(path: Path, record: Mapping[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(record) + "\n")
