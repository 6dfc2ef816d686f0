"""Server-sent events: the status at once and after each change, and no more listeners than fit."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.services import RECORD, RunningService, add, make_body

events = pytest.importorskip("covertfl.service.events")


@contextlib.contextmanager
def listen(running: RunningService) -> Iterator[Any]:
    request = urllib.request.Request(running.process.address + "/events")
    request.add_header("Authorization", f"Bearer {running.client.token}")
    with urllib.request.urlopen(request, timeout=10) as stream:
        yield stream


def read_event(stream: Any) -> dict[str, Any]:
    name, data, end = (stream.readline().decode() for _ in range(3))
    assert (name, data[:6], end) == ("event: status\n", "data: ", "\n")
    content: dict[str, Any] = json.loads(data[6:])
    return content


def test_the_status_is_sent_at_once_and_after_each_round(running: RunningService) -> None:
    with listen(running) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        first = read_event(stream)
        assert first == running.client.get("/status")
        running.store.add_round(first["round"] + 1, RECORD)
        assert read_event(stream)["round"] == first["round"] + 1
        add(running.store, [make_body()])
        assert read_event(stream)["changes"] > first["changes"]
        running.store.keep_fact("paused", "the disk is full")
        assert read_event(stream)["paused"] == "the disk is full"
        running.store.keep_fact("paused", None)


def test_two_listeners_hear_the_same(running: RunningService) -> None:
    with listen(running) as one, listen(running) as other:
        assert read_event(one) == read_event(other)
        add(running.store, [make_body()])
        assert read_event(one) == read_event(other)


def test_too_many_listeners_are_refused_until_one_leaves(running: RunningService) -> None:
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(listen(running)) for _ in range(events.MOST_LISTENERS)]
        with pytest.raises(urllib.error.HTTPError) as refusal, listen(running):
            pass
        with refusal.value as error:
            assert (error.code, "too many listeners" in json.load(error)["error"]) == (503, True)
        streams[0].close()
        end = time.monotonic() + 10
        while time.monotonic() < end:
            with contextlib.suppress(urllib.error.HTTPError), listen(running) as stream:
                assert "round" in read_event(stream)
                return
            time.sleep(0.05)
        pytest.fail("the place of a listener that has left stays taken")
