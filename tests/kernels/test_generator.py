"""torch's generator in several threads."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("torch")
import torch
from torch import nn

from covertfl.kernels.autograd.module import isolate_generator
from covertfl.kernels.choose import draw_weights


def make_model() -> nn.Module:
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(20)))


def test_threads_draw_what_one_alone_draws() -> None:
    seeds = [seed % 7 for seed in range(60)]
    alone = [draw_weights(make_model, seed=seed).tobytes() for seed in seeds]
    before, state = sys.getswitchinterval(), torch.get_rng_state()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            drawn = list(pool.map(lambda seed: draw_weights(make_model, seed=seed), seeds))
    finally:
        sys.setswitchinterval(before)
    assert [weights.tobytes() for weights in drawn] == alone
    assert torch.equal(torch.get_rng_state(), state)


def test_blocks_may_be_inside_others() -> None:
    with isolate_generator():
        torch.default_generator.manual_seed(3)
        first = torch.rand(1)
        with isolate_generator():
            torch.default_generator.manual_seed(4)
        torch.default_generator.manual_seed(3)
        assert torch.equal(first, torch.rand(1))
