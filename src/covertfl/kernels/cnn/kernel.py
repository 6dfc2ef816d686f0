"""Local jobs of small convolutional networks on a GPU: many jobs as one stack of networks.

A step takes one batch of every job in the stack; each network has its own weights.  When a job has
ended another one takes its place (`slots`).  Dropout uses the masks of `dropout.hash_dropout_mask`.

On a GPU the factors of products have 10 bits of mantissa, as 16-bit floats (gradients are scaled to
their range) or as TF32, and sums are 32-bit floats, unless a higher precision is chosen.  What is
not finite with 16-bit floats, whose range is small, is computed again in TF32.  Results repeat
exactly from run to run and do not depend on the other jobs of the stack.  On a CPU the same steps
consist of plain torch functions, for tests; there the last bits may depend on the other jobs.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Literal, TypeVar, get_args

import numpy as np
import torch
from torch import nn

from covertfl.errors import InvalidInput
from covertfl.kernels.autograd.module import ModelFactory, describe_layout
from covertfl.kernels.chain import Moves, RatedChain, Stops
from covertfl.kernels.cnn.blocks import Network, describe_network
from covertfl.kernels.cnn.chains import ChainStack, Moved, average_results
from covertfl.kernels.cnn.memory import DeviceMemory
from covertfl.kernels.cnn.passes import PlainPasses
from covertfl.kernels.cnn.ratings import ChainRatings, Rater
from covertfl.kernels.cnn.steps import count_stacked
from covertfl.kernels.cnn.trainer import StackTrainer
from covertfl.kernels.generator import isolate_generator
from covertfl.kernels.job import Examples, LocalJob, LocalOptimizer, Loss, check_job, check_weights
from covertfl.kernels.weights import Float32Array, Vector

if TYPE_CHECKING:
    from covertfl.kernels.cnn.gpu import TritonPasses

Precision = Literal["float16", "tf32", "float32"]
Note = Callable[[torch.Tensor, Moved], None]
_Result = TypeVar("_Result")

# Number of weights that predict together, and of floats in the weights of chains that run together,
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
    """Chains of one kind that run together, and their numbers."""

    numbers: list[int]
    chains: list[Moves]

    @property
    def jobs(self) -> list[LocalJob]:
        """All jobs."""
        return [job for chain in self.chains for move in chain for job in move]

    def choose(self, places: Sequence[int]) -> _Part:
        """Return some of the chains."""
        return _Part([self.numbers[n] for n in places], [self.chains[n] for n in places])


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
        """Return the weights after each job, or its gradient."""
        return self.run_chains([[[job]] for job in jobs])

    def average_jobs(self, groups: Sequence[Sequence[LocalJob]]) -> list[Vector]:
        """Return the mean result of each group's jobs, weighted by their rows (FedAvg, FedSGD).

        Only means leave the device.
        """
        if not all(any(len(job.rows) for job in group) for group in groups):
            raise InvalidInput("a mean needs at least one example, got none")
        return self.run_chains([[group] for group in groups])

    def run_chains(self, chains: Sequence[Moves]) -> list[Vector]:
        """Return the weights after the last move of each chain.

        A move is a group of jobs, at least one, and leads to the mean of their results, weighted by
        their rows.  It starts from the weights after the previous one; only the jobs of the first
        move use their own weights, which are the same.  Nothing leaves the device in between.  The
        jobs of a chain have the same batch size; gradients are possible only in chains of one move.
        """
        for chain in chains:
            self._check_chain(chain)

        def run(trainer: StackTrainer, part: _Part) -> list[tuple[Vector, bool]]:
            network = self._find_part_network(part)
            places = torch.from_numpy(network.places).to(self.device)
            weights = self._load_starts(network, part)
            results = self._run_part(trainer, part, weights).index_select(1, places)
            is_finite = results.isfinite().all(dim=1).tolist()
            return list(zip(self._memory.download(results), is_finite, strict=True))

        return self._run_parts(chains, run)

    def rate_chains(
        self,
        chains: Sequence[Moves],
        stops: Sequence[Stops],
        *,
        coarse: Examples,
        full: Examples,
        on_examples: Callable[[int], None] | None = None,
    ) -> list[RatedChain]:
        """Run chains as `run_chains` does and return their accuracies along the way.

        Parameters
        ----------
        chains : as for `run_chains`, of jobs that train
        stops : for each chain, the numbers of moves after which it is rated, from 0
        coarse, full : examples for the two ratings of `Stops`
        on_examples : called now and then with the number of examples trained on since the last call
        """
        for chain, places in zip(chains, stops, strict=True):
            self._check_chain(chain)
            is_inside = all(0 <= stop <= len(chain) for stop in (*places.coarse, *places.full))
            if chain[0][0].work != "train" or not places.coarse or not is_inside:
                raise InvalidInput(
                    "a rated chain must train and have stops between 0 and its number of moves"
                )

        def rate(trainer: StackTrainer, part: _Part) -> list[tuple[RatedChain, bool]]:
            own = [stops[number] for number in part.numbers]
            rated = self._rate_part(trainer, part, own, coarse, full, on_examples)
            return [(each, each.is_finite) for each in rated]

        return self._run_parts(chains, rate)

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

    def _run_parts(
        self,
        chains: Sequence[Moves],
        run: Callable[[StackTrainer, _Part], list[tuple[_Result, bool]]],
    ) -> list[_Result]:
        """Return the results of chains; what is not finite is computed again where that may help.

        `run` returns a result for each chain, and whether it is finite.
        """
        found: dict[int, _Result] = {}
        with self._at_work():
            for whole in self._list_parts(chains):
                part = whole
                for trainer in self._trainers:
                    results = run(trainer, part)
                    found |= {n: one for n, (one, _) in zip(part.numbers, results, strict=True)}
                    part = part.choose(
                        [n for n, (_, is_finite) in enumerate(results) if not is_finite]
                    )
                    if not part.numbers:
                        break
        return [found[number] for number in range(len(chains))]

    def _list_parts(self, chains: Sequence[Moves]) -> Iterator[_Part]:
        """Yield chains of one kind, as many as their weights fit into the memory."""
        kinds: dict[tuple[str, int, tuple[int, ...]], list[int]] = {}
        for number, chain in enumerate(chains):
            job = chain[0][0]
            kind = (job.work, job.batch_size, job.examples.features.shape[1:])
            kinds.setdefault(kind, []).append(number)
        for members in kinds.values():
            held = np.cumsum([1 + max(map(len, chains[number])) for number in members])
            turns = dict(
                zip(members, (held * self.layout.size // _HELD_FLOATS).tolist(), strict=True)
            )
            for _, group in itertools.groupby(members, key=turns.__getitem__):
                numbers = list(group)
                yield _Part(numbers, [chains[number] for number in numbers])

    def _check_chain(self, chain: Moves) -> None:
        if not chain or not all(chain):
            raise InvalidInput("a chain must have at least one job in every move, got none")
        jobs = [job for move in chain for job in move]
        for job in jobs:
            check_job(job, self.layout, self.loss)
            network = self._find_network(job.examples.features.shape[1:])
            self._check_labels(job, network.blocks[-1].outputs)
        forms = {(job.work, job.batch_size, job.examples.features.shape[1:]) for job in jobs}
        if len(forms) > 1 or (len(chain) > 1 and chain[0][0].work == "gradient"):
            raise InvalidInput(
                "all jobs of a chain must train, with the same batch size and size of images"
            )
        first = chain[0][0].weights
        if not all(job.weights is first or np.array_equal(job.weights, first) for job in chain[0]):
            raise InvalidInput("all jobs of a move must start from the same weights")

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

    def _find_part_network(self, part: _Part) -> Network:
        return self._find_network(part.chains[0][0][0].examples.features.shape[1:])

    def _run_part(
        self, trainer: StackTrainer, part: _Part, weights: torch.Tensor, note: Note | None = None
    ) -> torch.Tensor:
        """Return (C, padded) results from initial weights; `note` is called as weights change."""
        network, jobs = self._find_part_network(part), part.jobs
        data = self._memory.load_examples(jobs)
        # A batch is no wider than the longest job.
        width = min(jobs[0].batch_size, max(len(job.rows) for job in jobs))
        if jobs[0].work == "gradient":
            counts = [len(chain[0]) for chain in part.chains]
            own = weights.repeat_interleave(torch.tensor(counts, device=self.device), dim=0)
            sums = torch.split(trainer.sum_gradients(network, data, jobs, width, own), counts)
            pairs = zip(sums, part.chains, strict=True)
            return torch.stack([average_results(group, chain[0]) for group, chain in pairs])
        stack = ChainStack(part.chains, weights, count_stacked(width), self._memory.send)
        steps = trainer.train(network, data, stack.list_stretches(), width, stack.slots)
        for time in itertools.chain(steps, [stack.num_steps]):
            moved = stack.exchange(time)
            if note is not None:
                note(stack.weights, moved)
        return stack.weights

    def _load_starts(self, network: Network, part: _Part) -> torch.Tensor:
        """Return the (C, padded) initial weights of chains."""
        return self._memory.load_weights(network, [chain[0][0].weights for chain in part.chains])

    def _rate_part(
        self,
        trainer: StackTrainer,
        part: _Part,
        stops: Sequence[Stops],
        coarse: Examples,
        full: Examples,
        on_examples: Callable[[int], None] | None,
    ) -> list[RatedChain]:
        """Return the accuracies along chains."""
        network = self._find_part_network(part)
        weights = self._load_starts(network, part)
        rate = self._make_rater(trainer, network, coarse)
        ratings = ChainRatings(rate, weights, stops, self._memory.send)
        ratings.note(weights, [(number, 0) for number in range(len(weights))])

        def note(weights: torch.Tensor, moved: Moved) -> None:
            ratings.note(weights, moved)
            if moved and on_examples is not None:
                moves = [part.chains[chain][number - 1] for chain, number in moved]
                on_examples(sum(len(job.rows) for move in moves for job in move))

        last = self._run_part(trainer, part, weights, note)
        return ratings.collect(self._make_rater(trainer, network, full), last)

    def _make_rater(self, trainer: StackTrainer, network: Network, examples: Examples) -> Rater:
        """Return a function that finds the accuracies of stacked weights.

        An accuracy is NaN where outputs are not finite.
        """
        images = self._memory.move_images(examples.features)
        labels = torch.tensor(examples.labels, device=self.device)

        def rate_some(stack: torch.Tensor) -> torch.Tensor:
            outputs = trainer.predict(network, stack, images)
            predicted = outputs.argmax(dim=-1) if outputs.shape[-1] > 1 else outputs[..., 0] > 0.0
            ratings = (predicted == labels).double().mean(dim=1)
            return ratings.masked_fill_(~outputs.isfinite().flatten(1).all(dim=1), torch.nan)

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
                found[some] = self._predict(network, stack, images).cpu().numpy()
        return found

    def _predict(self, network: Network, stack: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        """Return outputs; what is not finite is computed again as in `_run_parts`."""
        first, *others = self._trainers
        outputs = first.predict(network, stack, images)
        for trainer in others:
            is_bad = ~outputs.isfinite().flatten(1).all(dim=1)
            if is_bad.any():
                outputs[is_bad] = trainer.predict(network, stack[is_bad], images)
        return outputs
