"""The clients' data after requests, against rows in dictionaries; membership by counting pairs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from covertfl.kernels.job import Examples
from covertfl.runs.train import KernelCache, build_federation, find_task
from covertfl.service.data import edit_task, list_purged, measure_membership, prepare_examples
from covertfl.service.requests import parse_request
from covertfl.service.store import StoredRequest
from covertfl.tasks.scores import compute_losses
from covertfl.tasks.task import TrainingTask
from tests.support.played_services import SERVICE, pack_examples
from tests.support.small_runs import make_run

ROWS, CLIENTS, CLASSES = 20, 3, 10


def make_request(number: int, body: dict[str, Any]) -> StoredRequest:
    """Return a request that has joined the queue."""
    parsed = parse_request(json.dumps({"updates": 1, **body}))
    empty = dict.fromkeys(("removed", "begun", "finished", "version", "num_rows", "membership"))
    return StoredRequest(
        id=number,
        body=parsed.model_copy(update={"data": None}),
        data=parsed.data,
        received=0.0,
        state="waiting",
        size=1,
        left=1,
        served=0,
        admitted=1,
        **empty,
    )


def make_task() -> TrainingTask:
    """Return a task of 20 rows whose only feature is the row's number."""
    whole = find_task(make_run(SERVICE))
    features = np.arange(ROWS, dtype=np.float32)[:, np.newaxis]
    labels = np.arange(ROWS, dtype=np.int64) % CLASSES
    clients = tuple(np.arange(client, ROWS, CLIENTS) for client in range(CLIENTS))
    inputs = replace(whole.inputs, standardisation=None)
    return replace(
        whole, train=Examples(features, labels), clients=clients, inputs=inputs, public_map=None
    )


