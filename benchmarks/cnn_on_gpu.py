"""Convolutional networks on a GPU: throughput of many small jobs, and whole commands.

Jobs of many clients, each with its own weights, are trained by the kernel for convolutional
networks and by `torch.func.vmap`, as in the autograd kernel.  On a CPU the same work is done by
plain torch functions, for tests.
"""

from __future__ import annotations

import gc
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from measurement import run_python, time_repeats
from section import Check, Section
from torch import nn

from covertfl import Examples, Missing
from covertfl.kernels.autograd.kernel import TorchKernel
from covertfl.kernels.autograd.module import ModelFactory
from covertfl.kernels.choose import draw_weights
from covertfl.kernels.cnn.blocks import Network, describe_network
from covertfl.kernels.cnn.kernel import CnnKernel, Precision
from covertfl.kernels.job import LocalJob, LocalKernel, LocalOptimizer, Vector
from covertfl.tasks.models import make_paper_cnn, make_small_cnn

IMAGE, CLASSES, BATCH = (1, 28, 28), 10, 40
REPEATS, PEAK_PRODUCTS = 3, 20
MODELS: dict[str, ModelFactory] = {"small-cnn": make_small_cnn, "paper-cnn": make_paper_cnn}
TABLES = ("table-mnist-20", "table-mnist-50")
# Seconds that the commands may take, and after which they are ended.
TABLES_TARGET, ALL_TARGET, LIMIT = 180.0, 300.0, 1800.0
# Distance of the weights after two ways of training, as a share of the way from their start; with
# other dropout masks it is 0.1.
AGREEMENT = 0.01


class NoGpu(Missing):
    """A machine on which PyTorch finds no GPU."""


class Size(NamedTuple):
    """How much is measured: jobs and their images, for the kernel alone and beside vmap."""

    jobs: int = 512
    images: int = 600
    predicting: int = 128
    stacked: int = 128
    stacked_images: int = 400
    examples: int = 10_000
    peak: int = 8192


SMALL = Size(16, 80, 4, 8, 80, 200, 1024)


@dataclass(frozen=True)
class Row:
    """Time of one kind of work on a number of images; `flops` are for each, 0 if not counted."""

    name: str
    images: int
    seconds: float
    flops: int
    is_short: bool = True  # whether its products are of 16-bit floats

    @property
    def rate(self) -> float:
        """Return images per second."""
        return self.images / self.seconds

    def find_share(self, peaks: Mapping[bool, float]) -> float:
        """Return the share of the peak of the same floats."""
        return self.rate * self.flops / peaks[self.is_short]

    def format(self, peaks: Mapping[bool, float]) -> tuple[str, ...]:
        """Return the row as text."""
        start = (self.name, f"{self.seconds:.3f}", f"{self.rate / 1e6:.3g}")
        if self.flops == 0:
            return (*start, "", "")
        return (*start, f"{self.rate * self.flops / 1e12:.3g}", f"{self.find_share(peaks):.1%}")


@dataclass(frozen=True)
class Command:
    """A command that took some seconds, and its results by name."""

    text: str
    seconds: float
    results: Mapping[str, Any]


# --- jobs of one kind after another --------------------------------------------------------------


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


def make_jobs(make_model: ModelFactory, jobs: int, images: int, examples: int) -> list[LocalJob]:
    """Return jobs of one length, each with its own weights."""
    generator = np.random.default_rng(0)
    features = generator.standard_normal((examples, *IMAGE), dtype=np.float32)
    data = Examples(features, generator.integers(0, CLASSES, examples))
    starts = [draw_weights(make_model, seed=seed) for seed in range(8)]
    rows = [generator.permutation(examples)[:images] for _ in range(jobs)]
    return [
        LocalJob(starts[number % 8].copy(), data, rows[number], BATCH, number)
        for number in range(jobs)
    ]


def find_network(name: str) -> Network:
    """Return what a model consists of."""
    network = describe_network(MODELS[name](), IMAGE)
    assert network is not None
    return network


