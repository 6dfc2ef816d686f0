"""Client apps that root lets another user run cannot read what only the owner may read."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from covertfl.engines.flower.deployment.bundle import RECORDS
from covertfl.engines.flower.deployment.federation import LocalNode
from covertfl.engines.flower.deployment.fork import fork_and_run
from covertfl.engines.flower.deployment.rights import become_user, check_user, choose_user
from covertfl.engines.flower.deployment.run import EAVESDROPPER, Deployment
from covertfl.errors import InvalidInput
from tests.support.small_runs import make_run, read_rounds

USER = "nobody"
is_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
SPY = """
import json, os
from pathlib import Path
from covertfl.flower import make_eavesdropper_app
from federation_client import app as bundled

records, whole = Path(os.environ["COVERTFL_RECORDS"]), Path(os.environ["FLWR_HOME"]).parent.parent
secrets = [records.parent / name for name in ("run.toml", "private/rounds.jsonl", "metrics.jsonl")]
secrets += [whole / name for name in ("control.secret", "node0", "server-only/run.toml")]
found = []
for path in secrets:
    try:
        path.read_text()
        found.append("read")
    except OSError as error:
        found.append(type(error).__name__)
(records / "found.json").write_text(json.dumps([os.getuid(), found]))
app = make_eavesdropper_app(bundled, records)
"""


@pytest.fixture
def reachable(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that other users can reach, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    (folder / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder / "scratch"))
    yield folder
    shutil.rmtree(folder)


@is_root
def test_users_that_client_apps_cannot_run_as(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for name, said in (
        ("nobody-has-this-name", "must run as an existing user"),
        ("root", "must run as another user than root"),
        (USER, f"must be able to read|cannot run {sys.executable}"),
    ):
        with pytest.raises(InvalidInput, match=said):
            check_user(name, [closed])


@is_root
def test_root_gives_client_apps_to_nobody_where_that_can_be(
    reachable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    closed = reachable / "closed"
    closed.mkdir(mode=0o700)
    assert choose_user([closed], said.append) is None
    assert len(said) == 1 and said[0].startswith("warning: client apps run as root, because the")
    monkeypatch.setattr("covertfl.engines.flower.deployment.rights.check_user", lambda *_: None)
    assert choose_user([reachable], said.append) == USER
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert choose_user([reachable], said.append) is None
    assert len(said) == 1


@is_root
def test_rights_are_given_up_for_good_and_links_are_not_followed(reachable: Path) -> None:
    own, secret = reachable / "own", reachable / "secret"
    secret.write_text("x")
    secret.chmod(0o600)

    def work() -> None:
        become_user(USER, [own])
        (own / "link").symlink_to(secret)
        for attempt in (lambda: os.setuid(0), lambda: os.seteuid(0), secret.read_text):
            with pytest.raises(PermissionError):
                attempt()

    for _ in range(2):
        process = fork_and_run(work)
        assert os.waitpid(process, 0)[1] == 0
        (own / "link").unlink()
    assert own.stat().st_uid == pwd.getpwnam(USER).pw_uid
    assert secret.stat().st_uid == 0


@is_root
@pytest.mark.deployment
def test_a_client_app_of_another_user_reads_no_secrets(
    reachable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_run(
        federation={"clients": 3, "participation": [1, 2, 3], "min_share": 0.2},
        decoy={"kind": "public"},
        policy={"kind": "random"},
        rounds=2,
        updates=1,
    )
    try:
        check_user(USER, [])
    except InvalidInput as error:
        pytest.skip(str(error))
    out, spy = reachable / "out", reachable / "spy"
    spy.mkdir()
    (spy / "spy.py").write_text(SPY)
    records = out / EAVESDROPPER
    last = LocalNode(app="spy:app", path=[str(spy)], environment={RECORDS: str(records)})
    deployment = Deployment(settings, out, num_nodes=2, node_user=USER, timeout=20.0)
    monkeypatch.setattr(deployment, "_make_nodes", lambda: [LocalNode(), last])
    with deployment:
        deployment.follow(deployment.start())
    user = pwd.getpwnam(USER).pw_uid
    assert json.loads((records / "found.json").read_text()) == [user, ["PermissionError"] * 6]
    sent = [line["weights"] for line in read_rounds(out, "public/rounds.jsonl")]
    assert [line["weights"] for line in read_rounds(out, f"{EAVESDROPPER}/rounds.jsonl")] == sent
    assert (records / "rounds.jsonl").stat().st_uid == user
    assert not list((reachable / "scratch").iterdir())
