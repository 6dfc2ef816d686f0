"""A caller that reaches the SuperLink's port, and a node that sends in the name of others.

Loopback is open to every user of a machine.  Without the owner's token only the calls of registered
nodes are answered; with it, only the owner's bundle is executed.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import http.server
import re
import shutil
import signal
import ssl
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

pytest.importorskip("flwr")

from fastapi import HTTPException
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import (
    GetLoginDetailsRequest,
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    StreamLogsRequest,
    UnregisterNodeRequest,
)
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import AcquireTaskRequest, GetNodesRequest, PullTaskInputRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink import main
from flwr.superlink.servicer.fleet import fleet_handlers

from covertfl import CovertflError
from covertfl.engines.flower.deployment import roles
from covertfl.engines.flower.deployment.bundle import PROJECT
from covertfl.engines.flower.deployment.checks import count_model_bytes
from covertfl.engines.flower.deployment.federation import (
    HOST,
    LocalFederation,
    TokenInterceptor,
    find_free_ports,
)
from covertfl.engines.flower.deployment.gate import Gate, find_request_limit, require_own_messages
from covertfl.engines.flower.deployment.processes import wait_until
from covertfl.engines.flower.deployment.roles import RefusedBundle, accept_only
from covertfl.engines.flower.deployment.run import Deployment
from tests import ROOT
from tests.support.small_runs import make_run

# --- the control interface ------------------------------------------------------------------------


# Of a dependency of Flower's, when a bundle is built.
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")

HOSTILE_PROJECT = re.sub(r'"\w+:app"', '"hostile:{}"', PROJECT).format("server", "client")
HOSTILE = """
import os
from pathlib import Path
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

Path({trace!r}).touch()
server, client = ServerApp(), ClientApp()

@server.main()
def main(grid, context):
    raise RuntimeError(Path(os.environ["COVERTFL_RUN"]).read_text())
