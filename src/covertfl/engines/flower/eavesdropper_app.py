"""An eavesdropping client app: it takes part like any other and records what it is sent.

Its folder is a public folder as the audit reads it, with the rounds in which its node was queried;
only the node's owner may read it.
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

from covertfl.engines.flower.messages import find_round
from covertfl.files.disk import write_atomically
from covertfl.kernels.job import name_content


def make_eavesdropper_app(app: ClientApp, folder: str | os.PathLike[str]) -> ClientApp:
    """Return a client app that records every query and replies as another app does.

    Parameters
    ----------
    app : the other client app
    folder : receives `rounds.jsonl` and `weights/` for `covertfl audit`, `evaluations.jsonl` for
        arrays sent to be evaluated, `metadata.jsonl` with the rest of each message and the time of
        its receipt, and `replies.jsonl` with the times of its own replies
    """
    spy, records = ClientApp(), Path(folder)

    @spy.train()
    def train(message: Message, context: Context) -> Message:
        number = record_message(message, records, "rounds.jsonl")
        reply = app(message, context)
        _append(records / "replies.jsonl", {"round": number, "replied": time.time()})
        return reply

    @spy.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        record_message(message, records, "evaluations.jsonl")
        return app(message, context)

    return spy


def record_message(message: Message, folder: Path, file: str) -> int:
    """Record a message, its round and weights in one file of the folder, and return its round."""
    received = time.time()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / "weights").mkdir(mode=0o700, exist_ok=True)
    names = [_write_weights(arrays, folder) for arrays in message.content.array_records.values()]
    number = find_round(message)
    if number is None:  # count the messages so far
        number = 1 + ((folder / file).read_bytes().count(b"\n") if (folder / file).exists() else 0)
    for name in names:
        _append(folder / file, {"round": number, "client": None, "weights": name})
    _append(folder / "metadata.jsonl", describe_message(message, received))
    return number


def describe_message(message: Message, received: float) -> dict[str, Any]:
    """Return everything a message shows to its node, except for the values of the weights."""
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
    """Return the header of an array: dtype, shape and memory order."""
    return data[: data.find(b"\n") + 1].decode("latin-1")


def _write_weights(arrays: ArrayRecord, folder: Path) -> str:
    """Write weights to a file and return its name.

    Known weights are written again.  Otherwise the time this takes would depend on the weights and
    show in the times that are recorded.
    """
    from safetensors.numpy import save

    parts = {name: np.ascontiguousarray(array.numpy()) for name, array in arrays.items()}
    content = save(parts)
    name = name_content(content)
    write_atomically(folder / "weights" / f"{name}.safetensors", content, mode=0o600)
    return name


def _append(path: Path, record: Mapping[str, Any]) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(handle, "a", encoding="utf-8") as stream:
        stream.write(json.dumps(record) + "\n")
