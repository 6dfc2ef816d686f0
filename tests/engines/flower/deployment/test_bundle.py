"""The bundle that every node gets holds the client app and reveals nothing of the scheme."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from covertfl.engines.flower.client_app import format_client_run
from covertfl.engines.flower.deployment.bundle import build_bundle, find_own_app, write_app
from covertfl.engines.flower.deployment.checks import as_deployed
from covertfl.errors import InvalidInput
from covertfl.files.text import parse_toml
from covertfl.runs.settings import build_run, format_run
from tests import ROOT
from tests.support.small_runs import make_run

EXAMPLE = ROOT / "examples" / "flower_toxicity"
SMALL: dict[str, Any] = {"federation": {"clients": 4, "participation": [1, 2, 4]}}


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
        {"decoy": {"kind": "mirrored"}, "updates": 2, "federation": federation},
        {"federation": {**federation, "min_share": 0.4, "acceptance": "model"}},
    ]
    bundles = set()
    for number, scheme in enumerate(schemes):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_app(folder, format_client_run(as_deployed(make_run(**scheme))))
        bundles.add(build_bundle(folder))
    assert len(bundles) == 1


def test_nodes_get_the_public_map_and_nothing_else_of_replicas(tmp_path: Path) -> None:
    scheme: dict[str, Any] = {
        "scheme": "exchangeable",
        "exchangeable": {"trajectories": 4, "pivot": "weight"},
        "federation": {**SMALL["federation"], "secret": str(tmp_path / "hidden.json")},
        "data": {"seed": 5},
    }
    known = format_client_run(as_deployed(make_run(**scheme)))
    plain = format_client_run(as_deployed(make_run(**SMALL, data={"seed": 5, "map": "public"})))
    assert known == plain
    assert build_run(parse_toml(known, "run"), "run", folder=tmp_path).sections.data.map == "public"
    (tmp_path / "app").mkdir()
    write_app(tmp_path / "app", known)
    build_bundle(tmp_path / "app")
    for section, key in (
        ("federation", "secret"),
        ("task", "trajectories"),
        ("anything", "pivot"),
        ("anything", "scheme"),
        ("anything", "problem"),
        ("anything", "policy"),
        ("anything", "decoy"),
    ):
        text = f'[{section}]\n{key} = "4"\n'
        with pytest.raises(InvalidInput, match=rf"run\.toml .*must not have the key {key}"):
            build_bundle(make_project(tmp_path / key, run__toml=text))


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
