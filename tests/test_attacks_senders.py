"""A node that sends messages in the name of another node or of the server."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from fastapi import HTTPException
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.node_pb2 import Node
from flwr.superlink import main
from flwr.superlink.servicer.fleet import fleet_handlers

from covertfl.engines.flower.deployment import roles
from covertfl.engines.flower.deployment.gate import require_own_messages

OWN, OTHER = 17, 18


def make_request(*senders: tuple[int, int]) -> PushMessagesRequest:
    messages = [
        Message(metadata=Metadata(src_node_id=source, dst_node_id=target))
        for source, target in senders
    ]
    return PushMessagesRequest(node=Node(node_id=OWN), messages_list=messages)


def push(request: PushMessagesRequest) -> list[Any]:
    """Return what reaches Flower's own handler."""
    taken: list[Any] = []
    handler = require_own_messages(lambda request, state: taken.append((request, state)))
    handler(request=request, state="state")
    return taken


def test_own_replies_reach_the_server() -> None:
    request = make_request((OWN, SUPERLINK_NODE_ID))
    assert push(request) == [(request, "state")]


@pytest.mark.parametrize(
    "forged",
    [
        (OTHER, SUPERLINK_NODE_ID),
        (SUPERLINK_NODE_ID, OTHER),
        (SUPERLINK_NODE_ID, OWN),
        (OWN, OTHER),
    ],
)
def test_messages_in_the_name_of_others_are_refused(forged: tuple[int, int]) -> None:
    for senders in ([forged], [(OWN, SUPERLINK_NODE_ID), forged]):
        with pytest.raises(HTTPException) as refused:
            push(make_request(*senders))
        assert refused.value.status_code == 403


def test_the_local_superlink_checks_senders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((fleet_handlers, "push_messages"), (main, "create_app")):
        monkeypatch.setattr(module, name, getattr(module, name))  # restored afterwards
    command = import_module("flwr.superlink.cli.flower_superlink")
    monkeypatch.setattr(command, "flower_superlink", lambda: None)
    monkeypatch.setattr(roles, "_watch_parent", lambda: None)
    token = tmp_path / "token"
    token.write_text("secret")
    roles.run_superlink({"token": str(token), "limit": 10})
    handler: Any = fleet_handlers.push_messages
    with pytest.raises(HTTPException) as refused:
        handler(make_request((OTHER, SUPERLINK_NODE_ID)), state=None)
    assert refused.value.status_code == 403
