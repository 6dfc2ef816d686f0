"""A user's Flower project that is deployed instead of a built-in task."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from covertfl.errors import InvalidInput


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
    eavesdropper_path: Path | None = None


def find_own_app(project: Path, server: Path | None, eavesdropper: str | None) -> OwnApp:
    """Return the app that options of the command line name.

    Parameters
    ----------
    eavesdropper : FILE.PY:ATTRIBUTE, None for the bundle's own app with a recorder around it

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
