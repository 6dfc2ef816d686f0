"""Lists of clients and batches are short where there are many, and read back as they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import covertfl as cf
from covertfl.runs.files import (
    BITS,
    MANY,
    ROUNDS,
    pack_clients,
    pack_counts,
    read_rounds,
    unpack_clients,
    unpack_counts,
    unpack_record,
)
from tests.support.small_runs import run_small


def integers(values: list[int]) -> Any:
    return np.array(values, dtype=np.int64)


@given(st.sets(st.integers(0, 3000)), st.integers(0, 2000))
def test_clients_read_back(numbers: set[int], more: int) -> None:
    clients = sorted(numbers | set(range(5000, 5000 + more)))
    packed = json.loads(json.dumps(pack_clients(integers(clients))))
    assert isinstance(packed, list) == (len(clients) < MANY)
    assert unpack_clients(packed) == clients


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 400)), max_size=20))
def test_counts_read_back(groups: list[tuple[int, int]]) -> None:
    counts = [value for value, number in groups for _ in range(number)]
    packed = json.loads(json.dumps(pack_counts(integers(counts))))
    assert isinstance(packed, list) == (len(counts) < MANY)
    assert unpack_counts(packed) == counts


def test_ten_thousand_clients_take_a_few_bytes() -> None:
    everyone = np.arange(10_000)
    assert pack_clients(everyone) == "0-9999"
    assert pack_counts(np.full(10_000, 5)) == "5*10000"
    half = np.sort(np.random.default_rng(0).permutation(10_000)[:5000])
    packed = pack_clients(half)
    assert isinstance(packed, str) and packed.startswith(BITS) and len(packed) < 1700


@pytest.mark.parametrize(
    "text",
    ["", "a", "1,,2", "-1", "1-", "1-2-3", "0-99999999999", "9" * 30, "bits:?", "bits:é", "1.5"],
)
def test_texts_that_are_no_clients_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        unpack_clients(text)
    assert unpack_record({"clients": text}) == {"clients": text}


@pytest.mark.parametrize("text", ["", "x", "3*", "3*x", "3*99999999999", "-3", "3*-1"])
def test_texts_that_are_no_counts_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        unpack_counts(text)


def test_records_are_read_in_both_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_small(tmp_path / "plain")
    monkeypatch.setattr("covertfl.runs.files.MANY", 1)
    run_small(tmp_path / "short")
    plain, short = (
        list(read_rounds(tmp_path / name, states=3, trajectories=2)) for name in ("plain", "short")
    )
    assert plain == short
    [line, *_] = (tmp_path / "short" / ROUNDS).read_text().splitlines()
    assert isinstance(json.loads(line)["clients"], str)


def test_a_broken_text_is_named(tmp_path: Path) -> None:
    run_small(tmp_path)
    path = tmp_path / ROUNDS
    lines = path.read_text().splitlines(keepends=True)
    record = json.loads(lines[1]) | {"clients": "5-x"}
    path.write_text(lines[0] + json.dumps(record) + "\n")
    with pytest.raises(cf.InvalidInput, match="line 2: clients must be a list"):
        list(read_rounds(tmp_path, states=3, trajectories=2))
