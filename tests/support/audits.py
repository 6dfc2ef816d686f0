"""Public folders as a client of any federation may record them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy.typing as npt
from safetensors.numpy import save

from covertfl.kernels.job import name_content


def write_public(
    folder: Path, sent: list[dict[str, npt.NDArray[Any]]], rounds: list[int] | None = None
) -> Path:
    """Write the queries that were sent, in rounds 1, 2, ... where none are given."""
    (folder / "weights").mkdir(parents=True)
    lines = []
    for number, tensors in enumerate(sent):
        content = save(tensors)
        name = name_content(content)
        (folder / "weights" / f"{name}.safetensors").write_bytes(content)
        round_number = number + 1 if rounds is None else rounds[number]
        lines.append(json.dumps({"round": round_number, "client": 7, "weights": name}))
    (folder / "rounds.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder
