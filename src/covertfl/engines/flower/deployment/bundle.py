"""The app bundle that every node gets: what goes into it, and what must never be in it.

A bundle is a zip file of a Flower project.  Flower packs all files of the project that are not
excluded, server code and settings included, and sends them to all nodes.  Here the project holds
the client app alone; the server app is a module that only the server can import.
"""

from __future__ import annotations

import io
import json
import re
import tomllib
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from covertfl.errors import InvalidInput
from covertfl.schemes.registry import SCHEMES

# Modules that the bundle's pyproject.toml names.  The first exists on the server only.
SERVER_MODULE, CLIENT_MODULE = "federation_server", "federation_client"
CLIENT_RUN = "client_run.toml"
# Environment variable of an eavesdropper's own client app that names the folder of its records.
RECORDS = "COVERTFL_RECORDS"
# Keys that reveal when the true weights are sent, or what is sent instead ...
SECRET_KEYS = frozenset(
    {"arrivals", "budget", "cost", "horizon", "learn_prob", "oracle", "pivot", "preset"}
    | {"problem", "queue", "scheme", "secret", "trajectories", "updates"}
    | {section for scheme in SCHEMES.values() for section in scheme.sections}
)
# ... and words that do so in any key.
SECRET_WORDS = frozenset({"covert", "decoy", "decoys", "exposure", "obfuscate", "policy"})

PROJECT = f"""\
[project]
name = "federation"
version = "1.0.0"
description = "Federated training"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "federation"

[tool.flwr.app.components]
serverapp = "{SERVER_MODULE}:app"
clientapp = "{CLIENT_MODULE}:app"

[tool.flwr.app.config]
"""
CLIENT = f'''\
"""The client app: trains on this node's share of the data."""

from pathlib import Path

from covertfl.flower import make_client_app

app = make_client_app(Path(__file__).with_name("{CLIENT_RUN}"))
'''


@dataclass(frozen=True)
class OwnApp:
    """A Flower app that is run instead of the built-in task's.

    Parameters
    ----------
    project : folder that becomes the bundle, with pyproject.toml
    server : folder with modules that only the server may import; its app reads where the run is
        with `read_server_settings`
    eavesdropper : client app of the last node, as module:attribute, None to record with the
        bundle's own
    eavesdropper_path : folder that this app is imported from
    """

    project: Path
    server: Path | None = None
    eavesdropper: str | None = None
    eavesdropper_path: Path = Path()


def find_own_app(project: Path, server: Path | None, eavesdropper: str | None) -> OwnApp:
    """Return the app that options of the command line name, the eavesdropper as FILE.PY:ATTRIBUTE.

    Raises
    ------
    InvalidInput
        if a folder or file does not exist
    """
    for folder in filter(None, (project, server)):
        if not folder.is_dir():
            raise InvalidInput(f"{folder}: no such folder; the folder of a Flower app is needed")
    if eavesdropper is None:
        return OwnApp(project, server)
    file, _, attribute = eavesdropper.partition(":")
    path = Path(file)
    if path.suffix != ".py" or not path.is_file() or not attribute.isidentifier():
        raise InvalidInput(
            f"--eavesdropper must be FILE.PY:APP, a file and the client app in it, "
            f"got {eavesdropper!r}"
        )
    return OwnApp(project, server, f"{path.stem}:{attribute}", path.parent)


def write_app(folder: Path, client_run: str) -> None:
    """Write the project of a built-in task: the client app and the run file of clients."""
    files = {"pyproject.toml": PROJECT, f"{CLIENT_MODULE}.py": CLIENT, CLIENT_RUN: client_run}
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")


def build_bundle(folder: Path) -> bytes:
    """Build the bundle of a Flower project as Flower does, and check its content.

    Raises
    ------
    InvalidInput
        if it cannot be built, or holds what no node may have
    """
    from flwr.cli.build import build_fab_from_disk

    if not (folder / "pyproject.toml").is_file():
        raise InvalidInput(f"{folder} must be the folder of a Flower app, with pyproject.toml")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Flower's dependencies
            bundle = build_fab_from_disk(folder)
    except Exception as error:  # Flower raises many kinds
        raise InvalidInput(f"{folder} cannot be packed into a bundle: {error}") from error
    check_bundle(bundle, str(folder))
    return bundle


def check_bundle(bundle: bytes, name: str) -> None:
    """Raise InvalidInput if a bundle holds the server's code, or settings that reveal the scheme.

    Messages name the project.
    """
    with zipfile.ZipFile(io.BytesIO(bundle)) as files:
        contents = {entry: files.read(entry) for entry in files.namelist()}
    project = tomllib.loads(contents["pyproject.toml"].decode())
    app = project["tool"]["flwr"]["app"]
    server = app["components"]["serverapp"].partition(":")[0]
    places = {f"{server.replace('.', '/')}{end}" for end in (".py", "/__init__.py")}
    for entry in contents:
        if entry in places:
            raise InvalidInput(
                f"{name}: the server app {entry} would be sent to every node: keep it in a folder "
                "of its own, or name it in fab-exclude"
            )
    _check_keys(app.get("config", {}), f"{name}: [tool.flwr.app.config]")
    for entry, content in contents.items():
        if entry != "pyproject.toml":
            _check_keys(_read_settings(entry, content), f"{name}: {entry}")


def _read_settings(name: str, content: bytes) -> Mapping[str, Any]:
    """Return the content of a settings file, nothing for any other file."""
    kind = PurePosixPath(name).suffix
    try:
        if kind == ".toml":
            return tomllib.loads(content.decode())
        if kind == ".json":
            found = json.loads(content)
            return found if isinstance(found, dict) else {}
    except ValueError:
        pass
    return {}


def _check_keys(settings: Mapping[str, Any], place: str) -> None:
    found = [key for key in _list_keys(settings) if _is_revealing(key.lower())]
    if found:
        raise InvalidInput(
            f"{place} would be sent to every node and must not have the key {min(found)}, which "
            "reveals the scheme: settings of the server belong in a file that only it can read"
        )


def _list_keys(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of settings and of their sections."""
    for key, value in settings.items():
        yield key
        if isinstance(value, Mapping):
            yield from value


def _is_revealing(key: str) -> bool:
    return key in SECRET_KEYS or bool(SECRET_WORDS & set(re.split(r"\W|_", key)))
