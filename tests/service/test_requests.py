"""What requests may say, as POST /requests takes or refuses it; the examples that they bring."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from covertfl.errors import InvalidInput
from covertfl.service.requests import Limits, RequestBody, parse_request, read_examples
from covertfl.service.store import Store
from tests.support.services import LIMITS, make_version, pack_arrays, refusal

KNOWN = Limits(clients=4, rows=100, changes_data=True, shape=(2,), classes=("no", "yes"))
GOOD = {"features": np.zeros((3, 2)), "labels": np.array([0, 1, 1])}
SHIFT: dict[str, Any] = {"kind": "shift", "updates": 1}
PURGE: dict[str, Any] = {"kind": "purge", "updates": 1}
CONTEXT: dict[str, Any] = {"kind": "context", "updates": 1, "client": 1}


def bring(**arrays: Any) -> dict[str, Any]:
    """Return a context with other arrays than good ones."""
    return {**CONTEXT, "data": pack_arrays(**{**GOOD, **arrays})}


BAD: list[tuple[Any, str]] = [
    (b"", "the body is not JSON"),
    (b"\xff\xfe", "the body is not JSON"),
    (b"[" * 50_000, "the body is not JSON"),
    ([1], "the body must be a JSON object"),
    ({}, "kind is missing; it must be one of purge"),
    ({"kind": "x"}, "kind must be one of purge, context, shift, rollback, got 'x'"),
    ({"kind": "shift"}, "updates is missing"),
    ({**SHIFT, "updates": 0}, "updates must be a whole number in 1..1000000, got 0"),
    ({**SHIFT, "updates": 10**7}, "updates must be a whole number"),
    ({**SHIFT, "updates": True}, "updates must be a whole number"),
    ({**SHIFT, "updates": 4.0}, "updates must be a whole number"),
    ({"kind": "shift", "patience": 0}, "patience must be a whole number"),
    ({**SHIFT, "note": "x" * 1001}, "note must be text of at most 1000"),
    (b'{"kind": "shift", "updates": 1, "note": "\\ud800"}', "note must be text"),
    (b'{"kind": "shift", "updates": 1, "\\ud800": 1}', "keys of valid text"),
    ({**SHIFT, "due": "tomorrow"}, "due must be a date such as"),
    ({**SHIFT, "due": "2026-02-30"}, "due must be a date such as"),
    ({**SHIFT, "key": ""}, "key must be text of 1 to 1000 characters"),
    ({**SHIFT, "upates": 1}, "did you mean updates?"),
    ({**SHIFT, "rows": [1]}, "rows is for kind purge, got kind shift"),
    (PURGE, "a purge needs rows or clients"),
    ({**PURGE, "rows": [-1]}, "rows must be a list"),
    ({**PURGE, "rows": [5, 100]}, "rows must lie in 0..99, got 100"),
    ({**PURGE, "clients": [4]}, "clients must lie in 0..3, got 4"),
    (CONTEXT, "data is missing"),
    ({"kind": "context", "updates": 1, "data": ""}, "client is missing"),
    ({**bring(), "client": 4}, "client must lie in 0..3"),
    ({**CONTEXT, "data": "!"}, "data must be an .npz file in base64"),
    ({**CONTEXT, "data": "AAAA"}, "data must be an .npz file in base64"),
    ({**CONTEXT, "data": pack_arrays(features=GOOD["features"])}, "must hold the arrays features"),
    (bring(features=np.zeros((3, 5))), "features must have shape (n, 2), got (3, 5)"),
    (bring(features=np.zeros((0, 2)), labels=np.zeros(0)), "features must have shape"),
    (bring(features=np.full((3, 2), np.nan)), "features must be finite"),
    (bring(features=np.full((3, 2), "x")), "features must be finite"),
    (bring(labels=np.zeros(4)), "labels must have shape"),
    (bring(labels=np.full(3, np.inf)), "labels must be among no, yes, got inf"),
    (bring(labels=np.array(["no", "b", "c"])), "labels must be among no, yes, got 'b'"),
    (bring(labels=np.array([0.5, 0, 1])), "labels must be among no, yes, got 0.5"),
    (bring(labels=np.array([None] * 3)), "data must be an .npz file"),
    ({"kind": "rollback"}, "version is missing"),
    ({"kind": "rollback", "version": 3}, "version must be one that was released, got 3"),
    ({"kind": "rollback", "version": 1}, "got 1, which request 7 withdrew"),
]


@pytest.fixture
def _versions(store: Store) -> None:
    for number in (0, 1):
        store.release(make_version(number))
    store.withdraw([1], 7)


@pytest.mark.usefixtures("_versions")
def test_bad_bodies_are_refused_in_a_sentence(client: Any, store: Store) -> None:
    for content, said in BAD:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        assert said in refusal(client.post("/requests", content=body), 422), said
    assert store.count_states()["waiting"] == 0


@pytest.mark.usefixtures("_versions")
@pytest.mark.parametrize(
    ("body", "updates", "left"),
    [
        (SHIFT, 1, 1),
        ({"kind": "shift", "patience": 3}, 1000, 3),
        ({"kind": "shift", "patience": 3, "updates": 2}, 2, 2),
        ({**PURGE, "rows": [0, 99], "clients": [3], "exact": True}, 1, 1),
        ({**bring(), "replace": True}, 1, 1),
        ({"kind": "rollback", "version": 0}, 0, 0),
        ({"kind": "rollback", "version": 0, "updates": 5}, 5, 5),
    ],
)
def test_good_bodies_are_stored_as_they_are(
    client: Any, store: Store, body: dict[str, Any], updates: int, left: int
) -> None:
    reply = client.post("/requests", json=body)
    expected = {"id": 1, "state": "waiting", "updates_left": left, "version": None}
    assert (reply.status_code, reply.json()) == (201, expected)
    [listed] = client.get("/requests").json()["requests"]
    assert (listed["kind"], listed["updates"]) == (body["kind"], updates)
    rows = {"purge": len(body.get("rows", ())), "context": 3}
    assert listed["num_rows"] == rows.get(body["kind"])
    stored = store.find(1)
    assert {**stored.body.model_dump(), "data": stored.data} == {
        **RequestBody(kind="shift").model_dump(),
        **body,
    }


def test_clients_on_flower_keep_their_data(client: Any, store: Store) -> None:
    store.keep_fact("limits", {**LIMITS, "rows": 0, "changes_data": False, "rolls_back": False})
    assert client.post("/requests", json={**PURGE, "clients": [1]}).status_code == 201
    for body, said in (
        ({**PURGE, "clients": [1], "exact": True}, "got kind purge with exact"),
        (bring(), "got kind context"),
        ({"kind": "rollback", "version": 1}, "got rollback"),
    ):
        assert said in refusal(client.post("/requests", json=body), 422)
    store.keep_fact("limits", {**LIMITS, "has_loss": False})
    patient = client.post("/requests", json={**SHIFT, "patience": 3})
    assert "patience needs validation data" in refusal(patient, 422)


def test_before_the_limits_are_known_nothing_is_accepted(client: Any, store: Store) -> None:
    store.connection.execute("DELETE FROM facts")
    assert "is starting" in refusal(client.post("/requests", json=SHIFT), 503)
    assert client.get("/status").json()["round"] == 0


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


# --- examples -------------------------------------------------------------------------------------


def test_labels_are_names_or_numbers_of_classes() -> None:
    names = np.array(["yes", "no"])
    for labels, further in (
        (GOOD["labels"], {}),
        (np.array(["no", "yes", "yes"]), {}),
        (np.array([0.0, 1.0, 1.0]), {}),
        (np.array([1, 0, 0]), {"classes": names}),
    ):
        features = np.arange(6.0).reshape(3, 2)
        found = read_examples(pack_arrays(features=features, labels=labels, **further), KNOWN)
        assert found[0].tolist() == features.tolist() and found[1].tolist() == [0, 1, 1]
    digits = replace(KNOWN, classes=tuple("0123456789"))
    data = pack_arrays(features=GOOD["features"], labels=np.array([7, 0, 9]))
    assert read_examples(data, digits)[1].tolist() == [7, 0, 9]


def test_a_file_that_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covertfl.service.requests.MOST_BYTES", 10_000)
    with pytest.raises(InvalidInput, match="data must unpack to at most 10000 bytes"):
        read_examples(pack_arrays(features=np.zeros((5000, 2)), labels=np.zeros(5000)), KNOWN)


@given(st.data())
def test_a_damaged_file_is_refused_or_read(data: st.DataObject) -> None:
    content = bytearray(base64.b64decode(pack_arrays(**GOOD)))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        features, labels = read_examples(base64.b64encode(bytes(content)).decode(), KNOWN)
    except InvalidInput:
        return
    assert len(features) == len(labels)