"""


SETTINGS: dict[str, Any] = {
    "federation": {"clients": 3, "participation": [1, 2, 3], "min_share": 0.2},
    "decoy": {"kind": "public"},
    "policy": {"kind": "random"},
    "rounds": 3,
    "updates": 1,
}
TOKEN, LIMIT = "0123456789abcdef", 1000


def ask(path: str, *headers: tuple[str, str], kind: str = "http") -> int:
    """The status with which a gate answers a request; 200 where it passes it on."""
    sent: list[dict[str, Any]] = []

    async def application(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        pytest.fail("a gate must not read the body of a request")

    scope = {
        "type": kind,
        "path": path,
        "headers": [(name.encode(), value.encode()) for name, value in headers],
    }
    asyncio.run(Gate(application, token=TOKEN, limit=LIMIT)(scope, receive, send))
    first = sent[0]
    return int(first["status"] if kind == "http" else first["code"])


@functools.cache
def list_routes() -> list[str]:
    """All paths that a SuperLink of the installed Flower answers."""
    from flwr.superlink.main import create_app

    app = create_app()
    return [*app.openapi()["paths"], "/docs", "/openapi.json", "/docs/oauth2-redirect"]


def test_all_but_nodes_and_tasks_need_the_token() -> None:
    small, bearer = ("content-length", "10"), ("authorization", f"Bearer {TOKEN}")
    routes = list_routes()
    assert len(routes) > 70
    for path in [*routes, "/", "/v1/fleet", "/V1/fleet/get-run", "//v1/fleet/get-run"]:
        is_open = path.startswith(("/v1/fleet/", "/v1/runtime/"))
        assert ask(path, small) == (200 if is_open else 401), path
        assert ask(path, small, bearer) == 200
    for wrong in ("", "Bearer", "Bearer ", TOKEN, f"Bearer {TOKEN}0", "Basic x"):
        assert ask("/v1/control/list-nodes", small, ("authorization", wrong)) == 401
    assert ask("/v1/control/list-nodes", bearer, bearer) == 401
    assert ask("/v1/fleet/get-run", kind="websocket") == 1008


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("content-length", "1000")], 200),
        ([("content-length", "1001")], 413),
        ([("content-length", "9" * 30)], 413),
        ([], 411),
        ([("content-length", "-1")], 411),
        ([("content-length", "1e2")], 411),
        ([("content-length", "10"), ("content-length", "10")], 411),
        ([("transfer-encoding", "chunked")], 411),
        # A server goes by the chunks where both are given.
        ([("content-length", "10"), ("transfer-encoding", "chunked")], 411),
    ],
)
def test_requests_without_the_token_are_small(headers: list[tuple[str, str]], status: int) -> None:
    assert ask("/v1/fleet/push-object", *headers) == status
    assert ask("/v1/runtime/push-object", *headers) == status
    assert ask("/v1/control/start-run", *headers, ("authorization", f"Bearer {TOKEN}")) == 200


def test_the_limit_is_taken_from_the_model() -> None:
    # Logistic regression on 64 pixels and ten classes: 650 numbers of four bytes.
    assert count_model_bytes(make_run(**SETTINGS)) == 2600
    assert find_request_limit(2600) == 4 * 2600 + 2**20
    # Flower cuts larger arrays into chunks of 5 MiB.
    assert find_request_limit(10**9) == find_request_limit(None) == 21 * 2**20


def test_only_the_bundle_of_the_owner_is_read() -> None:
    runtime: Any = ModuleType("runtime")
    runtime.fab_from_proto = lambda fab: fab
    right, other = (Fab(hashlib.sha256(text).hexdigest(), text, {}) for text in (b"own", b"other"))
    accept_only(right.hash_str, runtime)
    assert runtime.fab_from_proto(right) is right
    lying, renamed = Fab(right.hash_str, b"other", {}), Fab(other.hash_str, b"own", {})
    for wrong in (other, lying, renamed, Fab("", b"", {})):
        with pytest.raises(RefusedBundle):
            runtime.fab_from_proto(wrong)


def read_proxy_example() -> str:
    """The nginx configuration in the documents."""
    text = (ROOT / "docs" / "flower.md").read_text("utf-8")
    found = re.search(r"```nginx\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found.group(1)


def find_location(configuration: str, path: str) -> str:
    """The body of the location that nginx chooses: equal, first pattern, or longest prefix."""
    rules = re.findall(r"location\s+(=|~)?\s*(\S+)\s*\{([^}]*)\}", configuration)
    for kind, name, body in rules:
        if kind == "=" and name == path:
            return str(body)
    for kind, name, body in rules:
        if kind == "~" and re.search(name, path):
            return str(body)
    prefixes = [(len(n), body) for kind, n, body in rules if not kind and path.startswith(n)]
    return str(max(prefixes)[1])


def test_the_reverse_proxy_lets_nodes_through_and_nobody_else() -> None:
    """As nginx may not be installed, its rules are applied here to all paths of Flower."""
    example = read_proxy_example()
    assert re.search(r"client_max_body_size\s+\d+m;", example)
    assert "proxy_ssl_verify on;" in re.sub(r" +", " ", example)
    passed = {path for path in list_routes() if "proxy_pass" in find_location(example, path)}
    # Nodes are registered by the operator; no node needs to do that itself.
    closed = {"/v1/fleet/register-node", "/v1/fleet/unregister-node"}
    assert passed == {path for path in list_routes() if path.startswith("/v1/fleet/")} - closed
    for path in ("/", "/v1/fleet/", "/v1/fleet/pull-messages/", "/x/v1/fleet/get-run"):
        assert find_location(example, path).split() == ["return", "404;"]


class Yes(http.server.BaseHTTPRequestHandler):
    """A server that answers every call."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[str]:
    """Where nginx listens with the documents' example, in front of a server that answers all."""
    name, files = "server.example.org", ("server.crt", "server.key")
    certificate, key = (str(tmp_path / file) for file in files)
    request = f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={name}"
    request += f" -addext subjectAltName=DNS:{name},IP:{HOST}"
    subprocess.run(
        ["openssl", *request.split(), "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )
    (tmp_path / "authority.crt").write_bytes((tmp_path / "server.crt").read_bytes())
    behind = http.server.ThreadingHTTPServer((HOST, 0), Yes)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    behind.socket = context.wrap_socket(behind.socket, server_side=True)
    threading.Thread(target=behind.serve_forever, daemon=True).start()
    [port] = find_free_ports(1)
    example = read_proxy_example().replace("/etc/covert", str(tmp_path))
    example = example.replace("listen 8443", f"listen {HOST}:{port}")
    example = example.replace(":8444", f":{behind.server_port}")
    whole = f"pid {tmp_path}/pid; events {{}}\nhttp {{ access_log off; {example} }}\n"
    (tmp_path / "nginx.conf").write_text(whole)
    command = ["nginx", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")]
    command += ["-e", str(tmp_path / "error.log"), "-g", "daemon off;"]
    with subprocess.Popen(command) as started:
        yield f"https://{HOST}:{port}"
        started.terminate()
    behind.shutdown()
    behind.server_close()


@pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx")
def test_nginx_lets_nodes_through_and_nobody_else(proxy: str, tmp_path: Path) -> None:
    context = ssl.create_default_context(cafile=str(tmp_path / "authority.crt"))
    with httpx.Client(base_url=proxy, verify=context) as client:
        assert wait_until((tmp_path / "pid").exists, 20.0)
        statuses = {path: client.post(path, content=b"x").status_code for path in list_routes()}
        assert client.post("/v1/fleet/get-run", content=bytes(22 * 2**20)).status_code == 413
    passed = {path for path, status in statuses.items() if status == 200}
    closed = {"/v1/fleet/register-node", "/v1/fleet/unregister-node"}
    assert passed == {path for path in statuses if path.startswith("/v1/fleet/")} - closed
    assert {statuses[path] for path in statuses if path not in passed} == {404}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A federation of two nodes whose run has not started."""
    out = tmp_path_factory.mktemp("run") / "out"
    with Deployment(make_run(**SETTINGS), out, num_nodes=2) as made:
        yield made


def make_hostile_bundle(folder: Path, trace: Path) -> bytes:
    """A bundle whose server app leaves a trace and puts the run file into its exception."""
    from flwr.cli.build import build_fab_from_disk

    folder.mkdir()
    (folder / "pyproject.toml").write_text(HOSTILE_PROJECT)
    (folder / "hostile.py").write_text(HOSTILE.format(trace=str(trace)))
    return build_fab_from_disk(folder)


def connect(federation: LocalFederation, token: str | None = None) -> ControlHttpClient:
    """A caller who checks the server's certificate and has no key; perhaps a token."""
    return ControlHttpClient.from_server_address(
        federation.address,
        insecure=False,
        root_certificates=federation.certificate.authority.read_bytes(),
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="flwr CLI"),
            *([] if token is None else [TokenInterceptor(token)]),
        ],
    )


def connect_runtime(federation: LocalFederation, address: str) -> RuntimeHttpClient:
    """A caller who wants tasks, of the SuperLink or of a node."""
    is_link = address == federation.address
    return RuntimeHttpClient.from_server_address(
        address,
        insecure=not is_link,
        root_certificates=federation.certificate.authority.read_bytes() if is_link else None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr-superexec")],
    )


def find_refusal(call: Callable[[], object]) -> int:
    """The status with which a call is refused; 200 where it is answered."""
    try:
        call()
    except httpx.HTTPStatusError as error:
        return error.response.status_code
    return 200


def describe(bundle: bytes) -> StartRunRequest:
    """A request to run a bundle."""
    return StartRunRequest(fab=fab_to_proto(Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})))


