"""Settings and fixtures that every test shares."""

from __future__ import annotations

import gc
import hashlib
import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import covertfl as cf
from tests import ROOT
from tests.support.commands import Run, invoke
from tests.support.small_runs import HORIZON, merge, run_small

BENCHMARKS = ROOT / "benchmarks"

# The matrices of the tests are small: threads would only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# The same examples in every run: a failure on another machine can be repeated here.
settings.register_profile("covertfl", deadline=None, derandomize=True, max_examples=40)
# Other examples each time: pytest --hypothesis-profile=explore
settings.register_profile(
    "explore", deadline=None, derandomize=False, print_blob=True, max_examples=400
)
settings.load_profile("covertfl")


def pytest_collection_finish() -> None:
    """Leave all that is imported out of collections of garbage: Flower asks for many of them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _unsynced() -> Iterator[None]:
    """Leave writing to the disk to the system: no test takes the machine's power away."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # an error still, if the file is not open
        yield


@pytest.fixture(scope="session", autouse=True)
def _remembered_flips() -> Iterator[None]:
    """Look up the flips of replicas that were drawn before: many runs have the same seed and data.

    Comparing their candidates takes longer than a small run.
    """
    from covertfl.schemes.flips import draw_generators

    found: dict[bytes, Any] = {}

    def remember(free: Any, count: int, *, generator: Any, known: Any, public: Any) -> Any:
        key = hashlib.sha256(repr((count, generator.bit_generator.state)).encode())
        for values in (free, known.features, known.labels, public):
            key.update(repr((values.shape, values.dtype)).encode() + values.tobytes())
        if (name := key.digest()) not in found:
            found[name] = draw_generators(
                free, count, generator=generator, known=known, public=public
            )
        return found[name].copy()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("covertfl.schemes.flips.draw_generators", remember)
        yield


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a dozen rounds that tests look at and leave alone."""
    pytest.importorskip("torch", reason="torch is not installed")
    out = tmp_path_factory.mktemp("finished") / "run"
    run_small(out, decoy={"gated": False})
    return out


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, to be changed."""
    return Path(shutil.copytree(finished, tmp_path / "copy"))


@pytest.fixture(scope="session")
def finished_seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with three seeds, in a folder of their own each."""
    pytest.importorskip("torch", reason="torch is not installed")
    out = tmp_path_factory.mktemp("finished") / "seeds"
    cf.Run(**merge(HORIZON, {"decoy": {"gated": False}})).train(out, seeds=3)
    return out


@pytest.fixture
def run() -> Run:
    """Run a command in this process, as the installed script would."""
    return invoke


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import files of benchmarks/ as `python benchmarks/run.py` does."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == BENCHMARKS:
            del sys.modules[name]
