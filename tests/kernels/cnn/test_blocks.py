"""Which networks are stacks of blocks."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from torch import nn

from covertfl.kernels.choose import choose_kernel
from covertfl.kernels.cnn.blocks import describe_network
from covertfl.kernels.cnn.cpu import CnnCpuKernel
from covertfl.kernels.cnn.kernel import fits_cnn_kernel
from covertfl.kernels.job import LocalOptimizer
from covertfl.tasks.models import make_mlp, make_paper_cnn, make_small_cnn
from tests.support.small_cnns import make_dropping, make_plain


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(2 * 8 * 8, 3)],
        [nn.Conv2d(1, 2, 3, stride=2), nn.Flatten(), nn.Linear(2 * 3 * 3, 3)],
        [nn.Conv2d(1, 2, 3), nn.GELU(), nn.Flatten(), nn.Linear(72, 3)],
        [nn.Conv2d(1, 2, 3), nn.Dropout(1.0), nn.Flatten(), nn.Linear(72, 3)],
        [nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(50, 3)],
        [nn.Conv2d(1, 2, 3), nn.Dropout(0.1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 3)],
        [nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 3), nn.ReLU()],
        [nn.ReLU(), nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 3)],
        [nn.Conv2d(1, 3, 8)],
    ],
)
def test_other_networks_are_left_to_the_general_kernel(layers: list[nn.Module]) -> None:
    assert not fits_cnn_kernel(nn.Sequential(*layers))
    assert describe_network(nn.Sequential(*layers), (1, 8, 8)) is None


def test_which_networks_fit() -> None:
    assert fits_cnn_kernel(make_small_cnn()) and fits_cnn_kernel(make_paper_cnn())
    assert fits_cnn_kernel(make_plain()) and fits_cnn_kernel(make_dropping())
    assert not fits_cnn_kernel(make_mlp(4, 2))
    kernel = choose_kernel(make_small_cnn, "multiclass", LocalOptimizer())
    assert isinstance(kernel, CnnCpuKernel)
