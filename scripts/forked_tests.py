"""Run tests in children of a process that has imported the large libraries, but not covertfl.

`Tests` copies the working tree to a temporary folder and starts this file there.  A request is a
line of JSON on its standard input, an answer one on its standard output.  A child imports covertfl
from the copy, and so does every process that its tests start.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

LARGE = """
numpy scipy.optimize scipy.sparse.linalg scipy.stats scipy.special numba torch torch.func
pydantic typer rich.table rich.progress matplotlib.pyplot hypothesis hypothesis.extra.numpy
flwr.app flwr.server flwr.serverapp.strategy flwr.clientapp flwr.simulation flwr.supercore
httpx2 starlette.testclient uvicorn cryptography.x509 PIL.Image sklearn
"""
IGNORED = shutil.ignore_patterns(
    ".git",
    ".venv",
    "*.egg-info",
    ".hypothesis",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    "out",
)
CPU_SECONDS, WALL_SECONDS = 60, 180  # a test may take so long and ten times what it took before


class Tests:
    """Tests of a copy of a working tree whose sources may be changed."""

    def __init__(self, root: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="mutants-")
        self.root = Path(self._folder.name) / "tree"
        shutil.copytree(root, self.root, ignore=IGNORED, symlinks=True)
        self.package = self.root / "src" / "covertfl"
        self._log = (Path(self._folder.name) / "server.log").open("w")
        inside = ["unshare", "--pid", "--fork", "--mount-proc"] if os.geteuid() == 0 else []
        path = os.pathsep.join([str(self.root / "src"), str(self.root)])
        self._server = subprocess.Popen(
            [*inside, sys.executable, str(Path(__file__).resolve()), self._folder.name],
            cwd=self.root,
            env={
                **os.environ,
                "PYTHONPATH": path,
                "NUMBA_CACHE_DIR": f"{self._folder.name}/numba",
                "OPENBLAS_NUM_THREADS": "1",
                "OMP_NUM_THREADS": "1",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._changes = 0
        self._is_compiled = False

    def __enter__(self) -> Tests:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        try:
            self._server.wait(30)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._log.close()
        self._folder.cleanup()

    def run(self, arguments: list[str], chosen: dict[str, float] | None = None) -> dict[str, Any]:
        """Run the tests that pytest's arguments name; of these only the chosen ones, if given.

        The chosen ones come with the seconds that they took before.  The answer's `status` is
        pytest's, or minus the signal that ended the child; `test` is the first that failed.
        """
        assert self._server.stdin is not None and self._server.stdout is not None
        request = {"arguments": arguments, "chosen": chosen, "compiled": self._is_compiled}
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        answer = self._server.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process that runs tests has ended: {self._log.name}")
        return dict(json.loads(answer))

    @contextlib.contextmanager
    def changed(self, path: Path, content: bytes) -> Iterator[None]:
        """Have another content in a file of the copy for a while."""
        before, times = path.read_bytes(), path.stat()
        path.write_bytes(content)
        self._changes += 1  # no compiled form fits, also none of an earlier change
        os.utime(path, (times.st_atime, times.st_mtime + 1000 + self._changes))
        self._is_compiled = b"numba" in before
        try:
            yield
        finally:
            self._is_compiled = False
            path.write_bytes(before)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


class _Chosen:
    """A plugin that runs the chosen tests, and writes down the first that fails."""

    def __init__(self, chosen: dict[str, float] | None, note: Path) -> None:
        self.chosen = chosen
        self.note = note
        self.order: dict[str, int] = {}
        for name in chosen or ():
            self.order.setdefault(name.partition("::")[0], len(self.order))

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        if self.chosen is None:
            return
        left = [item for item in items if item.nodeid not in self.chosen]
        items[:] = [item for item in items if item.nodeid in self.chosen]
        items.sort(key=lambda item: self.order[item.nodeid.partition("::")[0]])
        config.hook.pytest_deselected(items=left)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.note.write_text(f"collecting {report.nodeid}")

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.note.write_text(report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        longer = 10 * (self.chosen or {}).get(item.nodeid, 30.0)
        self.note.with_suffix(".now").write_text(item.nodeid)
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS + longer)
        signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS + longer)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            signal.setitimer(signal.ITIMER_REAL, 0.0)


def _test(request: dict[str, Any], folder: Path) -> None:
    """Run the tests of a request in this process, which ends with pytest's status."""
    os.setsid()
    log = os.open(folder / "tests.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, file in ((0, nothing), (1, log), (2, log)):
        os.dup2(file, number)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)  # these end the process: the tests took too long
    if request["compiled"]:
        from numba.core import config

        cache = folder / "numba-changed"
        shutil.rmtree(cache, ignore_errors=True)
        os.environ["NUMBA_CACHE_DIR"] = str(cache)
        config.reload_config()  # type: ignore[no-untyped-call]
    chosen = request["chosen"]
    expected = sum((chosen or {}).values()) or 60.0
    resource.setrlimit(resource.RLIMIT_CPU, (int(180 + 6 * expected),) * 2)
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:cov", "-p", "no:xdist"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis is here already
    options += [f"--basetemp={folder / 'temporary'}", *request["arguments"]]
    status = 3
    try:
        status = int(pytest.main(options, plugins=[_Chosen(chosen, folder / "failed")]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _answer(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run the tests of a request in a child and return what became of them."""
    for name in ("failed", "failed.now"):
        (folder / name).unlink(missing_ok=True)
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        _test(request, folder)
    _, ended = os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what its tests have left
    shutil.rmtree(folder / "temporary", ignore_errors=True)
    status = os.waitstatus_to_exitcode(ended)
    note = folder / ("failed" if (folder / "failed").exists() else "failed.now")
    test = note.read_text() if status != 0 and note.exists() else None
    return {"status": status, "test": test, "seconds": round(time.monotonic() - started, 1)}


def serve(folder: Path) -> None:
    """Answer requests until there are no more."""
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for name in LARGE.split():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    assert not any(name.partition(".")[0] == "covertfl" for name in sys.modules)
    for line in requests:
        answers.write(json.dumps(_answer(json.loads(line), folder)) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
