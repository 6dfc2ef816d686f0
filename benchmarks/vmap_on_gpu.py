"""Any module as a stack of clients on a GPU: `python benchmarks/vmap_on_gpu.py [--device cpu]`.

Measures jobs of many clients by `torch.func.vmap`, as in the autograd kernel, beside the same jobs
by the hand-written kernel of convolutional networks, and jobs of a network with BatchNorm and
dropout beside the same jobs one by one.  Needs NumPy, PyTorch and the package, not compiled.
"""

from __future__ import annotations

import argparse
import sys
import time
from importlib.util import find_spec

import numpy as np
import torch
from torch import nn

from covertfl.kernels.autograd.kernel import TorchKernel
from covertfl.kernels.autograd.module import ModelFactory, list_values
from covertfl.kernels.cnn.kernel import CnnKernel, Precision
from covertfl.kernels.job import Examples, LocalJob, LocalKernel, LocalOptimizer
from covertfl.kernels.weights import Vector
from covertfl.tasks.models import make_paper_cnn, make_small_cnn

IMAGE, CLASSES, BATCH, NUM_EXAMPLES = (1, 28, 28), 10, 40, 10_000
REPEATS = 3


def make_normed_cnn() -> nn.Module:
    """Make the small network with BatchNorm after its convolutions, and dropout."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 5, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(256, CLASSES),
    )


def draw_start(make_model: ModelFactory, seed: int) -> Vector:
    """Return the weights and measured buffers of a freshly initialised module."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        parts = list_values(make_model())
    return np.concatenate([part.detach().numpy().ravel() for part in parts]).astype(np.float32)


def make_jobs(make_model: ModelFactory, num_jobs: int, num_images: int) -> list[LocalJob]:
    """Return jobs of one length, each with its own weights."""
    generator = np.random.default_rng(0)
    features = generator.standard_normal((NUM_EXAMPLES, *IMAGE), dtype=np.float32)
    examples = Examples(features, generator.integers(0, CLASSES, NUM_EXAMPLES))
    starts = [draw_start(make_model, seed) for seed in range(8)]
    return [
        LocalJob(
            starts[number % 8].copy(),
            examples,
            generator.permutation(NUM_EXAMPLES)[:num_images],
            BATCH,
            number,
        )
        for number in range(num_jobs)
    ]


def time_best(kernel: LocalKernel, jobs: list[LocalJob]) -> tuple[float, list[Vector]]:
    """Return the seconds of the best of a few repeats, after one warm-up run, and the results."""
    results, seconds = kernel.run(jobs), []
    for _ in range(REPEATS):
        started = time.perf_counter()
        kernel.run(jobs)  # its results are NumPy arrays, so that the device has finished
        seconds.append(time.perf_counter() - started)
    return min(seconds), results


def list_kernels(device: str) -> list[tuple[str, ModelFactory, list[tuple[str, LocalKernel]]]]:
    """Return for each model its kernels by name."""
    has_triton = find_spec("triton") is not None or device == "cpu"

    def general(make_model: ModelFactory, *, batched: bool) -> LocalKernel:
        return TorchKernel(make_model, "multiclass", LocalOptimizer(), device, batched=batched)

    def by_hand(make_model: ModelFactory, precision: Precision) -> LocalKernel:
        optimizer = LocalOptimizer()
        return CnnKernel(make_model, "multiclass", optimizer, device, precision=precision)

    models: list[tuple[str, ModelFactory, list[tuple[str, LocalKernel]]]] = []
    plain: tuple[tuple[str, ModelFactory], ...] = (
        ("small-cnn", make_small_cnn),
        ("paper-cnn", make_paper_cnn),
    )
    for name, make_model in plain:
        kernels = [("vmap", general(make_model, batched=True))]
        if has_triton:
            kernels.append(("by hand, float32", by_hand(make_model, "float32")))
            kernels.append(("by hand, float16", by_hand(make_model, "float16")))
        models.append((name, make_model, kernels))
    normed = (("vmap", True), ("one by one", False))
    models.append(
        (
            "small-cnn, BatchNorm, dropout",
            make_normed_cnn,
            [(name, general(make_normed_cnn, batched=batched)) for name, batched in normed],
        )
    )
    return models


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=128)
    parser.add_argument("--images", type=int, default=400)
    options = parser.parse_args()
    if options.device != "cpu" and not torch.cuda.is_available():
        print("this benchmark needs a CUDA GPU, and PyTorch found none")
        return 4
    machine = "CPU" if options.device == "cpu" else torch.cuda.get_device_name()
    print(f"{machine}, torch {torch.__version__}")
    print(f"{options.jobs} jobs of {options.images} images, batches of {BATCH}")
    for title, make_model, kernels in list_kernels(options.device):
        jobs = make_jobs(make_model, options.jobs, options.images)
        first: list[Vector] | None = None
        for name, kernel in kernels:
            seconds, results = time_best(kernel, jobs)
            first = first or results
            worst = max(
                float(np.abs(one - two).max()) for one, two in zip(first, results, strict=True)
            )
            rate = options.jobs * options.images / seconds
            print(
                f"{title:<30} {name:<17} {seconds:8.3f} s {rate:12,.0f} images/s "
                f"(weights differ by at most {worst:.1e})",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
