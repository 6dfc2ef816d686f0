"""Local jobs of small convolutional networks on a GPU: many jobs as one stack of networks.

A step takes one batch of every job in the stack; each network has its own weights.  Dropout uses
the masks of `dropout.hash_dropout_mask`.

On a GPU the factors of products have 10 bits of mantissa, as 16-bit floats (gradients are scaled to
their range) or as TF32, and sums are 32-bit floats, unless a higher precision is chosen.  What is
not finite with 16-bit floats, whose range is small, is computed again in TF32.  Results repeat
exactly from run to run and do not depend on the other jobs of the stack.  On a CPU the same steps
consist of plain torch functions, for tests; there the last bits may depend on the other jobs.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from torch import nn

from covertfl.errors import InvalidInput
from covertfl.kernels.autograd.module import ModelFactory, describe_layout, isolate_generator
from covertfl.kernels.cnn.blocks import Network, describe_network
from covertfl.kernels.cnn.memory import DeviceMemory
from covertfl.kernels.cnn.passes import PlainPasses
from covertfl.kernels.cnn.trainer import StackTrainer
from covertfl.kernels.job import (
    Examples,
    Float32Array,
    LocalJob,
    LocalOptimizer,
    Loss,
    Vector,
    check_job,
    check_weights,
)

if TYPE_CHECKING:
    from covertfl.kernels.cnn.gpu import TritonPasses

Precision = Literal["float16", "tf32", "float32"]

# Number of weights that predict together, and of floats in the weights of jobs that run together,
# which bound the memory.
_PREDICTED_WEIGHTS, _HELD_FLOATS = 64, 2**31
_LARGEST_SIDE = 128


def fits_cnn_kernel(module: nn.Module) -> bool:
    """Return whether `CnnKernel` can run a module, for square images of some size."""
    return find_image(module) is not None


def find_image(module: nn.Module) -> tuple[int, int, int] | None:
    """Return the smallest square images (channels, rows, columns) that fit a network, or None."""
    first = next(iter(module.children()), None)
    if not isinstance(first, nn.Conv2d):
        return None
    shapes = ((first.in_channels, side, side) for side in range(1, _LARGEST_SIDE + 1))
    return next((shape for shape in shapes if describe_network(module, shape) is not None), None)


@dataclass(frozen=True, eq=False)
class _Part:
    """Jobs of one kind that run together, and their numbers."""

    numbers: list[int]
    jobs: list[LocalJob]

    def choose(self, places: Sequence[int]) -> _Part:
        """Return some of the jobs."""
        return _Part([self.numbers[n] for n in places], [self.jobs[n] for n in places])


class CnnKernel:
    """Kernel for local jobs of stacks of convolutional networks.

    Parameters
    ----------
    model_factory : returns the module, one that `fits_cnn_kernel`
    loss : binary (mean of binary cross entropy with logits) or multiclass (mean cross entropy)
    device : cuda, or cpu for tests
    precision : of products on a GPU: float16, tf32 or float32, from fast to exact
    """

    def __init__(
        self,
        model_factory: ModelFactory,
        loss: Loss,
        optimizer: LocalOptimizer,
        device: str = "cuda",
        *,
        precision: Precision = "float16",
    ) -> None:
        with isolate_generator():
            self._module = model_factory()
        self.layout = describe_layout(self._module)
        self.loss: Loss = loss
        self.optimizer = optimizer
        self.device = torch.device(device)
        self._memory = DeviceMemory(self.device, self.layout.size)
        if precision not in get_args(Precision):
            allowed = " or ".join(get_args(Precision))
            raise InvalidInput(f"precision must be {allowed}, got {precision!r}")
        self._trainers = [self._make_trainer(precision)]
        if precision == "float16" and self.device.type != "cpu":
            self._trainers.append(self._make_trainer("tf32"))  # for what is not finite
        self._lock = Lock()
        self._networks: dict[tuple[int, ...], Network] = {}
        # Sets whose labels all fit the model.
        self._fitting: weakref.WeakSet[Examples] = weakref.WeakSet()

    def _make_trainer(self, precision: Precision) -> StackTrainer:
        passes: PlainPasses | TritonPasses = PlainPasses()
        if self.device.type != "cpu":
            from covertfl.kernels.cnn.gpu import TritonPasses

            passes = TritonPasses("tf32x3" if precision == "float32" else precision)
        return StackTrainer(passes, self.loss, self.optimizer, self._memory)

    def run(self, jobs: Sequence[LocalJob]) -> list[Vector]:
        """Return the weights after each job, or its gradient.

        What is not finite is computed again where that may help.
        """
        for job in jobs:
            self._check(job)
        found: dict[int, Vector] = {}
        with self._at_work():
            for whole in self._list_parts(jobs):
                part = whole
                for trainer in self._trainers:
                    results, is_finite = self._run_part(trainer, part)
                    found |= zip(part.numbers, results, strict=True)
                    part = part.choose([n for n, finite in enumerate(is_finite) if not finite])
                    if not part.numbers:
                        break
        return [found[number] for number in range(len(jobs))]

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Let one call at a time use the device."""
        is_cuda = self.device.type == "cuda"
        with (
            self._lock,
            torch.no_grad(),
            torch.cuda.device(self.device) if is_cuda else nullcontext(),
        ):
            yield

    def _list_parts(self, jobs: Sequence[LocalJob]) -> Iterator[_Part]:
        """Yield jobs of one kind, as many as their weights fit into the memory."""
        kinds: dict[tuple[str, int, tuple[int, ...]], list[int]] = {}
        for number, job in enumerate(jobs):
            kind = (job.work, job.batch_size, job.examples.features.shape[1:])
            kinds.setdefault(kind, []).append(number)
        most = max(_HELD_FLOATS // (2 * self.layout.size), 1)  # weights are held twice
        for members in kinds.values():
            for start in range(0, len(members), most):
                numbers = members[start : start + most]
                yield _Part(numbers, [jobs[number] for number in numbers])

    def _check(self, job: LocalJob) -> None:
        check_job(job, self.layout, self.loss)
        network = self._find_network(job.examples.features.shape[1:])
        self._check_labels(job, network.blocks[-1].outputs)

    def _check_labels(self, job: LocalJob, outputs: int) -> None:
        if self.loss == "binary" and outputs != 1:
            raise InvalidInput(f"a model with a binary loss must have one output, got {outputs}")
        if self.loss == "binary" or not len(job.rows) or job.examples in self._fitting:
            return
        if 0 <= job.examples.labels.min() <= job.examples.labels.max() < outputs:
            self._fitting.add(job.examples)
            return
        labels = job.examples.labels[job.rows]
        if not 0 <= labels.min() <= labels.max() < outputs:
            raise InvalidInput(
                f"labels must lie between 0 and {outputs - 1}, got {labels.min()} to {labels.max()}"
            )

    def _find_network(self, image: tuple[int, ...]) -> Network:
        """Return the network for images of a shape (channels, rows, columns)."""
        if image not in self._networks:
            network = describe_network(self._module, image)
            if network is None:
                raise InvalidInput(f"features must be images that fit the model, got shape {image}")
            self._networks[image] = network
        return self._networks[image]

    def _run_part(self, trainer: StackTrainer, part: _Part) -> tuple[list[Vector], list[bool]]:
        """Return the results of jobs, and whether each is finite."""
        jobs = part.jobs
        network = self._find_network(jobs[0].examples.features.shape[1:])
        weights = self._memory.load_weights(network, [job.weights for job in jobs])
        found = self._find_results(trainer, network, jobs, weights)
        places = torch.from_numpy(network.places).to(self.device)
        results = found.index_select(1, places)
        is_finite: list[bool] = results.isfinite().all(dim=1).tolist()
        return self._memory.download(results), is_finite

    def _find_results(
        self,
        trainer: StackTrainer,
        network: Network,
        jobs: Sequence[LocalJob],
        weights: torch.Tensor,
    ) -> torch.Tensor:
        """Return the (J, padded) results of jobs from initial weights."""
        data = self._memory.load_examples(jobs)
        # A batch is no wider than the longest job.
        width = min(jobs[0].batch_size, max(len(job.rows) for job in jobs))
        if jobs[0].work == "gradient":
            return trainer.sum_gradients(network, data, jobs, width, weights)
        trainer.train(network, data, jobs, width, weights)
        return weights

    def predict(self, weights: Vector, features: Float32Array) -> Float32Array:
        """Return (n, outputs) raw outputs (logits), without dropout."""
        outputs: Float32Array = self.predict_many([weights], features)[0]
        return outputs

    def predict_many(self, weights: Sequence[Vector], features: Float32Array) -> Float32Array:
        """Return (K, n, outputs) raw outputs of K weights for the same features."""
        for vector in weights:
            check_weights(vector, self.layout)
        network = self._find_network(features.shape[1:])
        found = np.empty((len(weights), len(features), network.blocks[-1].outputs), np.float32)
        with self._at_work():
            images = self._memory.move_images(features)
            for start in range(0, len(weights), _PREDICTED_WEIGHTS):
                some = slice(start, start + _PREDICTED_WEIGHTS)
                stack = self._memory.load_weights(network, weights[some])
                found[some] = self._predict(network, stack, images).cpu().numpy()
        return found

    def _predict(self, network: Network, stack: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        """Return outputs; what is not finite is computed again as in `run`."""
        first, *others = self._trainers
        outputs = first.predict(network, stack, images)
        for trainer in others:
            is_bad = ~outputs.isfinite().flatten(1).all(dim=1)
            if is_bad.any():
                outputs[is_bad] = trainer.predict(network, stack[is_bad], images)
        return outputs
