"""Count the files whose functions run in a command: what a reader has to know to follow it.

    python scripts/count_files.py train            # also: audit, serve
    python scripts/count_files.py train --list

The command is carried out on a small run, in this process and all its threads.  A file counts if a
function with a name in it is called, by the command or while it is imported; a file that only
defines names does not.  Processes that a command starts are not followed.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "src/covertfl"
RUN = """
task = "digits"
rounds = 40
updates = 4
[federation]
clients = 6
participation = [2, 4, 6]
"""
SERVICE = """
task = "digits"
problem = "sound/queue"
[federation]
clients = 6
participation = [2, 4, 6]
[service]
listen = "127.0.0.1:0"
round_seconds = 0.0
"""
SERVED_SECONDS = 3.0


def run_train(call: Callable[..., None]) -> None:
    """Train a small run."""
    Path("run.toml").write_text(RUN)
    call("train", "run.toml", "--out", "run")


def run_audit(call: Callable[..., None]) -> None:
    """Audit a small run."""
    call("audit", "run", "--rehearsals", "2")


def run_serve(call: Callable[..., None]) -> None:
    """Serve a small service for some seconds."""
    Path("service.toml").write_text(SERVICE)
    threading.Timer(SERVED_SECONDS, os.kill, (os.getpid(), signal.SIGTERM)).start()
    call("serve", "service.toml", "--out", "service")


COMMANDS = {"train": run_train, "audit": run_audit, "serve": run_serve}
FIRST = {"audit": run_train}  # what a command needs to have been done, which does not count


def call_command(*words: str) -> None:
    """Run a command of covertfl in this process, its output discarded unless it fails."""
    from covertfl.cli.app import main

    sys.argv, printed = ["covertfl", *words], io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            main()
        except SystemExit as ended:
            if ended.code:
                raise RuntimeError(printed.getvalue()) from ended


def count(name: str) -> list[Path]:
    """Return the files of the package whose functions a command runs."""
    called: set[str] = set()

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        # Bodies of modules and classes are not optimized, and comprehensions have no name.
        code = frame.f_code
        if event == "call" and code.co_flags & inspect.CO_OPTIMIZED and code.co_name[0] != "<":
            called.add(code.co_filename)

    if name in FIRST:
        FIRST[name](call_command)
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        COMMANDS[name](call_command)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    found = (Path(file) for file in called if not file.startswith("<"))
    return sorted(file for file in found if SOURCE in file.parents)


def main() -> int:
    """Print how many files a command runs functions of, and which."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--list", action="store_true", help="print the files")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        files = count(asked.command)
    if asked.list:
        print("\n".join(str(file.relative_to(SOURCE)) for file in files))
    print(f"{asked.command}: functions of {len(files)} files run")
    return 0


if __name__ == "__main__":
    sys.exit(main())
