"""A node recomputes the replies of all clients from the bundle, and with them the true moves.

The bundle of a built-in task says which examples every client simulates.  If it also held the seed
of what clients draw, one of them could name the true trajectory: the only one that moves to the
average of the replies to its query.
"""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")

from flwr.clientapp import ClientApp

from covertfl.engines.flower.client_app import format_client_run, make_client_app
from covertfl.engines.flower.deployment.bundle import CLIENT_MODULE, CLIENT_RUN, write_app
from covertfl.engines.flower.deployment.checks import as_deployed
from covertfl.flower import CovertStrategy, InProcessGrid
from covertfl.kernels.job import Layout, Vector
from covertfl.runs.participation import count_batches
from covertfl.runs.public import PublicTranscript
from covertfl.runs.settings import read_run
from covertfl.runs.simulated import make_client_job
from covertfl.runs.train import KernelCache, find_task
from covertfl.seeding import Stream, make_generator
from tests.support.small_runs import make_run, read_rounds

NODES = 4
RUN: dict[str, Any] = {
    "federation": {"clients": NODES, "participation": [1, 2, 4], "min_share": 0.1},
    "policy": {"kind": "random"},
    "decoy": {"kind": "random"},
    "horizon": {"rounds": 24, "updates": 24},
}


def load_bundled(folder: Path) -> ClientApp:
    """Return the client app as a node imports it from the bundle."""
    found = importlib.util.spec_from_file_location(CLIENT_MODULE, folder / f"{CLIENT_MODULE}.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    app: ClientApp = module.app
    return app


class BundleReader:
    """A node that trains in the place of every client, with all seeds that it can find."""

    def __init__(self, bundle: Path) -> None:
        self._settings = read_run(bundle / CLIENT_RUN)
        self._task = find_task(self._settings)
        self._kernel = KernelCache().find(self._task, self._settings.sections)

    @property
    def layout(self) -> Layout:
        return self._kernel.layout

    def average(self, weights: Vector, number: int) -> Vector:
        """Return the average of the replies to a query, as clients would draw from the seed."""
        sections = self._settings.sections
        seed = sections.seed if sections.data.seed is None else sections.data.seed
        known, jobs = self._settings.with_seed(seed), []
        for client, rows in enumerate(self._task.clients):
            generator = make_generator(seed, Stream.PARTICIPATION, number, client)
            most = int(count_batches(np.array(len(rows)), sections.federation.batch_size))
            batches = int(generator.integers(0, most + 1))
            if batches:
                jobs.append(make_client_job(known, self._task, client, batches, weights, number))
        replies = np.array(self._kernel.run(jobs), dtype=np.float64)
        shares = np.array([len(job.rows) for job in jobs], dtype=np.float64)
        return np.asarray((shares @ replies) / shares.sum(), dtype=np.float32)


def count_recomputed(run: Path, reader: BundleReader) -> tuple[int, int]:
    """Return how many true moves a node recomputes, and the number of true moves."""
    transcript = PublicTranscript(run / "public")
    sent = [
        reader.layout.join(transcript.read_weights(record.weights)) for record in transcript.records
    ]
    rounds = read_rounds(run)
    found = moves = 0
    true = [number for number, record in enumerate(rounds) if record["trajectory"] == 0]
    for before, after in itertools.pairwise(true):
        length = np.linalg.norm(sent[after] - sent[before])
        if length == 0.0:
            continue
        moves += 1
        guess = reader.average(sent[before], rounds[before]["round"])
        found += bool(np.linalg.norm(sent[after] - guess) < 1e-3 * length)
    return found, moves


def attack(tmp_path: Path, changes: dict[str, Any], *, shares_seed: bool) -> tuple[int, int]:
    """Run a deployment in this process and return how many of its true moves are recomputed."""
    settings = as_deployed(make_run(**RUN, **changes))
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    write_app(bundle, format_client_run(settings))
    app = load_bundled(bundle)
    if shares_seed:
        app = make_client_app(bundle / CLIENT_RUN, seed=settings.seed)
    CovertStrategy(run=settings, out=tmp_path / "run", seed=5).start(InProcessGrid(app, NODES))
    return count_recomputed(tmp_path / "run", BundleReader(bundle))


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_no_true_move_can_be_recomputed_from_the_bundle(model: str, tmp_path: Path) -> None:
    found, moves = attack(tmp_path, {"data": {"model": model}}, shares_seed=False)
    assert moves >= 10
    assert found == 0


def test_with_a_seed_that_all_nodes_know_every_true_move_is_recomputed(tmp_path: Path) -> None:
    found, moves = attack(tmp_path, {}, shares_seed=True)
    assert moves >= 10
    assert found == moves
