"""The kernel on a GPU against the same steps on a CPU."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
import torch

from covertfl.kernels.autograd.module import ModelFactory
from covertfl.kernels.choose import choose_kernel
from covertfl.kernels.cnn.blocks import Block
from covertfl.kernels.cnn.kernel import CnnKernel, Precision
from covertfl.kernels.cnn.passes import PlainPasses
from covertfl.kernels.job import Examples, LocalOptimizer
from tests.support.plain_loop import OPTIMIZERS
from tests.support.small_cnns import make_dropping, make_jobs, make_plain

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("make_model", [make_plain, make_dropping])
def test_a_gpu_agrees_with_the_cpu(make_model: ModelFactory, optimizer: str) -> None:
    jobs, options = make_jobs(make_model), OPTIMIZERS[optimizer]
    found = CnnKernel(make_model, "multiclass", options, "cuda", precision="float32").run(jobs)
    plain = CnnKernel(make_model, "multiclass", options, "cpu").run(jobs)
    for job, one, other in zip(jobs, found, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=0.0, atol=2e-5, err_msg=str(job.seed))


@pytest.mark.parametrize("precision", ["float16", "tf32", "float32"])
def test_bits_of_a_gpu_depend_on_the_job_alone(precision: Precision) -> None:
    jobs = make_jobs(make_dropping)
    kernel = CnnKernel(make_dropping, "multiclass", LocalOptimizer(), precision=precision)
    first, again = kernel.run(jobs), kernel.run(jobs[::-1])[::-1]
    for job, one, two in zip(jobs, first, again, strict=True):
        assert one.tobytes() == two.tobytes() == kernel.run([job])[0].tobytes()


# Height, width, channels, size of the window, outputs; pairs of pixels are one in the first two.
@pytest.mark.parametrize(
    "sizes",
    [(8, 8, 32, 3, 3, 32), (9, 10, 32, 5, 5, 16), (7, 7, 32, 3, 3, 32), (8, 9, 32, 3, 2, 16)],
)
def test_products_agree_whether_pixels_are_paired_or_not(
    sizes: tuple[int, int, int, int, int, int],
) -> None:
    """With numbers that 16-bit floats hold; gradients by inputs are rounded to such numbers."""
    from covertfl.kernels.cnn.gpu import TritonPasses

    *_, outputs = sizes
    weights_size = math.prod(sizes[2:])
    block = Block(*sizes, weights_start=0, biases_start=weights_size, is_rectified=True)
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).half().float()

    weights, x = draw(2, weights_size + outputs), draw(2, 3, *sizes[:3])
    dy = draw(2, 3, block.out_height, block.out_width, outputs)
    plain, short = PlainPasses(), TritonPasses("float16")
    own, its, gradient = (one.cuda().half() for one in (weights, x, dy))
    pairs = [
        (plain.convolve(block, x, weights, torch.float32), 1e-4,
         short.convolve(block, its, own, torch.float32)),
        (plain.convolve_transposed(block, dy, weights, x), 1e-3,
         short.convolve_transposed(block, gradient, own, its)),
    ]  # fmt: skip
    ours, others = torch.zeros_like(weights), torch.zeros_like(weights).cuda()
    plain.correlate(block, x, dy, ours)
    short.correlate(block, its, gradient, others)
    for one, tolerance, other in [*pairs, (ours, 1e-4, others * short.scale)]:
        assert (one - other.cpu().float()).norm() < tolerance * one.norm()


@pytest.mark.parametrize("precision", ["float16", "tf32"])
def test_short_products_are_close(precision: Precision) -> None:
    """Most of the difference comes from windows where rounding makes another pixel the largest."""
    job = replace(make_jobs(make_plain)[0], work="gradient")
    short = CnnKernel(make_plain, "multiclass", LocalOptimizer(), precision=precision).run([job])
    exact = CnnKernel(make_plain, "multiclass", LocalOptimizer(), "cpu").run([job])[0]
    assert np.linalg.norm(short[0] - exact) < 0.03 * np.linalg.norm(exact)


def test_what_16_bits_cannot_hold_is_computed_with_more() -> None:
    """Features beyond 65,504, beside a job that fits."""
    small = make_jobs(make_plain)[0]
    features = small.examples.features * np.float32(1e6)
    large = replace(small, examples=Examples(features, small.examples.labels))
    kernel = CnnKernel(make_plain, "multiclass", LocalOptimizer())
    exact = CnnKernel(make_plain, "multiclass", LocalOptimizer(), precision="tf32")
    found = kernel.run([small, large])
    assert found[0].tobytes() == kernel.run([small])[0].tobytes()
    assert found[1].tobytes() == exact.run([large])[0].tobytes()
    assert np.isfinite(found[1]).all()


def test_images_go_to_this_kernel() -> None:
    assert isinstance(choose_kernel(make_plain, "multiclass", LocalOptimizer(), "cuda"), CnnKernel)
