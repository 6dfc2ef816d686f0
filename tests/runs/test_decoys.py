"""The secret of a federation: made once, private, and the same flips for all of its runs."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from covertfl.runs.decoys import draw_flips, read_secret, write_secret

from covertfl.errors import InvalidInput
from covertfl.kernels.job import Examples
from covertfl.runs.train import find_task
from covertfl.training import train
from tests.support.exchangeable_runs import find_clients, make_exchangeable
from tests.support.small_runs import Stopped, stop_after


def make_secret(folder: Path) -> Path:
    task = find_task(make_exchangeable())
    path = folder / "federation.json"
    assert write_secret(path, task) == 8
    return path


def test_runs_of_a_federation_share_their_flips(tmp_path: Path) -> None:
    path = make_secret(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    shared, drawn = (
        [
            find_clients(
                make_exchangeable(trajectories=4, seed=seed, data={"seed": 3}, federation=section)
            ).replicas
            for seed in (3, 4, 5)
        ]
        for section in ({"secret": str(path)}, {})
    )
    signs = [each.signs.tobytes() for each in shared if each is not None]
    assert len(signs) == 3 and len(set(signs)) == 1
    assert len({each.signs.tobytes() for each in drawn if each is not None}) == 3


def test_more_trajectories_have_the_flips_of_fewer(tmp_path: Path) -> None:
    path = make_secret(tmp_path)
    found = {
        count: find_clients(
            make_exchangeable(trajectories=count, federation={"secret": str(path)})
        ).replicas
        for count in (2, 4, 8)
    }
    two, four, eight = (each.signs for each in found.values() if each is not None)
    np.testing.assert_array_equal(two, four[:2])
    np.testing.assert_array_equal(four, eight[:4])


def test_a_secret_is_made_once_and_kept_private(tmp_path: Path) -> None:
    path = make_secret(tmp_path)
    before = path.read_bytes()
    with pytest.raises(InvalidInput, match="exists: a federation keeps its secret"):
        make_secret(tmp_path)
    assert path.read_bytes() == before
    path.chmod(0o640)
    with pytest.raises(InvalidInput, match="readable by its owner only"):
        find_clients(make_exchangeable(federation={"secret": str(path)}))


def test_a_secret_of_another_federation_is_refused(tmp_path: Path) -> None:
    path = make_secret(tmp_path)
    with pytest.raises(InvalidInput, match="another public map"):
        find_clients(make_exchangeable(seed=9, federation={"secret": str(path)}))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "does not hold the secret"),
        ("[]", "does not hold the secret"),
        (json.dumps({"format": 1, "flips": ["+-"]}), "does not hold the secret"),
        (json.dumps({"format": 99, "flips": [], "map": ""}), "newer version"),
    ],
)
def test_a_damaged_secret_is_refused(content: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "federation.json"
    path.write_text(content)
    path.chmod(0o600)
    task = find_task(make_exchangeable())
    with pytest.raises(InvalidInput, match=sentence) as refusal:
        read_secret(path, task, 1)
    assert os.fspath(path) in str(refusal.value)


def change_secret(path: Path) -> None:
    """Exchange the first two flips of a secret."""
    content = json.loads(path.read_text())
    first, second, *rest = content["flips"]
    path.write_text(json.dumps({**content, "flips": [second, first, *rest]}))


def test_a_run_is_not_resumed_with_other_flips(tmp_path: Path) -> None:
    """Decoys would jump, and the truth would not."""
    path = make_secret(tmp_path)
    settings = make_exchangeable(federation={"secret": str(path)})
    with pytest.raises(Stopped):
        train(settings, tmp_path / "run", on_round=stop_after(7))
    change_secret(path)
    with pytest.raises(InvalidInput, match="its flips are not those of the checkpoint"):
        train(settings, tmp_path / "run", resume=True)


@pytest.mark.parametrize("flips", [["+" * 64], ["-" + "+" * 63] * 2])
def test_flips_that_generate_no_group_are_refused(flips: list[str], tmp_path: Path) -> None:
    path = make_secret(tmp_path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "flips": flips}))
    with pytest.raises(InvalidInput, match="flips must be independent"):
        read_secret(path, find_task(make_exchangeable()), len(flips))


def test_axes_that_the_public_set_knows_are_never_flipped() -> None:
    """Its two classes differ on the first eight axes, so a flip there would be seen."""
    task = find_task(make_exchangeable())
    features, labels = task.public.features.copy(), np.arange(len(task.public)) % 2
    features[:, :8] += 100.0 * labels[:, np.newaxis]
    flips = draw_flips(
        replace(task, public=Examples(features, labels)), 3, generator=np.random.default_rng(0)
    )
    assert (flips[:, :8] == 1.0).all() and (flips[:, 8:] < 0.0).any(axis=1).all()