def measure_peak(size: int, device: str, *, is_short: bool) -> float:
    """Return the operations per second of a large product of 16-bit floats, or in TF32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    dtype = torch.float16 if is_short else torch.float32
    left, right = (torch.randn((size, size), device=device).to(dtype) for _ in range(2))

    def multiply() -> float:
        for _ in range(PEAK_PRODUCTS):
            product = left @ right
        return float(product[0, 0])  # when the device has finished

    _, timing = time_repeats(multiply, repeats=REPEATS)
    torch.backends.cuda.matmul.allow_tf32 = before
    return 2 * size**3 * PEAK_PRODUCTS / timing.best


def measure_kernel(size: Size, device: str) -> list[Row]:
    """Measure the network of the MNIST tables in the kernel for convolutional networks."""
    network, make_model = find_network("paper-cnn"), MODELS["paper-cnn"]
    jobs = make_jobs(make_model, size.jobs, size.images, size.examples)
    rows = []

    def add(name: str, images: int, work: Any, flops: int = network.flops, **kind: bool) -> None:
        _, timing = time_repeats(work, repeats=REPEATS)  # its results are on the host
        rows.append(Row(name, images, timing.best, flops, **kind))

    def make_kernel(precision: Precision) -> CnnKernel:
        return CnnKernel(make_model, "multiclass", LocalOptimizer(), device, precision=precision)

    kernel, title = make_kernel("float16"), f"{size.jobs} jobs of {size.images} images"
    images, few = size.jobs * size.images, jobs[: max(size.jobs // 8, 1)]
    weights, features = [job.weights for job in jobs[: size.predicting]], jobs[0].examples.features
    forward = sum(block.flops for block in network.blocks)
    add(title, images, lambda: kernel.run(jobs))
    longer, exact = make_kernel("tf32"), make_kernel("float32")
    add(f"{title}, TF32", images, lambda: longer.run(jobs), is_short=False)
    add(f"{title}, float32", images, lambda: exact.run(jobs), is_short=False)
    name = f"{len(few)} jobs of {size.images} images"
    add(name, len(few) * size.images, lambda: kernel.run(few))
    name = f"forward, {len(weights)} weights"
    predicted = len(weights) * len(features)
    add(name, predicted, lambda: kernel.predict_many(weights, features), forward)
    return rows


def measure_stacks(size: Size, device: str) -> tuple[list[Row], float]:
    """Measure modules as stacks by vmap, beside the kernel for convolutional networks.

    A network with BatchNorm and dropout is trained one by one as well; the second value is how far
    apart the weights are then, as a share of the way from their start.
    """
    rows, optimizer = [], LocalOptimizer()

    def add(name: str, kernel: LocalKernel, jobs: list[LocalJob], flops: int, **kind: bool) -> Any:
        results, timing = time_repeats(lambda: kernel.run(jobs), repeats=REPEATS)
        images = sum(len(job.rows) for job in jobs)
        rows.append(Row(name, images, timing.best, flops, **kind))
        return results

    def general(make_model: ModelFactory, *, batched: bool) -> LocalKernel:
        return TorchKernel(make_model, "multiclass", optimizer, device, batched=batched)

    for name, make_model in MODELS.items():
        jobs = make_jobs(make_model, size.stacked, size.stacked_images, size.examples)
        flops = find_network(name).flops
        add(f"{name}, vmap", general(make_model, batched=True), jobs, flops, is_short=False)
        for precision in ("float32", "float16"):
            kernel = CnnKernel(make_model, "multiclass", optimizer, device, precision=precision)
            is_short = precision == "float16"
            add(f"{name}, {precision}", kernel, jobs, flops, is_short=is_short)
    jobs = make_jobs(make_normed_cnn, size.stacked, size.stacked_images, size.examples)
    title = "small-cnn with BatchNorm and dropout"
    stacked, alone = (
        add(f"{title}, {name}", general(make_normed_cnn, batched=batched), jobs, 0)
        for name, batched in (("vmap", True), ("one by one", False))
    )
    return rows, find_distance([job.weights for job in jobs], alone, stacked)


def find_distance(
    starts: Sequence[Vector], ends: Sequence[Vector], others: Sequence[Vector]
) -> float:
    """Return the largest distance of two ends, as a share of the way from their start."""
    compared = zip(starts, ends, others, strict=True)
    return max(
        float(np.linalg.norm(other - end) / np.linalg.norm(end - start))
        for start, end, other in compared
    )


# --- whole commands ------------------------------------------------------------------------------


def reproduce(names: Sequence[str], device: str, *, quick: bool) -> Command:
    """Run `python -m paper` in a separate process and a new folder."""
    arguments = [*names, "--device", device, *(["--quick"] if quick else [])]
    with tempfile.TemporaryDirectory(prefix="covertfl-gpu-") as folder:
        started = time.perf_counter()
        if run_python(["-m", "paper", *arguments, "--out", folder], limit=LIMIT) is None:
            raise RuntimeError(f"python -m paper {' '.join(arguments)} took over {LIMIT:g} s")
        seconds = time.perf_counter() - started
        results = {name: json.loads((Path(folder) / f"{name}.json").read_text()) for name in TABLES}
    return Command(f"`python -m paper {' '.join(arguments)}`", seconds, results)


def count_work(results: Mapping[str, Any]) -> tuple[int, int]:
    """Return the images that tables trained on, and the operations."""
    trained = [(result["examples"], result["settings"]["model"]) for result in results.values()]
    work = sum(images * find_network(model).flops for images, model in trained)
    return sum(images for images, _ in trained), work


# --- the section ---------------------------------------------------------------------------------


def measure(*, quick: bool) -> Section:
    """Measure everything."""
    if not torch.cuda.is_available():
        raise NoGpu("this section needs a CUDA GPU, and PyTorch found none")
    size = SMALL if quick else Size()
    rows, peaks, distance = measure_jobs(size, "cuda")
    tables, everything = (reproduce(names, "cuda", quick=quick) for names in (TABLES, ["all"]))
    about = (f"{torch.cuda.get_device_name()}, torch {torch.__version__}.", *describe(size, peaks))
    return judge(rows, peaks, distance, tables, everything, about=about)


def measure_jobs(size: Size, device: str) -> tuple[list[Row], dict[bool, float], float]:
    """Measure all jobs; return their rows, the peaks, and the distance that vmap makes."""
    peaks = {short: measure_peak(size.peak, device, is_short=short) for short in (True, False)}
    alone = measure_kernel(size, device)
    stacks, distance = measure_stacks(size, device)
    gc.collect()
    torch.cuda.empty_cache()  # commands that follow have the whole device
    return [*alone, *stacks], peaks, distance


def judge(
    rows: Sequence[Row],
    peaks: Mapping[bool, float],
    distance: float,
    tables: Command,
    everything: Command,
    *,
    about: tuple[str, ...] = (),
) -> Section:
    """Make the section of what was measured."""
    images, work = count_work(tables.results)
    speed, by_name = work / tables.seconds, {row.name: row for row in rows}
    is_same = all(
        tables.results[name]["rows"] == everything.results[name]["rows"] for name in TABLES
    )
    return Section(
        "Convolutional networks on a GPU: many small jobs at once",
        ("work", "seconds", "million images per second", "TFLOP/s", "share of the peak"),
        tuple(row.format(peaks) for row in rows),
        (
            *(
                Check(f"{one.text} in under {most:.0f} s ({one.seconds:.0f} s)", one.seconds < most)
                for one, most in ((tables, TABLES_TARGET), (everything, ALL_TARGET))
            ),
            Check("both commands have the same rows of the two tables", is_same),
            Check(
                "with BatchNorm and dropout, weights by vmap and one by one differ by at most "
                f"{AGREEMENT:.0%} of their way ({distance:.1e})",
                distance <= AGREEMENT,
            ),
        ),
        ratios={
            **{f"{name}, float16 to vmap": by_name[f"{name}, float16"].rate
               / by_name[f"{name}, vmap"].rate for name in MODELS},
            "share of the 16-bit peak, jobs": rows[0].find_share(peaks),
        },
        notes=(
            f"the two tables train on {images / 1e6:.1f} million images: from the start of the "
            f"command {speed / 1e12:.0f} TFLOP/s, {speed / peaks[True]:.0%} of the 16-bit peak",
        ),
        about=about,
    )  # fmt: skip


def describe(size: Size, peaks: Mapping[bool, float]) -> tuple[str, ...]:
    """Return paragraphs on what was measured."""
    flops = find_network("paper-cnn").flops
    return (
        f"The network of the MNIST tables ({flops / 1e6:.0f} MFLOP per training image), Adam, "
        f"batch size {BATCH}, every job with its own weights, products of 16-bit floats summed as "
        "32-bit floats unless stated otherwise.  The share is relative to one product of "
        f"{size.peak} x {size.peak} matrices timed in the same run: "
        f"{peaks[True] / 1e12:.0f} TFLOP/s with 16-bit floats, "
        f"{peaks[False] / 1e12:.0f} TFLOP/s in TF32, which rows in TF32, in float32 and by vmap "
        "are compared with.",
        f"The rows that name a model are {size.stacked} jobs of {size.stacked_images} images.  Any "
        "module can be trained as a stack of clients, by `torch.func.vmap`; float32 and float16 "
        "are the kernel for convolutional networks.",
        "The commands at the end run in separate processes, from their start, with new folders; "
        "the kernels were compiled before, for the rows of the table.",
    )
