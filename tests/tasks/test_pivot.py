"""The pivot: found where replicas work, refused in one sentence where they do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch
from covertfl.tasks.pivot import find_pivot
from torch import nn

from covertfl.errors import InvalidInput


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
