"""What an eavesdropper may read of a run, and that it reaches nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covertfl.errors import InvalidInput
from covertfl.runs.folder import RunFolder
from covertfl.runs.public import PublicTranscript
from tests.support.run_folders import seal_round


def test_the_public_side_does_not_load_what_reads_the_private_one() -> None:
    code = (
        "import sys, covertfl.runs.public\n"
        "loaded = {name for name in sys.modules if name.startswith('covertfl.runs.')}\n"
        "sys.exit(str(loaded) if loaded != {'covertfl.runs.public', 'covertfl.runs.files'} else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_public_side_reads_back_what_was_sent(folder: RunFolder) -> None:
    seal_round(folder, 1)
    seal_round(folder, 2)
    public = PublicTranscript(str(folder.path / "public"))
    assert [(record.round, record.client) for record in public.records] == [(1, None), (2, None)]
    tensors = public.read_weights(public.records[1].weights)
    np.testing.assert_array_equal(tensors["w"], np.full((2, 2), 2.0))
    assert set(tensors) == {"w", "b"}


@pytest.mark.parametrize(
    "line",
    [
        {"round": 1, "client": None},
        {"round": 1, "client": None, "weights": "0" * 64, "action": "learn"},
        {"round": True, "client": None, "weights": "0" * 64},
        {"round": 1, "client": "3", "weights": "0" * 64},
        {"round": 1, "client": None, "weights": "../../private/rounds"},
        {"round": 1, "client": None, "weights": 7},
        {},
    ],
)
def test_other_public_lines_are_refused(tmp_path: Path, line: dict[str, Any]) -> None:
    (tmp_path / "rounds.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(InvalidInput, match=r"rounds\.jsonl line 1 must have"):
        PublicTranscript(tmp_path)


def test_weights_that_were_changed_or_are_gone_are_refused(folder: RunFolder) -> None:
    seal_round(folder, 1)
    public = PublicTranscript(folder.path / "public")
    name = public.records[0].weights
    path = folder.path / "public/weights" / f"{name}.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x07")
    with pytest.raises(InvalidInput, match="was changed: its content does not match its name"):
        public.read_weights(name)
    path.unlink()
    with pytest.raises(InvalidInput, match="no such file, a file of weights is needed"):
        public.read_weights(name)
