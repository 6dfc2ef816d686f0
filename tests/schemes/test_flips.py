"""Sign flips: the layer and axes that they flip, and the secret that keeps them.

A secret is made once, is private, and has the same flips for all runs of a federation.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

pytest.importorskip("torch")

import torch
from torch import nn

from covertfl.errors import InvalidInput
from covertfl.kernels.job import Examples
from covertfl.runs.train import find_task
from covertfl.schemes.flips import (
    draw_flips,
    draw_generators,
    find_pivot,
    read_secret,
    span,
    write_secret,
)
from covertfl.training import train
from tests.support.exchangeable_runs import find_scheme, make_exchangeable
from tests.support.small_runs import Stopped, stop_after

# --- the pivot ---------------------------------------------------------------------------------


class Known(nn.Module):
    """A model with pretrained first weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 3), nn.Linear(3, 1)
        with torch.no_grad():
            self.first.weight.fill_(0.5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(inputs)))  # type: ignore[no-any-return]


class Swapped(nn.Module):
    """A model that is defined in another order than it computes in."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first = nn.Linear(3, 1), nn.Linear(4, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(inputs)))  # type: ignore[no-any-return]


class Shortcut(nn.Module):
    """A model whose second layer sees the inputs, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 3), nn.Linear(7, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        seen = torch.cat([torch.relu(self.first(inputs)), inputs], dim=1)
        return self.last(seen)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("make", "shape", "name"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1)), (4,), "0.weight"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), (1, 4, 4), "1.weight"),
        (lambda: nn.Linear(4, 2), (4,), "weight"),
        (Swapped, (4,), "first.weight"),
        (
            lambda: nn.Sequential(nn.Dropout(0.2), nn.Linear(4, 3), nn.LayerNorm(3)),
            (4,),
            "1.weight",
        ),
    ],
)
def test_the_first_trained_layer_is_the_pivot(
    make: Callable[[], nn.Module], shape: tuple[int, ...], name: str
) -> None:
    assert find_pivot(make, shape) == find_pivot(make, shape, name) == name


@pytest.mark.parametrize(
    ("make", "shape", "sentence"),
    [
        (lambda: nn.Sequential(nn.Conv2d(1, 2, 3)), (1, 8, 8), "must be linear in the inputs"),
        (lambda: nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2)), (4,), "got LayerNorm"),
        (lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)), (4,), "got BatchNorm1d"),
        (lambda: nn.Sequential(nn.ReLU(), nn.Linear(4, 2)), (4,), "inputs' signs"),
        (
            lambda: nn.Sequential(nn.LayerNorm(4, elementwise_affine=False), nn.Linear(4, 2)),
            (4,),
            "inputs' signs",
        ),
        (Known, (4,), "starts from known ones"),
        (Shortcut, (4,), "inputs' signs"),
        (lambda: nn.Sequential(nn.ReLU()), (4,), "got none"),
    ],
)
def test_other_models_are_refused(
    make: Callable[[], nn.Module], shape: tuple[int, ...], sentence: str
) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        find_pivot(make, shape)


def test_another_layer_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"pivot must be 0.weight.* got 2.weight"):
        find_pivot(
            lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1)), (4,), "2.weight"
        )


def test_torchs_generator_is_left_as_it_was() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    find_pivot(lambda: nn.Linear(4, 2), (4,))
    assert torch.equal(before, torch.get_rng_state())


# --- flips -------------------------------------------------------------------------------------


@given(axes=st.integers(1, 12), count=st.integers(1, 3), seed=st.integers(0, 500))
def test_generators_flip_free_axes_only_and_generate_a_group(
    axes: int, count: int, seed: int
) -> None:
    free = np.random.default_rng(seed).random(12) < axes / 12
    generator = np.random.default_rng(seed)
    if free.sum() < count:
        with pytest.raises(InvalidInput, match=f"at least {count} axes"):
            draw_generators(free, count, generator=generator)
        return
    flips = draw_generators(free, count, generator=generator)
    signs = span(flips)
    assert np.all(signs[:, ~free] == 1.0)
    assert len(np.unique(signs, axis=0)) == 2**count
    for one in range(2**count):
        for other in range(2**count):
            np.testing.assert_array_equal(signs[one] * signs[other], signs[one ^ other])


def make_known(rows: int = 800, axes: int = 24) -> Examples:
    generator = np.random.default_rng(4)
    labels = (np.arange(rows) % 2).astype(np.float32)
    features = generator.normal(size=(rows, axes))
    features += 0.6 * labels[:, np.newaxis] * generator.normal(size=axes)
    return Examples(features.astype(np.float32), labels)


