"""Client apps that run as another user than the owner of a federation that root starts.

Such an app cannot read what only the owner may read: the run file, `private/`, the token, other
nodes' keys.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from covertfl.errors import InvalidInput
from covertfl.processes import end_with_parent

DEFAULT_USER = "nobody"
PROBE = """
import os, sys
needs = lambda path: os.R_OK | (0 if os.path.isfile(path) else os.X_OK)
print(*[path for path in sys.argv[1:] if not os.access(path, needs(path))], sep="\\n")
"""


def choose_user(paths: Sequence[Path], announce: Callable[[str], None]) -> str | None:
    """Return who runs the client apps of root's federation if nobody else is named.

    That is `DEFAULT_USER`, or None for the owner where that user cannot run them; then the reason
    is announced.

    Parameters
    ----------
    paths : as in `check_user`
    """
    if os.geteuid() != 0:
        return None
    try:
        check_user(DEFAULT_USER, paths)
    except InvalidInput as error:
        announce(f"warning: client apps run as root, because {error}")
        return None
    return DEFAULT_USER


def check_user(name: str, paths: Sequence[Path]) -> None:
    """Raise InvalidInput if client apps cannot run as a user.

    Parameters
    ----------
    paths : existing folders and files that they need, besides those of the Python environment
    """
    if os.geteuid() != 0:
        raise InvalidInput(f"only root can run client apps as another user, got {name!r}")
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise InvalidInput(f"client apps must run as an existing user, got {name!r}") from None
    if entry.pw_uid == 0:
        raise InvalidInput(f"client apps must run as another user than root, got {name!r}")
    needed = [*filter(os.path.isdir, sys.path), *map(str, paths)]
    try:
        found = subprocess.run(
            [sys.executable, "-I", "-S", "-c", PROBE, *needed],
            user=entry.pw_uid,
            group=entry.pw_gid,
            extra_groups=[],
            cwd="/",
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        raise InvalidInput(f"the user {name} cannot run {sys.executable}") from None
    if found.stdout.strip():
        raise InvalidInput(f"the user {name} must be able to read {found.stdout.splitlines()[0]}")


def become_user(name: str, folders: Sequence[Path]) -> None:
    """Give up root's rights in this process for good; the folders become the user's.

    The user may search, but not list, the parents of the folders.
    """
    entry, parent = pwd.getpwnam(name), os.getppid()
    for folder in folders:
        folder.mkdir(exist_ok=True)
        folder.parent.chmod(folder.parent.stat().st_mode | 0o001)
        # Never again: the user may have put links into it.
        if folder.stat().st_uid != entry.pw_uid:
            for path in (*folder.rglob("*"), folder):
                os.lchown(path, entry.pw_uid, entry.pw_gid)
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    end_with_parent(parent)
