"""Modules described as JSON, and built again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from covertfl.errors import InvalidInput
from covertfl.tasks.models import (
    build_module,
    can_be_built,
    describe_module,
    make_head,
    make_logistic,
    make_mlp,
    make_paper_cnn,
    make_small_cnn,
)

if TYPE_CHECKING:
    from torch import Tensor


def make_nested() -> nn.Module:
    rectifier = nn.ReLU()  # used twice, without weights
    body = nn.Sequential(
        nn.Linear(4, 6, bias=False), rectifier, nn.LayerNorm(6, bias=False), nn.Tanh()
    )
    return nn.Sequential(nn.Flatten(), body, nn.Linear(6, 6), rectifier, nn.GELU())


def make_normed() -> nn.Module:
    layers = (nn.Conv2d(1, 4, 3, padding=1, stride=2, groups=1), nn.GroupNorm(2, 4))
    return nn.Sequential(*layers, nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4 * 7 * 7, 3))


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: make_head(5, 1), (5,)),
        (lambda: make_logistic(5, 3), (5,)),
        (lambda: make_mlp(5, 3), (5,)),
        (make_small_cnn, (1, 28, 28)),
        (make_paper_cnn, (1, 28, 28)),
        (make_nested, (2, 2)),
        (make_normed, (1, 28, 28)),
    ],
)
def test_a_module_is_built_again(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    module = make().eval()
    described = json.loads(json.dumps(describe_module(module)))
    assert can_be_built(described)
    built = build_module(described).eval()
    built.load_state_dict(module.state_dict())
    inputs = torch.randn(3, *shape)
    assert torch.equal(built(inputs), module(inputs))


class Own(nn.Sequential):
    """A class of one's own may compute anything."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return twice the usual."""
        return torch.mul(self[0](inputs), 2.0)


def make_shared() -> nn.Module:
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, layer)


def make_hooked() -> nn.Module:
    layer = nn.Linear(3, 3)
    layer.register_forward_hook(lambda *_: None)
    return nn.Sequential(layer)


def make_circular() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 1, 3, padding_mode="circular", padding=1))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Own(nn.Linear(3, 3)),
        lambda: nn.Sequential(nn.Embedding(3, 2)),
        lambda: nn.Linear(3, 3),
        make_shared,
        make_hooked,
        make_circular,
    ],
)
def test_what_a_description_would_not_say_is_only_named(make: Callable[[], nn.Module]) -> None:
    module = make()
    described = describe_module(module)
    assert not can_be_built(described)
    assert described["type"].endswith(type(module).__qualname__)
    assert described["text"] == repr(module)


@pytest.mark.parametrize(
    "layers", [[{"type": "Bilinear"}], [{}], 3, [{"name": "a", "type": "Linear", "arguments": {}}]]
)
def test_other_descriptions_are_refused(layers: object) -> None:
    with pytest.raises(InvalidInput):
        build_module({"type": "Sequential", "layers": layers})
