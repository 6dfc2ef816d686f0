"""Local jobs of small convolutional networks on a GPU: many jobs as one stack of networks.

A step takes one batch of every job; each network of the stack has its own weights.  Jobs are sorted
by length, and the stack shrinks as short ones end.  Dropout uses the masks of
`dropout.dropout_mask`.

On a GPU the factors of products have 10 bits of mantissa (TF32) and sums are 32-bit floats, unless
a higher precision is chosen.  Results repeat exactly from run to run and do not depend on the other
jobs of the stack.  On a CPU the same steps consist of plain torch functions, for tests; there the
last bits may depend on the other jobs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import nn

from covertfl.errors import InvalidInput
from covertfl.kernels.autograd.module import ModelFactory, describe_layout
from covertfl.kernels.cnn.blocks import Network, describe_network
from covertfl.kernels.cnn.memory import DeviceExamples, DeviceMemory
from covertfl.kernels.cnn.passes import PlainPasses
from covertfl.kernels.cnn.ratings import ChainRatings, RatedChain
from covertfl.kernels.cnn.steps import Steps, count_stacked, count_steps, find_stops, plan_chain
from covertfl.kernels.cnn.trainer import StackTrainer
from covertfl.kernels.job import Examples, LocalJob, LocalOptimizer, Loss, check_job, check_weights
from covertfl.kernels.weights import Float32Array, Vector

if TYPE_CHECKING:
    from covertfl.kernels.cnn.gpu import TritonPasses

Precision = Literal["tf32", "float32"]

# Number of weights that predict together, which bounds the memory.
_PREDICTED_WEIGHTS = 64
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
class _Stack:
    """Chains that run together, in falling order of length, and their numbers."""

    numbers: list[int]
    chains: list[Sequence[LocalJob]]


class CnnKernel:
    """Kernel for local jobs of stacks of convolutional networks.

    Parameters
    ----------
    model_factory : returns the module, one that `fits_cnn_kernel`
    loss : binary (mean of binary cross entropy with logits) or multiclass (mean cross entropy)
    device : cuda, or cpu for tests
    precision : of products on a GPU: tf32, or float32 at about half the speed
    """

    def __init__(
        self,
        model_factory: ModelFactory,
        loss: Loss,
        optimizer: LocalOptimizer,
        device: str = "cuda",
        *,
        precision: Precision = "tf32",
    ) -> None:
        with torch.random.fork_rng(devices=[]):
            self._module = model_factory()
        self.layout = describe_layout(self._module)
        self.loss: Loss = loss
        self.optimizer = optimizer
        self.device = torch.device(device)
        self._memory = DeviceMemory(self.device, self.layout.size)
        self._trainer = StackTrainer(self._choose_passes(precision), loss, optimizer, self._memory)
        self._lock = Lock()
        self._networks: dict[tuple[int, ...], Network] = {}
        # Sets whose labels all fit the model.
        self._fitting: weakref.WeakSet[Examples] = weakref.WeakSet()

    def _choose_passes(self, precision: Precision) -> PlainPasses | TritonPasses:
        if precision not in ("tf32", "float32"):
            raise InvalidInput(f"precision must be tf32 or float32, got {precision!r}")
        if self.device.type == "cpu":
            return PlainPasses()
        from covertfl.kernels.cnn.gpu import TritonPasses

        return TritonPasses("tf32" if precision == "tf32" else "tf32x3")

    def run(self, jobs: Sequence[LocalJob]) -> list[Vector]:
        """Return the weights after each job, or its gradient."""
        return self.run_chains([[job] for job in jobs])

    def run_chains(self, chains: Sequence[Sequence[LocalJob]]) -> list[Vector]:
        """Return the weights after the last job of each chain.

        A job of a chain starts from the weights after the previous one, with a new optimizer; only
        the first uses its own weights.  Nothing leaves the device in between.  The jobs of a chain,
        at least one, have the same batch size; gradients are possible only in chains of one job.
        """
        for chain in chains:
            self._check_chain(chain)
        found: dict[int, Vector] = {}
        with self._at_work():
            for stack in self._list_stacks(chains):
                results = self._memory.download(self._run_stack(stack))
                found.update(zip(stack.numbers, results, strict=True))
        return [found[number] for number in range(len(chains))]

    def average_jobs(self, groups: Sequence[Sequence[LocalJob]]) -> list[Vector]:
        """Return the mean result of each group's jobs, weighted by their rows (FedAvg, FedSGD).

        It is summed in double precision, jobs with more batches first, so that it depends on the
        group alone.  Only means leave the device.
        """
        jobs = [job for group in groups for job in group]
        owners = [number for number, group in enumerate(groups) for _ in group]
        sizes = [sum(len(job.rows) for job in group) for group in groups]
        if not all(sizes):
            raise InvalidInput("a mean needs at least one example, got none")
        for job in jobs:
            self._check_chain([job])
        with self._at_work():
            shape = (len(groups), self.layout.size)
            totals = torch.zeros(shape, dtype=torch.float64, device=self.device)
            for stack in self._list_stacks([[job] for job in jobs]):
                for number, result in zip(stack.numbers, self._run_stack(stack), strict=True):
                    totals[owners[number]].add_(result, alpha=len(jobs[number].rows))
            counts = torch.tensor(sizes, dtype=torch.float64, device=self.device)
            return self._memory.download((totals / counts[:, None]).float())

    def rate_chains(
        self,
        chains: Sequence[Sequence[LocalJob]],
        stops: Sequence[Sequence[int]],
        *,
        coarse: Examples,
        full: Examples,
    ) -> list[RatedChain]:
        """Run chains as `run_chains` does and return their accuracies along the way.

        Parameters
        ----------
        chains : as for `run_chains`, of jobs that train
        stops : for each chain, the numbers of jobs after which it is rated, rising, from 0
        coarse : examples for every stop
        full : examples for the best stop and for the end
        """
        for chain, places in zip(chains, stops, strict=True):
            self._check_chain(chain)
            if chain[0].work != "train" or not places or not 0 <= places[-1] <= len(chain):
                raise InvalidInput(
                    "a rated chain must train and have stops between 0 and its number of jobs"
                )
        found: dict[int, RatedChain] = {}
        with self._at_work():
            for stack in self._list_stacks(chains):
                rated = self._rate_stack(stack, [stops[n] for n in stack.numbers], coarse, full)
                found.update(zip(stack.numbers, rated, strict=True))
        return [found[number] for number in range(len(chains))]

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

    def _list_stacks(self, chains: Sequence[Sequence[LocalJob]]) -> Iterator[_Stack]:
        """Yield stacks of chains of one kind, the longest first."""
        kinds: dict[tuple[str, int, tuple[int, ...]], list[int]] = {}
        for number, chain in enumerate(chains):
            image = chain[0].examples.features.shape[1:]
            kinds.setdefault((chain[0].work, chain[0].batch_size, image), []).append(number)
        for (_, batch_size, _), members in kinds.items():
            members.sort(key=lambda number: -count_steps(chains[number]))
            most = count_stacked(batch_size)
            for start in range(0, len(members), most):
                numbers = members[start : start + most]
                yield _Stack(numbers, [chains[number] for number in numbers])

    def _check_chain(self, chain: Sequence[LocalJob]) -> None:
        if not chain:
            raise InvalidInput("a chain must have at least one job, got none")
        for job in chain:
            check_job(job, self.layout, self.loss)
            network = self._find_network(job.examples.features.shape[1:])
            self._check_labels(job, network.blocks[-1].outputs)
        forms = {(job.work, job.batch_size, job.examples.features.shape[1:]) for job in chain}
        if len(forms) > 1 or (len(chain) > 1 and chain[0].work == "gradient"):
            raise InvalidInput(
                "all jobs of a chain must train, with the same batch size and size of images"
            )

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

    def _run_stack(self, stack: _Stack) -> torch.Tensor:
        """Return (J, P) results, on the device."""
        network, data, plans, weights = self._load_stack(stack)
        if stack.chains[0][0].work == "train":
            for _ in self._trainer.train(network, data, plans, weights):
                pass
        else:
            weights = self._trainer.sum_gradients(network, data, plans, weights)
        return weights.index_select(1, torch.from_numpy(network.places).to(self.device))

    def _load_stack(
        self, stack: _Stack
    ) -> tuple[Network, DeviceExamples, list[Steps], torch.Tensor]:
        """Return what the steps of a stack need, on the device."""
        jobs = [job for chain in stack.chains for job in chain]
        network = self._find_network(jobs[0].examples.features.shape[1:])
        data = self._memory.load_examples(jobs)
        # A batch is no wider than the longest job.
        width = min(jobs[0].batch_size, max(len(job.rows) for job in jobs))
        plans = [plan_chain(chain, data, width) for chain in stack.chains]
        weights = self._memory.load_weights(network, [chain[0].weights for chain in stack.chains])
        return network, data, plans, weights

    def _rate_stack(
        self, stack: _Stack, stops: Sequence[Sequence[int]], coarse: Examples, full: Examples
    ) -> list[RatedChain]:
        """Return the accuracies along the chains of a stack."""
        network, data, plans, weights = self._load_stack(stack)
        places = [find_stops(*pair) for pair in zip(stack.chains, stops, strict=True)]
        ratings = ChainRatings(self._make_rater(network, coarse), weights, places)
        ratings.note(weights, 0)
        for step in self._trainer.train(network, data, plans, weights):
            ratings.note(weights, step)
        ratings.settle()
        rate_fully = self._make_rater(network, full)
        return ratings.collect(rate_fully(ratings.best), rate_fully(weights))

    def _make_rater(
        self, network: Network, examples: Examples
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return a function that finds the accuracies of stacked weights."""
        images = self._memory.move_images(examples.features)
        labels = torch.tensor(examples.labels, device=self.device)

        def rate_some(stack: torch.Tensor) -> torch.Tensor:
            outputs = self._trainer.predict(network, stack, images)
            predicted = outputs.argmax(dim=-1) if outputs.shape[-1] > 1 else outputs[..., 0] > 0.0
            return (predicted == labels).double().mean(dim=1)

        def rate(stack: torch.Tensor) -> torch.Tensor:
            return torch.cat([rate_some(part) for part in torch.split(stack, _PREDICTED_WEIGHTS)])

        return rate

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
                found[some] = self._trainer.predict(network, stack, images).cpu().numpy()
        return found
