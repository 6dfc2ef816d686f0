"""What a deployment is made of, without starting one: certificates, bundles, the server's place."""

from __future__ import annotations

import datetime
import io
import os
import signal
import ssl
import stat
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from covertfl import errors
from covertfl.cli.app import app
from covertfl.engines.flower.client_app import format_client_run
from covertfl.engines.flower.deployment.bundle import build_bundle, write_app
from covertfl.engines.flower.deployment.certificates import make_node_key, make_server_certificate
from covertfl.engines.flower.deployment.federation import find_free_ports
from covertfl.engines.flower.deployment.processes import DeploymentFailed
from covertfl.engines.flower.deployment.run import (
    Deployment,
    as_deployed,
    ending_on_signals,
    find_own_app,
    find_shortage,
)
from covertfl.engines.flower.deployment.server import (
    ServerNews,
    ServerPlace,
    make_error,
    make_round_callback,
    read_place,
    reporting,
)
from covertfl.errors import InvalidInput
from covertfl.runs.progress import RunProgress
from covertfl.runs.run_file import format_run
from tests import ROOT
from tests.support.small_runs import make_run

EXAMPLE = ROOT / "examples" / "flower_toxicity"
SMALL: dict[str, Any] = {"federation": {"clients": 4, "participation": [1, 2, 4]}}

# --- certificates -------------------------------------------------------------------------------