@st.composite
def draw_changes(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw purges, contexts of one to four rows, and whether each was cancelled."""
    known, changes = ROWS, []
    for _ in range(draw(st.integers(0, 6))):
        client = draw(st.integers(0, CLIENTS - 1))
        kind = draw(st.sampled_from(["rows", "clients", "context"]))
        change: dict[str, Any] = {"kind": kind, "is_cancelled": draw(st.booleans())}
        if kind == "rows":
            change["rows"] = draw(st.lists(st.integers(0, known - 1), min_size=1, max_size=8))
        elif kind == "clients":
            change["clients"] = [client]
        else:
            change |= {"client": client, "replace": draw(st.booleans())}
            change["new"] = list(range(known, known + draw(st.integers(1, 4))))
            known += len(change["new"])
        changes.append(change)
    return changes


def as_body(change: dict[str, Any]) -> dict[str, Any]:
    if change["kind"] != "context":
        return {"kind": "purge", change["kind"]: change[change["kind"]]}
    rows = np.array(change["new"])
    data = pack_examples(rows[:, np.newaxis].astype(np.float64), rows % CLASSES)
    given = {name: change[name] for name in ("client", "replace")}
    return {"kind": "context", "data": data, **given}


@settings(max_examples=80, deadline=None)
@given(draw_changes())
def test_rows_are_those_of_a_dictionary(changes: list[dict[str, Any]]) -> None:
    requests = [make_request(number, as_body(one)) for number, one in enumerate(changes, 1)]
    held = {client: list(range(client, ROWS, CLIENTS)) for client in range(CLIENTS)}
    active = []
    for change, request in zip(changes, requests, strict=True):
        if change["is_cancelled"]:
            continue
        active.append(request)
        if change["kind"] == "context":
            before = [] if change["replace"] else held[change["client"]]
            held[change["client"]] = [*before, *change["new"]]
        elif change["kind"] == "clients":
            held[change["clients"][0]] = []
        else:
            held = {
                at: [row for row in own if row not in change["rows"]] for at, own in held.items()
            }
    task = edit_task(make_task(), requests, active)
    assert {client: rows.tolist() for client, rows in enumerate(task.clients)} == held
    # Every row, of whichever context, has the number that it is about.
    assert task.train.features[:, 0].tolist() == list(range(len(task.train)))
    assert task.train.labels.tolist() == [row % CLASSES for row in range(len(task.train))]


def test_the_rows_that_a_purge_takes_are_those_that_clients_hold() -> None:
    task = edit_task(make_task(), *[[make_request(1, {"kind": "purge", "rows": [4, 7]})]] * 2)
    purge = make_request(2, {"kind": "purge", "rows": [1, 2, 4], "clients": [0]})
    assert list_purged(task, purge).tolist() == [0, 1, 2, 3, 6, 9, 12, 15, 18]


@pytest.mark.parametrize("scheme", ["scheduled", "exchangeable"])
def test_new_rows_look_like_the_tasks_own(scheme: str) -> None:
    """What a client held as raw numbers comes out as the row that the task made of them."""
    task = build_federation(make_run(SERVICE, scheme=scheme), KernelCache()).task
    assert (task.public_map is not None) == (scheme == "exchangeable")
    raw, made = task.train.features[:30].astype(np.float64), task.train.features[:30]
    if task.public_map is not None:
        # The map is affine and invertible: solve for what it was given.
        size = raw.shape[1]
        origin = task.public_map.apply(np.zeros((1, size), np.float32))
        matrix = task.public_map.apply(np.eye(size, dtype=np.float32)) - origin
        raw = np.asarray(
            np.linalg.lstsq(matrix.T.astype(np.float64), (raw - origin).T, rcond=None)[0].T,
            dtype=np.float64,
        )
    found = task.inputs.standardisation
    if found is not None:
        one, zero = (found.apply(np.full((1, raw.shape[1]), value)) for value in (1.0, 0.0))
        raw = (raw - zero) / np.where(one == zero, 1.0, one - zero)
    labels = task.train.labels[:30]
    prepared = prepare_examples(task, raw, labels.astype(np.int64))
    assert prepared.features.dtype == np.float32
    np.testing.assert_allclose(prepared.features, made, atol=2e-4)
    assert prepared.labels.tolist() == labels.tolist()


def test_the_membership_test_counts_pairs_of_the_same_class() -> None:
    federation = build_federation(make_run(SERVICE, policy={"kind": "greedy"}), KernelCache())
    task, kernel = federation.task, federation.kernel
    weights = task.draw_weights(4)
    rows = task.clients[1][:25]
    outputs = kernel.predict(weights, task.train.features[rows])
    ours = compute_losses(outputs, task.train.labels[rows], task.loss)
    fresh = kernel.predict(weights, task.validation.features)
    theirs = compute_losses(fresh, task.validation.labels, task.loss)
    wins = []
    for loss, label in zip(ours, task.train.labels[rows], strict=True):
        others = theirs[task.validation.labels == label]
        assert len(others)
        wins.append(np.mean((loss < others) + 0.5 * (loss == others)))
    validation = federation.validation
    found = measure_membership(validation, task, weights, rows)
    assert found == pytest.approx(np.mean(wins), abs=1e-12)
    assert measure_membership(validation, task, weights, rows[:0]) is None


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.floats(-30, 30), min_size=3, max_size=3), min_size=1, max_size=5))
def test_losses_are_minus_the_logarithm_of_the_right_probability(rows: list[list[float]]) -> None:
    logits = np.array(rows, dtype=np.float32)
    labels = np.arange(len(rows)) % 3
    powers = np.exp(logits.astype(np.float64))
    expected = -np.log(powers[np.arange(len(rows)), labels] / powers.sum(axis=1))
    found = compute_losses(logits, labels, "multiclass")
    np.testing.assert_allclose(found, expected, atol=1e-9)
    binary = compute_losses(logits[:, :1], (labels > 0).astype(np.float32), "binary")
    right = np.where(labels > 0, 1.0, -1.0) * logits[:, 0].astype(np.float64)
    np.testing.assert_allclose(binary, np.log1p(np.exp(-right)), atol=1e-9)


def test_losses_of_infinite_answers_are_no_numbers_and_no_warnings() -> None:
    logits = np.array([[np.inf, 0.0], [0.0, 1.0]], dtype=np.float32)
    found = compute_losses(logits, np.array([0, 1]), "multiclass")
    assert np.isnan(found[0]) and np.isfinite(found[1])
