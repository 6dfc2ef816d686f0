"""Requests: what they may say, and what the service can do for them."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from covertfl.errors import InvalidInput
from covertfl.service import requests
from covertfl.service.requests import (
    Limits,
    RequestBody,
    check_request,
    count_rows,
    parse_request,
    read_examples,
)
from tests.support.services import make_body, pack_arrays

LIMITS = Limits(clients=4, rows=100, changes_data=True, shape=(2,), classes=("no", "yes"))
GOOD = {"features": np.zeros((3, 2)), "labels": np.array([0, 1, 1])}


def test_a_body_is_read_with_its_defaults() -> None:
    body = parse_request(b'{"kind": "shift", "updates": 4}')
    assert body == RequestBody(kind="shift", updates=4)
    assert (body.size, body.note, body.restart, body.rows) == (4, "", False, [])


@pytest.mark.parametrize(
    ("content", "size"),
    [
        ({"kind": "shift", "patience": 3}, 1000),
        ({"kind": "shift", "patience": 3, "updates": 50}, 50),
        ({"kind": "rollback", "version": 0}, 0),
        ({"kind": "rollback", "version": 0, "updates": 0}, 0),
        ({"kind": "purge", "rows": [1], "updates": 2}, 2),
    ],
)
def test_the_most_updates_that_are_owed(content: dict[str, Any], size: int) -> None:
    assert parse_request(json.dumps(content)).size == size


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[1]", "the body must be a JSON object"),
        ("{", "the body is not JSON"),
        (b"\xff", "the body is not JSON"),
        ({}, "kind is missing; it must be one of purge"),
        ({"kind": "x"}, "kind must be one of purge, context, shift, rollback, got 'x'"),
        ({"kind": "shift"}, "updates is missing"),
        ({"kind": "shift", "updates": 0}, "updates must be a whole number in 1..1000000, got 0"),
        ({"kind": "shift", "updates": 10**7}, "updates must be a whole number"),
        ({"kind": "shift", "updates": "4"}, "updates must be a whole number"),
        ({"kind": "shift", "updates": True}, "updates must be a whole number"),
        ({"kind": "shift", "updates": 4.0}, "updates must be a whole number"),
        ({"kind": "shift", "patience": 0}, "patience must be a whole number"),
        ({"kind": "shift", "updates": 1, "note": "x" * 1001}, "note must be text of at most 1000"),
        ({"kind": "shift", "updates": 1, "due": "tomorrow"}, "due must be a date such as"),
        ({"kind": "shift", "updates": 1, "due": "2026-02-30"}, "due must be a date such as"),
        ({"kind": "shift", "updates": 1, "key": ""}, "key must be text of 1 to 1000 characters"),
        ({"kind": "shift", "updates": 1, "upates": 1}, "did you mean updates?"),
        ({"kind": "shift", "updates": 1, "rows": [1]}, "rows is for kind purge, got kind shift"),
        ({"kind": "purge", "updates": 1}, "a purge needs rows or clients"),
        ({"kind": "purge", "updates": 1, "rows": [-1]}, "rows must be a list"),
        ({"kind": "context", "updates": 1, "client": 1}, "data is missing"),
        ({"kind": "context", "updates": 1, "data": ""}, "client is missing"),
        ({"kind": "rollback"}, "version is missing"),
        ('{"kind": "shift", "updates": 1, "\\ud800": 1}', "keys of valid text"),
        ('{"kind": "shift", "updates": 1, "note": "\\ud800"}', "note must be text"),
    ],
)
def test_bad_bodies_are_refused_in_a_sentence(content: Any, said: str) -> None:
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    with pytest.raises(InvalidInput, match=r".") as refusal:
        parse_request(text)
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(list(RequestBody.model_fields)), JSON, max_size=6))
def test_any_object_is_read_or_refused(content: dict[str, Any]) -> None:
    try:
        body = parse_request(json.dumps(content))
    except InvalidInput:
        return
    assert {name: getattr(body, name) for name in content if content[name] is not None} == {
        name: value for name, value in content.items() if value is not None
    }


# --- against what the service has -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (make_body("purge", rows=[5, 100]), "rows must lie in 0..99, got 100"),
        (make_body("purge", clients=[4]), "clients must lie in 0..3, got 4"),
        (make_body("context", client=4, data=pack_arrays(**GOOD)), "client must lie in 0..3"),
        (make_body("context", client=1, data="AAAA"), "data must be an .npz file in base64"),
    ],
)
def test_what_the_service_does_not_have_is_refused(body: RequestBody, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        check_request(body, LIMITS)


def test_what_the_service_has_is_accepted() -> None:
    for body in (
        make_body("purge", rows=[0, 99], clients=[3], exact=True),
        make_body("context", client=3, data=pack_arrays(**GOOD)),
        make_body("rollback", version=7),
    ):
        check_request(body, LIMITS)


def test_clients_on_flower_keep_their_data() -> None:
    limits = Limits(clients=4, rows=0, changes_data=False, rolls_back=False)
    check_request(make_body("purge", clients=[1]), limits)
    with pytest.raises(InvalidInput, match=r"got kind purge with exact"):
        check_request(make_body("purge", clients=[1], exact=True), limits)
    with pytest.raises(InvalidInput, match="got kind context"):
        check_request(make_body("context", client=1, data=pack_arrays(**GOOD)), limits)
    with pytest.raises(InvalidInput, match="got rollback"):
        check_request(make_body("rollback", version=1), limits)


# --- examples -------------------------------------------------------------------------------------


def test_examples_are_read_as_they_are() -> None:
    features, labels = read_examples(pack_arrays(**GOOD), LIMITS)
    assert features.tolist() == GOOD["features"].tolist()
    assert labels.tolist() == [0, 1, 1]


def test_labels_are_names_or_numbers_of_classes() -> None:
    names = np.array(["yes", "no"])
    for labels, further in (
        (np.array(["no", "yes", "yes"]), {}),
        (np.array([0.0, 1.0, 1.0]), {}),
        (np.array([1, 0, 0]), {"classes": names}),
    ):
        data = pack_arrays(features=GOOD["features"], labels=labels, **further)
        assert read_examples(data, LIMITS)[1].tolist() == [0, 1, 1]
    digits = replace(LIMITS, classes=tuple("0123456789"))
    data = pack_arrays(features=GOOD["features"], labels=np.array([7, 0, 9]))
    assert read_examples(data, digits)[1].tolist() == [7, 0, 9]


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"features": np.zeros((3, 2))}, "must hold the arrays features and labels"),
        ({**GOOD, "features": np.zeros((3, 5))}, "features must have shape"),
        ({**GOOD, "features": np.zeros((0, 2)), "labels": np.zeros(0)}, "features must have shape"),
        ({**GOOD, "features": np.full((3, 2), np.nan)}, "features must be finite"),
        ({**GOOD, "features": np.full((3, 2), "x")}, "features must be finite"),
        ({**GOOD, "labels": np.zeros(4)}, "labels must have shape"),
        ({**GOOD, "labels": np.full(3, np.inf)}, "labels must be among no, yes, got inf"),
        ({**GOOD, "labels": np.array(["no", "b", "c"])}, "labels must be among no, yes, got 'b'"),
        ({**GOOD, "labels": np.array([0.5, 0, 1])}, "labels must be among no, yes, got 0.5"),
        ({**GOOD, "labels": np.array([None] * 3)}, "data must be an .npz file"),
    ],
)
def test_bad_examples_are_refused(arrays: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        read_examples(pack_arrays(**arrays), LIMITS)


def test_a_file_that_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MOST_BYTES", 10_000)
    with pytest.raises(InvalidInput, match="data must unpack to at most 10000 bytes"):
        read_examples(pack_arrays(features=np.zeros((5000, 2)), labels=np.zeros(5000)), LIMITS)


@given(st.data())
def test_a_damaged_file_is_refused_or_read(data: st.DataObject) -> None:
    content = bytearray(base64.b64decode(pack_arrays(**GOOD)))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        features, labels = read_examples(base64.b64encode(bytes(content)).decode(), LIMITS)
    except InvalidInput:
        return
    assert len(features) == len(labels)


def test_rows_are_counted() -> None:
    assert count_rows(make_body()) is None
    assert count_rows(make_body("purge", rows=[1, 2])) == 2
    assert count_rows(make_body("context", client=1, data=pack_arrays(**GOOD))) == 3