def test_keys_are_on_p384_and_for_their_owner(tmp_path: Path) -> None:
    key = make_node_key(tmp_path, "node0")
    private = load_ssh_private_key(key.private.read_bytes(), None)
    public = load_ssh_public_key(key.public.read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(public, ec.EllipticCurvePublicKey)
    assert private.curve.name == "secp384r1"
    assert private.public_key() == public
    make_server_certificate(tmp_path)
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert not any(b"PRIVATE" in path.read_bytes() for path in tmp_path.glob("authority*"))


def shake_hands(tmp_path: Path, authority: Path, server: Any, name: str) -> None:
    """A TLS connection in memory, from one who trusts an authority to a server of a name."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.load_verify_locations(authority)
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(server.certificate, server.key)
    ends = [
        client_context.wrap_bio(back, there, server_hostname=name),
        server_context.wrap_bio(there, back, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue


def test_certificates_are_good_for_their_address_and_authority_only(tmp_path: Path) -> None:
    other, late = tmp_path / "other", tmp_path / "late"
    other.mkdir()
    late.mkdir()
    server = make_server_certificate(tmp_path)
    shake_hands(tmp_path, server.authority, server, "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        shake_hands(tmp_path, server.authority, server, "127.0.0.2")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(tmp_path, make_server_certificate(other).authority, server, "127.0.0.1")
    expired = make_server_certificate(late, valid=-datetime.timedelta(seconds=5))
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shake_hands(tmp_path, expired.authority, expired, "127.0.0.1")


def test_ports_are_free_and_differ() -> None:
    ports = find_free_ports(20)
    assert len(set(ports)) == 20


# --- the bundle ---------------------------------------------------------------------------------


def make_project(folder: Path, **changes: str) -> Path:
    """The project of a built-in task with files changed or added."""
    folder.mkdir()
    write_app(folder, format_client_run(make_run(**SMALL)))
    for name, content in changes.items():
        (folder / name.replace("__", ".")).write_text(content)
    return folder


def test_the_bundle_does_not_depend_on_the_scheme(tmp_path: Path) -> None:
    federation = SMALL["federation"]
    schemes: list[dict[str, Any]] = [
        {"policy": {"kind": "greedy"}, "rounds": 9, "federation": federation},
        {"decoy": {"kind": "following", "count": 2}, "updates": 2, "federation": federation},
        {"federation": {**federation, "min_share": 0.4, "acceptance": "model"}},
    ]
    bundles = set()
    for number, scheme in enumerate(schemes):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_app(folder, format_client_run(as_deployed(make_run(**scheme))))
        bundles.add(build_bundle(folder))
    assert len(bundles) == 1


def test_bundles_that_would_tell_are_refused(tmp_path: Path) -> None:
    build_bundle(make_project(tmp_path / "good"))
    with pytest.raises(InvalidInput, match=r"federation_server\.py would be sent to every node"):
        build_bundle(make_project(tmp_path / "server", federation_server__py="app = 1\n"))
    with pytest.raises(InvalidInput, match=r"run\.toml .*must not have the key cost"):
        build_bundle(make_project(tmp_path / "run", run__toml=format_run(make_run(**SMALL), {})))
    with pytest.raises(InvalidInput, match=r"policy\.json .*must not have the key learn_prob"):
        build_bundle(make_project(tmp_path / "policy", policy__json='{"learn_prob": []}'))
    project = make_project(tmp_path / "config")
    text = (project / "pyproject.toml").read_text()
    (project / "pyproject.toml").write_text(text + "kind-of-decoy = 'public'\n")
    with pytest.raises(InvalidInput, match=r"\[tool\.flwr\.app\.config\] .* the key kind-of-decoy"):
        build_bundle(project)
    with pytest.raises(InvalidInput, match=r"with pyproject\.toml"):
        build_bundle(tmp_path)


def test_the_example_sends_its_client_app_only() -> None:
    with zipfile.ZipFile(io.BytesIO(build_bundle(EXAMPLE / "app"))) as files:
        names = {name for name in files.namelist() if not name.startswith(".info")}
        content = b"".join(files.read(name) for name in names).decode()
    assert names == {
        "pyproject.toml",
        "toxicity/__init__.py",
        "toxicity/client_app.py",
        "toxicity/model.py",
    }
    for word in ("CovertStrategy", "FedAvg", "policy", "decoy", "eavesdrop"):
        assert word not in content


# --- the server's place -------------------------------------------------------------------------


def test_a_place_goes_through_the_environment(tmp_path: Path) -> None:
    place = ServerPlace(tmp_path / "run.toml", tmp_path / "out", True, False, 7.5, tmp_path / "n")
    assert read_place(place.as_environment()) == place
    assert ServerPlace(Path("r"), Path("o")) == read_place(
        {"COVERTFL_RUN": "r", "COVERTFL_OUT": "o"}
    )
    with pytest.raises(InvalidInput, match="COVERTFL_OUT must be set"):
        read_place({"COVERTFL_RUN": "r"})
    for wrong in ("soon", "0", "nan", "inf"):
        with pytest.raises(InvalidInput, match=f"COVERTFL_TIMEOUT .* got '{wrong}'"):
            read_place({"COVERTFL_RUN": "r", "COVERTFL_OUT": "o", "COVERTFL_TIMEOUT": wrong})


def test_news_come_whole_and_failures_stay_on_the_server(tmp_path: Path) -> None:
    path = tmp_path / "news.jsonl"
    news, tell = ServerNews(path), make_round_callback(path)
    assert news.read_new() == []
    assert tell is not None
    assert make_round_callback(None) is None
    tell(RunProgress(tmp_path, 0, 1, 9, 2, 3, 0.5, 0.7))
    with path.open("ab") as stream:
        stream.write(b'{"progress"')
    assert [entry["progress"]["round"] for entry in news.read_new()] == [1]
    path.write_bytes(path.read_bytes().removesuffix(b'{"progress"'))
    with pytest.raises(RuntimeError, match=r"^the server has stopped$"), reporting(path):
        raise InvalidInput("[decoy] kind is wrong")
    [entry] = news.read_new()
    error = make_error(entry)
    assert (type(error), str(error)) == (InvalidInput, "[decoy] kind is wrong")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_other_failures_are_failures_of_the_deployment() -> None:
    error = make_error({"failed": "ZeroDivisionError", "reason": "division by zero"})
    assert type(error) is DeploymentFailed
    assert error.exit_status == errors.NoSolution.exit_status
    assert "ZeroDivisionError: division by zero" in str(error)


# --- what is refused before anything is started -------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "nodes", "said"),
    [
        ({}, 5, "nodes must be 1..4"),
        ({}, 0, "nodes must be 1..4"),
        ({"task": "own"}, 4, "task = own cannot be deployed"),
        ({"federation": {"clients": 4, "participation": [2, 2, 4]}}, 4, "must increase"),
    ],
)
def test_runs_that_cannot_be_deployed(
    tmp_path: Path, changes: dict[str, Any], nodes: int, said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        Deployment(make_run(**{**SMALL, **changes}), tmp_path / "out", num_nodes=nodes)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("federation", "nodes", "share"),
    [
        # 1290 digits: 65 for each of the first ten clients, of which three batches of 20 are used.
        ({}, 4, 0.186),
        ({}, 5, 0.233),
        ({}, 6, None),
        ({"batch_size": 1}, 4, 0.202),
        ({"min_share": 1.0}, 20, 0.930),
        ({"acceptance": "model"}, 4, None),
        ({"clients": 4, "participation": [1, 2, 4]}, 4, None),
    ],
)
def test_nodes_that_could_never_bring_an_accepted_round(
    federation: dict[str, Any], nodes: int, share: float | None
) -> None:
    default = {"clients": 20, "participation": [5, 10, 20], **federation}
    said = find_shortage(make_run(federation=default), nodes)
    if share is None:
        assert said is None
    else:
        assert said is not None and "\n" not in said
        assert said.startswith(f"run.toml: no round can be accepted: {nodes} nodes")
        assert f"{share:.3f} of the examples" in said


def test_a_task_of_ones_own_goes_with_ones_own_app(tmp_path: Path) -> None:
    own = find_own_app(EXAMPLE / "app", EXAMPLE / "server", None)
    settings = make_run(task="own", federation={"clients": 20, "participation": [5, 10, 20]})
    Deployment(settings, tmp_path / "out", num_nodes=4, app=own)


def test_a_folder_that_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="--force replaces it"):
        Deployment(make_run(**SMALL), tmp_path, num_nodes=4)


def test_own_apps_are_found(tmp_path: Path) -> None:
    found = find_own_app(EXAMPLE / "app", EXAMPLE / "server", None)
    assert found.eavesdropper is None
    file = EXAMPLE / "eavesdropper" / "eavesdropper_app.py"
    found = find_own_app(EXAMPLE / "app", None, f"{file}:app")
    assert (found.eavesdropper, found.eavesdropper_path) == ("eavesdropper_app:app", file.parent)
    with pytest.raises(InvalidInput, match="no such folder"):
        find_own_app(tmp_path / "nothing", None, None)
    for wrong in ("app", f"{file}", f"{file}:", "nothing.py:app", f"{EXAMPLE / 'run.toml'}:app"):
        with pytest.raises(InvalidInput, match=r"must be FILE\.PY:APP"):
            find_own_app(EXAMPLE / "app", None, wrong)


def test_options_that_exclude_or_need_each_other(tmp_path: Path) -> None:
    run = tmp_path / "run.toml"
    run.write_text('task = "digits"\n')
    with pytest.raises(InvalidInput, match="give one of them"):
        app(["deploy-local", str(run), "--resume", "--force"], standalone_mode=False)
    with pytest.raises(InvalidInput, match="go with --app"):
        app(["deploy-local", str(run), "--server", str(tmp_path)], standalone_mode=False)


def test_signals_end_in_order() -> None:
    with pytest.raises(SystemExit) as stop, ending_on_signals():
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    passed: list[bool] = []

    def enter() -> None:
        with ending_on_signals():  # only the main thread may; others leave signals alone
            passed.append(True)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert passed == [True]