@pytest.mark.deployment
@pytest.mark.parametrize("token", [None, "0" * 64])
def test_strangers_cannot_control_the_superlink(
    deployment: Deployment, tmp_path: Path, token: str | None
) -> None:
    trace = tmp_path / "trace"
    bundle = make_hostile_bundle(tmp_path / "hostile", trace)
    with connect(deployment.federation, token) as calls:
        for call in (
            lambda: calls.ListNodes(ListNodesRequest()),
            lambda: calls.ListRuns(ListRunsRequest()),
            lambda: calls.StartRun(describe(bundle)),
            lambda: calls.StartRun(describe(deployment.bundle)),
            lambda: calls.StopRun(StopRunRequest(run_id=1)),
            lambda: list(calls.StreamLogs(StreamLogsRequest(run_id=1))),
            lambda: calls.RegisterNode(RegisterNodeRequest(public_key=b"x")),
            lambda: calls.UnregisterNode(UnregisterNodeRequest(node_id=1)),
            lambda: calls.GetLoginDetails(GetLoginDetailsRequest()),
        ):
            assert find_refusal(call) == 401
    assert not deployment.federation.control.calls.ListRuns(ListRunsRequest()).run_dict
    assert not trace.exists()


@pytest.mark.deployment
def test_tasks_need_a_secret(deployment: Deployment) -> None:
    federation = deployment.federation
    addresses = [federation.address, *(f"{HOST}:{port}" for port in federation._ports[1:])]
    assert len(addresses) == 3
    for address in addresses:
        with connect_runtime(federation, address) as calls:
            assert find_refusal(lambda: calls.AcquireTask(AcquireTaskRequest())) == 401
            assert find_refusal(lambda: calls.PullTaskInput(PullTaskInputRequest())) == 401
            assert find_refusal(lambda: calls.GetNodes(GetNodesRequest())) == 401