def separate(known: Examples, signs: np.ndarray[tuple[int], np.dtype[np.float32]]) -> float:
    """Distance of the classes' means along the reflected difference of the means itself."""
    positive = known.features[known.labels == 1.0].mean(axis=0)
    difference = positive - known.features[known.labels == 0.0].mean(axis=0)
    return abs(float(difference @ (difference * signs)) / float(difference @ difference))


def test_labelled_rows_of_the_server_choose_flips_that_hide_the_classes() -> None:
    known, free = make_known(), np.ones(24, dtype=bool)
    drawn: list[float] = []
    chosen: list[float] = []
    for seed in range(20):
        for found, rows in ((drawn, None), (chosen, known)):
            generator = np.random.default_rng(seed)
            flips = draw_generators(free, 2, generator=generator, known=rows)
            found += [separate(known, signs) for signs in span(flips)[1:]]
    assert np.mean(chosen) < 0.6 * np.mean(drawn)


def test_the_choice_of_flips_does_not_depend_on_the_frame() -> None:
    """Reflecting all labelled rows leaves the flips as they are: the theorem needs this."""
    known, free = make_known(), np.ones(24, dtype=bool)
    signs = np.where(np.random.default_rng(8).random(24) < 0.5, -1.0, 1.0).astype(np.float32)
    public = np.random.default_rng(9).gamma(2.0, size=(300, 24)).astype(np.float32) - 2.0
    one, other = (
        draw_generators(
            free,
            3,
            generator=np.random.default_rng(2),
            known=Examples(known.features * flipped, known.labels),
            public=public * flipped,
        )
        for flipped in (np.ones_like(signs), signs)
    )
    np.testing.assert_array_equal(one, other)


def test_flips_leave_the_shape_of_answers_on_the_public_set_alone() -> None:
    """Public inputs are skewed in half of the axes: those are flipped less."""
    known, free = make_known(), np.ones(24, dtype=bool)
    generator = np.random.default_rng(7)
    public = generator.normal(size=(800, 24)).astype(np.float32)
    weights = known.features[known.labels == 1.0].mean(axis=0)
    weights -= known.features[known.labels == 0.0].mean(axis=0)
    public[:, ::2] = np.sign(weights[::2]) * (generator.exponential(size=(800, 12)) - 1.0)

    def skew(signs: np.ndarray[tuple[int], np.dtype[np.float32]]) -> float:
        outputs = public @ (weights * signs)
        return float(np.mean(((outputs - outputs.mean()) / outputs.std()) ** 3))

    plain = np.ones(24, dtype=np.float32)
    changes: dict[bool, list[float]] = {False: [], True: []}
    for seed in range(12):
        for uses, found in changes.items():
            [flips] = draw_generators(
                free,
                1,
                generator=np.random.default_rng(seed),
                known=known,
                public=public if uses else None,
            )
            found.append(abs(skew(flips) - skew(plain)))
    assert np.mean(changes[True]) < 0.7 * np.mean(changes[False])


def test_fewer_trajectories_have_a_subgroup() -> None:
    free = np.ones(24, dtype=bool)
    flips = [
        draw_generators(free, count, generator=np.random.default_rng(2), known=make_known())
        for count in (1, 2, 3)
    ]
    np.testing.assert_array_equal(flips[0], flips[2][:1])
    np.testing.assert_array_equal(flips[1], flips[2][:2])


# --- the secret --------------------------------------------------------------------------------


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
            find_scheme(
                make_exchangeable(trajectories=4, seed=seed, data={"seed": 3}, federation=section)
            ).replicas.signs.tobytes()
            for seed in (3, 4, 5)
        ]
        for section in ({"secret": str(path)}, {})
    )
    assert len(set(shared)) == 1
    assert len(set(drawn)) == 3


def test_more_trajectories_have_the_flips_of_fewer(tmp_path: Path) -> None:
    path = make_secret(tmp_path)
    two, four, eight = (
        find_scheme(
            make_exchangeable(trajectories=count, federation={"secret": str(path)})
        ).replicas.signs
        for count in (2, 4, 8)
    )
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
        find_scheme(make_exchangeable(federation={"secret": str(path)}))


def test_a_secret_of_another_federation_is_refused(tmp_path: Path) -> None:
    path = make_secret(tmp_path)
    with pytest.raises(InvalidInput, match="another public map"):
        find_scheme(make_exchangeable(seed=9, federation={"secret": str(path)}))


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
