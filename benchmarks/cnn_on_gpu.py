"""Throughput of the paper's network on a GPU: `python benchmarks/cnn_on_gpu.py`.

Measures the jobs of many clients with different weights, the same jobs as chains that stay on the
device, forward passes of many weights, and the same jobs by `torch.func.vmap`, as in the autograd
kernel.  Each is compared with the peak that the card reaches in one large product of 16-bit floats,
or in TF32 where it computes with 32-bit floats.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from covertfl.kernels.autograd.kernel import TorchKernel
from covertfl.kernels.choose import draw_weights
from covertfl.kernels.cnn.blocks import describe_network
from covertfl.kernels.cnn.kernel import CnnKernel
from covertfl.kernels.job import Examples, LocalJob, LocalOptimizer
from covertfl.tasks.models import make_paper_cnn

IMAGE, CLASSES, BATCH = (1, 28, 28), 10, 40
NUM_EXAMPLES = 10_000
PEAK_SIZE, PEAK_REPEATS = 8192, 20
REPEATS = 3


@dataclass(frozen=True)
class Row:
    """Time of one kind of work on a number of images."""

    name: str
    images: int
    seconds: float
    flops: int
    is_short: bool = True  # whether its products are of 16-bit floats

    def describe(self, peaks: Mapping[bool, float]) -> str:
        """Format images per second, operations per second, and the share of the peak."""
        peak = peaks[self.is_short]
        rate = self.images / self.seconds
        return (
            f"{self.name:<46} {self.seconds:8.3f} s {rate / 1e6:8.3f} million images/s "
            f"{rate * self.flops / 1e12:7.1f} TFLOP/s {rate * self.flops / peak:6.1%}"
        )


def measure_peak(*, is_short: bool) -> float:
    """Return the operations per second of one large product of 16-bit floats, or in TF32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    dtype = torch.float16 if is_short else torch.float32
    sides = [torch.randn((PEAK_SIZE, PEAK_SIZE), device="cuda").to(dtype) for _ in range(2)]
    seconds = time_best(lambda: [sides[0] @ sides[1] for _ in range(PEAK_REPEATS)])
    torch.backends.cuda.matmul.allow_tf32 = before
    return float(2 * PEAK_SIZE**3 * PEAK_REPEATS / seconds)


def time_best(work: Callable[[], object]) -> float:
    """Return the seconds of the best of a few repeats, after one warm-up run."""
    work()
    seconds = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def make_jobs(num_jobs: int, num_images: int) -> list[LocalJob]:
    """Return jobs of one length, each with its own weights."""
    generator = np.random.default_rng(0)
    features = generator.standard_normal((NUM_EXAMPLES, *IMAGE), dtype=np.float32)
    examples = Examples(features, generator.integers(0, CLASSES, NUM_EXAMPLES))
    starts = [draw_weights(make_paper_cnn, seed=seed) for seed in range(8)]
    return [
        LocalJob(
            starts[number % len(starts)].copy(),
            examples,
            generator.permutation(NUM_EXAMPLES)[:num_images],
            BATCH,
            number,
        )
        for number in range(num_jobs)
    ]


def measure(num_jobs: int, num_images: int, moves: int) -> list[Row]:
    """Measure all kinds of work."""
    network = describe_network(make_paper_cnn(), IMAGE)
    assert network is not None
    forward = sum(block.flops for block in network.blocks)
    jobs = make_jobs(num_jobs, num_images)
    images = num_jobs * num_images
    kernel = CnnKernel(make_paper_cnn, "multiclass", LocalOptimizer(), "cuda")
    longer = CnnKernel(make_paper_cnn, "multiclass", LocalOptimizer(), "cuda", precision="tf32")
    exact = CnnKernel(make_paper_cnn, "multiclass", LocalOptimizer(), "cuda", precision="float32")
    general = TorchKernel(make_paper_cnn, "multiclass", LocalOptimizer(), "cuda")
    chains = [[[job]] * moves for job in jobs]
    few = jobs[: max(num_jobs // 8, 1)]
    weights = [job.weights for job in jobs[:128]]
    features = jobs[0].examples.features
    title = f"{num_jobs} jobs of {num_images} images"
    return [
        Row(title, images, time_best(lambda: kernel.run(jobs)), network.flops),
        Row(
            f"{num_jobs} chains of {moves} such jobs",
            images * moves,
            time_best(lambda: kernel.run_chains(chains)),
            network.flops,
        ),
        Row(f"{title}, tf32", images, time_best(lambda: longer.run(jobs)), network.flops, False),
        Row(f"{title}, float32", images, time_best(lambda: exact.run(jobs)), network.flops, False),
        Row(
            f"{len(few)} jobs of {num_images} images",
            len(few) * num_images,
            time_best(lambda: kernel.run(few)),
            network.flops,
        ),
        Row(
            f"{len(few)} jobs of {num_images} images, torch.func.vmap",
            len(few) * num_images,
            time_best(lambda: general.run(few)),
            network.flops,
            False,
        ),
        Row(
            f"forward, {len(weights)} weights",
            len(weights) * len(features),
            time_best(lambda: kernel.predict_many(weights, features)),
            forward,
        ),
    ]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=512)
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--moves", type=int, default=8)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("this benchmark needs a CUDA GPU, and PyTorch found none")
        return 4
    peaks = {is_short: measure_peak(is_short=is_short) for is_short in (True, False)}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(
        f"one product of {PEAK_SIZE} x {PEAK_SIZE}: {peaks[True] / 1e12:.0f} TFLOP/s with 16-bit "
        f"floats, {peaks[False] / 1e12:.0f} in TF32"
    )
    for row in measure(options.jobs, options.images, options.moves):
        print(row.describe(peaks), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