@pytest.mark.deployment
def test_what_plain_requests_get(deployment: Deployment) -> None:
    federation, limit = deployment.federation, find_request_limit(2600)
    context = ssl.create_default_context(cafile=str(federation.certificate.authority))
    headers = {"content-type": PROTOBUF_MEDIA_TYPE}
    with httpx.Client(base_url=f"https://{federation.address}", verify=context) as client:
        for path in ("/docs", "/openapi.json", "/health", "/v1/control/list-nodes"):
            assert client.get(path).status_code == 401
        answers = {path: client.post(path, headers=headers).status_code for path in list_routes()}
        assert set(answers.values()) == {401}, answers
        push = "/v1/fleet/push-object"
        assert client.post(push, headers=headers, content=bytes(limit)).status_code == 400
        assert client.post(push, headers=headers, content=b"").status_code == 401
        assert client.post(push, headers=headers, content=bytes(limit + 1)).status_code == 413
        assert client.post(push, headers=headers, content=iter([b"x"])).status_code == 411
        both = {**headers, "content-length": "1"}
        assert client.post(push, headers=both, content=iter([b"x"])).status_code in (400, 411)
    assert federation.list_connected() == [0, 1]


@pytest.mark.deployment
def test_another_bundle_is_not_executed_even_with_the_token(
    deployment: Deployment, tmp_path: Path
) -> None:
    trace, control = tmp_path / "trace", deployment.federation.control
    run = control.start_run(make_hostile_bundle(tmp_path / "hostile", trace))
    assert wait_until(lambda: control.find_status(run).status == "finished", 60.0)
    status = control.find_status(run)
    assert status.sub_status == "failed"
    assert "the bundle is not the one" in status.details
    assert not trace.exists()


@pytest.mark.deployment
def test_the_token_is_for_the_owner_alone(deployment: Deployment) -> None:
    federation = deployment.federation
    file = federation.folder / "control.secret"
    token = file.read_text()
    assert len(token) == 64
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for process in federation.processes.running.values():
        for name in ("cmdline", "environ"):
            assert token.encode() not in Path(f"/proc/{process}/{name}").read_bytes()


@pytest.mark.deployment
def test_why_a_run_failed_is_for_the_owner_alone(deployment: Deployment) -> None:
    """The folder of the run has a file where a folder should be: the message names it."""
    out, control = deployment.server.out, deployment.federation.control
    out.mkdir()
    (out / "checkpoint").touch()
    try:
        run = deployment.start()
        with pytest.raises(CovertflError, match=r"checkpoint|exists"):
            deployment.follow(run)
        assert wait_until(lambda: control.find_status(run).status == "finished", 30.0)
        details = control.find_status(run).details
    finally:
        (out / "checkpoint").unlink()
        out.rmdir()
    assert details == "ServerApp failed with exception: the server has stopped"


@pytest.mark.deployment
def test_a_killed_node_is_not_connected_and_may_come_back(deployment: Deployment) -> None:
    federation = deployment.federation
    assert federation.list_connected() == [0, 1]
    for name in ("node0", "client0"):
        federation.processes.end(name, signal.SIGKILL)
    assert federation.list_connected() == [1]
    federation.start_node(0)
    assert wait_until(lambda: federation.list_connected() == [0, 1], 30.0)


# --- messages in the name of others ---------------------------------------------------------------


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
