"""The passes of a block in plain torch."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
import torch

from covertfl.kernels.cnn.blocks import describe_network
from covertfl.kernels.cnn.passes import PlainPasses
from tests.support.small_cnns import IMAGE, make_dropping


def test_dropout_keeps_its_rate_and_scale() -> None:
    network = describe_network(make_dropping(), IMAGE)
    assert network is not None
    block = network.blocks[0]
    ones = torch.ones((3, 200, block.out_height, block.out_width, block.outputs))
    keys = torch.tensor([[1, 2], [3, 4], [1, 2]], dtype=torch.int32)
    values = PlainPasses().pool(block, ones, keys).numpy()
    assert set(np.unique(values)) == {np.float32(0.0), np.float32(1.0 / 0.6)}
    assert abs((values[0] > 0.0).mean() - 0.6) < 0.02
    assert values[0].tobytes() == values[2].tobytes() != values[1].tobytes()
    assert (PlainPasses().pool(block, ones, None) == 1.0).all()
