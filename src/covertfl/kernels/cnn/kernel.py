"""Local jobs for small convolutional networks on a GPU: many jobs as one stack of networks.

A step takes one batch of every job: the forward pass, the backward pass and the optimiser go over
the whole stack, each network with its own weights.  Jobs are sorted by length, and the stack
shrinks as short ones end.  Dropout uses the masks of `mlp_kernel.dropout_mask`.

On a GPU products are made of numbers shortened to 10 bits after the point (TF32) and summed in
32-bit floats, unless the precision asks for more.  Results are the same bits from run to run, and
do not depend on the other jobs of the stack.  On a CPU the same steps are made of plain torch
functions, for tests; there the last bits may depend on the other jobs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from covertfl.errors import InvalidInput
from covertfl.kernels.autograd import ModelFactory, check_job, check_weights, describe_layout
from covertfl.kernels.cnn.blocks import Network, describe_network
from covertfl.kernels.cnn.passes import Passes, PlainPasses
from covertfl.kernels.cnn.ratings import ChainRatings, RatedChain
from covertfl.kernels.job import Examples, LocalJob, LocalOptimizer, Loss
from covertfl.kernels.mlp import count_cores, derive_dropout_keys
from covertfl.kernels.weights import Vector

Precision = Literal["tf32", "float32"]

# Jobs and images of a step, and those of a forward pass: they bound the memory that is taken.
_STACKED_JOBS, _STACKED_IMAGES = 1024, 40_960
_PREDICTED_WEIGHTS, _PREDICT_ROWS = 64, 512
# Steps of a gradient that are taken one after the other.
_PIECE_STEPS = 8
# Steps whose rows and keys are prepared together.
_TABLE_STEPS = 64
_LARGEST_SIDE = 128


def fits_cnn_kernel(module: nn.Module) -> bool:
    """Whether `CnnKernel` takes a module, for square images of some size."""
    first = next(iter(module.children()), None)
    if not isinstance(first, nn.Conv2d):
        return False
    shapes = ((first.in_channels, side, side) for side in range(1, _LARGEST_SIDE + 1))
    return any(describe_network(module, shape) is not None for shape in shapes)


@dataclass(frozen=True, eq=False)
class _Plan:
    """The steps of a chain of jobs.

    Parameters
    ----------
    rows : (S, B) rows of the data on the device; that of an image of noughts where a batch is short
    shares : (S, B) weight of each example's loss; 0 where a batch is short
    numbers : (S,) number of the step in its job, from 0
    seeds : (S,) of the step's job
    """

    rows: npt.NDArray[np.int32]
    shares: npt.NDArray[np.float32]
    numbers: npt.NDArray[np.uint64]
    seeds: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.numbers)

    def cut(self, most: int) -> list[_Plan]:
        """Pieces of at most so many steps."""
        parts = (slice(start, start + most) for start in range(0, len(self), most))
        return [
            _Plan(self.rows[part], self.shares[part], self.numbers[part], self.seeds[part])
            for part in parts
        ]


@dataclass(frozen=True, eq=False)
class _Table:
    """Some steps of a stack on the device; the leading axis is that of steps, then that of jobs."""

    rows: torch.Tensor
    shares: torch.Tensor
    keys: torch.Tensor
    scales: torch.Tensor


@dataclass(frozen=True, eq=False)
class _Data:
    """Examples on the device, with one of noughts at the end."""

    features: torch.Tensor
    labels: torch.Tensor
    starts: dict[Examples, int]


@dataclass(frozen=True, eq=False)
class _Stack:
    """Chains that are carried out together, in falling order of length, and their numbers."""

    numbers: list[int]
    chains: list[Sequence[LocalJob]]


class CnnKernel:
    """Carries out local jobs for stacks of convolutional networks.

    Parameters
    ----------
    model_factory : makes the module, of a kind that `fits_cnn_kernel`
    loss : binary (mean of binary cross entropy with logits) or multiclass (mean cross entropy)
    optimizer : of the jobs
    device : cuda, or cpu for tests
    precision : of the products on a GPU: tf32, or float32 at about half the speed
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
        self._passes = self._choose_passes(precision)
        self._lock = Lock()
        self._networks: dict[tuple[int, ...], Network] = {}
        self._staged: torch.Tensor | None = None
        # Sets none of whose labels is too large for the model.
        self._fitting: weakref.WeakSet[Examples] = weakref.WeakSet()
        self._sets: weakref.WeakKeyDictionary[Examples, tuple[torch.Tensor, torch.Tensor]]
        self._sets = weakref.WeakKeyDictionary()

    def _choose_passes(self, precision: Precision) -> Passes:
        if precision not in ("tf32", "float32"):
            raise InvalidInput(f"precision must be tf32 or float32, got {precision!r}")
        if self.device.type == "cpu":
            return PlainPasses()
        from covertfl.kernels.cnn.triton import TritonPasses

        passes: Passes = TritonPasses("tf32" if precision == "tf32" else "tf32x3")
        return passes

    def _on_device(self) -> AbstractContextManager[object]:
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def run(self, jobs: Sequence[LocalJob]) -> list[Vector]:
        """Weights after each job, or its gradient."""
        return self.run_chains([[job] for job in jobs])

    def run_chains(self, chains: Sequence[Sequence[LocalJob]]) -> list[Vector]:
        """Weights after the last job of each chain.

        A job of a chain begins where the one before it ended, with a new optimiser; weights of its
        own count for the first only.  Nothing leaves the device in between.

        Parameters
        ----------
        chains : each of jobs of one batch size, at least one; gradients only as chains of one job
        """
        for chain in chains:
            self._check_chain(chain)
        found: dict[int, Vector] = {}
        with self._at_work():
            for stack in self._list_stacks(chains):
                results = self._download(self._run_stack(stack))
                found.update(zip(stack.numbers, results, strict=True))
        return [found[number] for number in range(len(chains))]

    def average_jobs(self, groups: Sequence[Sequence[LocalJob]]) -> list[Vector]:
        """The mean of the results of each group's jobs, weighted by their rows (FedAvg, FedSGD).

        Summed in double precision, jobs with more batches first, so that it depends on the group
        alone.  Only means leave the device.
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
            return self._download((totals / counts[:, None]).float())

    def rate_chains(
        self,
        chains: Sequence[Sequence[LocalJob]],
        stops: Sequence[Sequence[int]],
        *,
        coarse: Examples,
        full: Examples,
    ) -> list[RatedChain]:
        """Carry out chains as `run_chains` does and rate their weights on the way.

        The answer of a binary model is 1 where its output is positive.

        Parameters
        ----------
        chains : as for `run_chains`, of jobs that train
        stops : for each chain after how many of its jobs it is rated, rising, 0 for its beginning
        coarse : examples for every stop
        full : examples for the best stop and for the end
        """
        for chain, places in zip(chains, stops, strict=True):
            self._check_chain(chain)
            if chain[0].work != "train" or not places or not 0 <= places[-1] <= len(chain):
                raise InvalidInput("a chain that is rated must train and have stops on its way")
        found: dict[int, RatedChain] = {}
        with self._at_work():
            for stack in self._list_stacks(chains):
                rated = self._rate_stack(stack, [stops[n] for n in stack.numbers], coarse, full)
                found.update(zip(stack.numbers, rated, strict=True))
        return [found[number] for number in range(len(chains))]

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """One call at a time has the device."""
        with self._lock, torch.no_grad(), self._on_device():
            yield

    def _list_stacks(self, chains: Sequence[Sequence[LocalJob]]) -> Iterator[_Stack]:
        """Chains of one kind together, the longest first."""
        kinds: dict[tuple[str, int, tuple[int, ...]], list[int]] = {}
        for number, chain in enumerate(chains):
            image = chain[0].examples.features.shape[1:]
            kinds.setdefault((chain[0].work, chain[0].batch_size, image), []).append(number)
        for (_, batch_size, _), members in kinds.items():
            members.sort(key=lambda number: -_count_steps(chains[number]))
            most = _count_stacked(batch_size)
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
                "jobs of a chain must train, with one batch size and one size of images"
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
        """The network for images of a shape (channels, rows, columns)."""
        if image not in self._networks:
            network = describe_network(self._module, image)
            if network is None:
                raise InvalidInput(f"features must be images that fit the model, got shape {image}")
            self._networks[image] = network
        return self._networks[image]

    def _run_stack(self, stack: _Stack) -> torch.Tensor:
        """(J, P) results, on the device."""
        network, data, plans, weights = self._load_stack(stack)
        if stack.chains[0][0].work == "train":
            for _ in self._train(network, data, plans, weights):
                pass
        else:
            weights = self._sum_gradients(network, data, plans, weights)
        return weights.index_select(1, torch.from_numpy(network.places).to(self.device))

    def _load_stack(self, stack: _Stack) -> tuple[Network, _Data, list[_Plan], torch.Tensor]:
        """What the steps of a stack need, on the device."""
        jobs = [job for chain in stack.chains for job in chain]
        network = self._find_network(jobs[0].examples.features.shape[1:])
        data = self._load_data(jobs)
        # A batch is no wider than the longest job.
        width = min(jobs[0].batch_size, max(len(job.rows) for job in jobs))
        plans = [_plan_chain(chain, data, width) for chain in stack.chains]
        weights = self._load_weights(network, [chain[0].weights for chain in stack.chains])
        return network, data, plans, weights

    def _rate_stack(
        self,
        stack: _Stack,
        stops: Sequence[Sequence[int]],
        coarse: Examples,
        full: Examples,
    ) -> list[RatedChain]:
        """Ratings of the chains of a stack."""
        network, data, plans, weights = self._load_stack(stack)
        places = [
            _find_stops(chain, where) for chain, where in zip(stack.chains, stops, strict=True)
        ]
        ratings = ChainRatings(self._make_rater(network, coarse), weights, places)
        ratings.note(weights, 0)
        for step in self._train(network, data, plans, weights):
            ratings.note(weights, step)
        ratings.settle()
        rate_fully = self._make_rater(network, full)
        return ratings.collect(rate_fully(ratings.best), rate_fully(weights))

    def _make_rater(
        self, network: Network, examples: Examples
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """Finds the shares of right answers of stacked weights."""
        images = self._move_images(examples.features)
        labels = torch.tensor(examples.labels, device=self.device)

        def rate_some(stack: torch.Tensor) -> torch.Tensor:
            outputs = self._predict_stack(network, stack, images)
            answers = outputs.argmax(dim=-1) if outputs.shape[-1] > 1 else outputs[..., 0] > 0.0
            return (answers == labels).double().mean(dim=1)

        def rate(stack: torch.Tensor) -> torch.Tensor:
            return torch.cat([rate_some(part) for part in torch.split(stack, _PREDICTED_WEIGHTS)])

        return rate

    def _train(
        self, network: Network, data: _Data, plans: Sequence[_Plan], weights: torch.Tensor
    ) -> Iterator[int]:
        """Take all steps of all jobs; says after each how many were taken."""
        gradient, first, second = (torch.zeros_like(weights) for _ in range(3))
        for step, table, active in self._list_steps(plans):
            held = weights[:active], gradient[:active]
            self._find_gradients(network, data, table, step % _TABLE_STEPS, *held)
            scales = table.scales[step % _TABLE_STEPS, :active]
            self._update(*held, first[:active], second[:active], scales)
            yield step + 1

    def _sum_gradients(
        self, network: Network, data: _Data, plans: Sequence[_Plan], weights: torch.Tensor
    ) -> torch.Tensor:
        """Gradients of the mean losses over all rows.

        Batches of a gradient do not wait for each other: a job is cut into pieces of few steps, so
        that long ones leave no stack half empty.  Its pieces are summed in their order.
        """
        found = torch.zeros_like(weights)
        pieces = [(job, part) for job, plan in enumerate(plans) for part in plan.cut(_PIECE_STEPS)]
        pieces.sort(key=lambda piece: -len(piece[1]))
        most = _count_stacked(plans[0].rows.shape[1])
        for start in range(0, len(pieces), most):
            owners, parts = zip(*pieces[start : start + most], strict=True)
            held = weights[torch.tensor(owners, device=self.device)]
            gradient, total = torch.zeros_like(held), torch.zeros_like(held)
            for step, table, active in self._list_steps(parts):
                some = held[:active], gradient[:active]
                self._find_gradients(network, data, table, step % _TABLE_STEPS, *some)
                total[:active] += gradient[:active]
            for job, sum_of_piece in zip(owners, total, strict=True):
                found[job] += sum_of_piece
        return found

    def _list_steps(self, plans: Sequence[_Plan]) -> Iterator[tuple[int, _Table, int]]:
        """Steps, each with the table it stands in and the number of jobs that have it."""
        lengths = np.array([len(plan) for plan in plans])
        for step in range(int(lengths.max())):
            if step % _TABLE_STEPS == 0:
                table = self._tabulate(plans, step)
            yield step, table, int(np.sum(lengths > step))

    def _load_weights(self, network: Network, vectors: Sequence[Vector]) -> torch.Tensor:
        """(J, padded) weights; those that jobs share are moved to the device once."""
        numbers: dict[int, int] = {}
        order = [numbers.setdefault(id(vector), len(numbers)) for vector in vectors]
        distinct = list({id(vector): vector for vector in vectors}.values())
        staged = self._stage(len(distinct))
        self._copy_rows(lambda row: np.copyto(staged[row].numpy(), distinct[row]), len(distinct))
        moved = staged.to(self.device, copy=True)
        padded = moved.new_zeros((len(moved), network.size))
        padded[:, torch.from_numpy(network.places).to(self.device)] = moved
        if len(distinct) == len(order):
            return padded
        return padded[torch.tensor(order, device=self.device)]

    def _download(self, results: torch.Tensor) -> list[Vector]:
        """Rows as vectors of their own."""
        staged = self._stage(len(results)).copy_(results)
        vectors = [np.empty(0, np.float32)] * len(results)

        def take(row: int) -> None:
            vectors[row] = staged[row].numpy().copy()

        self._copy_rows(take, len(results))
        return vectors

    def _stage(self, rows: int) -> torch.Tensor:
        """Memory that the device can read and write by itself, kept for the next time."""
        if self._staged is None or len(self._staged) < rows:
            is_cuda = self.device.type == "cuda"
            self._staged = torch.empty((rows, self.layout.size), pin_memory=is_cuda)
        return self._staged[:rows]

    def _copy_rows(self, copy: Callable[[int], None], rows: int) -> None:
        """Copy rows side by side; one core alone is slower than the way to the device."""
        with ThreadPoolExecutor(count_cores()) as pool:
            list(pool.map(copy, range(rows)))

    def _load_data(self, jobs: Sequence[LocalJob]) -> _Data:
        """All examples of some jobs; those seen before are on the device already."""
        sets = list(dict.fromkeys(job.examples for job in jobs))
        for examples in sets:
            if examples not in self._sets:
                self._sets[examples] = self._move(examples)
        moved = [self._sets[examples] for examples in sets]
        ends = np.cumsum([len(labels) for _, labels in moved])
        starts = dict(zip(sets, [0, *ends[:-1].tolist()], strict=True))
        if len(moved) == 1:
            return _Data(*moved[0], starts)
        features = torch.cat([features for features, _ in moved])
        return _Data(features, torch.cat([labels for _, labels in moved]), starts)

    def _move(self, examples: Examples) -> tuple[torch.Tensor, torch.Tensor]:
        features = self._move_images(examples.features)
        labels = torch.tensor(examples.labels, device=self.device)
        return (
            torch.cat([features, features.new_zeros((1, *features.shape[1:]))]),
            torch.cat([labels, labels.new_zeros(1)]),
        )

    def _move_images(self, features: npt.NDArray[np.float32]) -> torch.Tensor:
        """(n, rows, columns, channels) images on the device."""
        return torch.tensor(features, device=self.device).permute(0, 2, 3, 1).contiguous()

    def _tabulate(self, plans: Sequence[_Plan], begin: int) -> _Table:
        """The next steps of all jobs that have any, filled up with noughts."""
        parts = [plan for plan in plans if len(plan) > begin]
        steps = min(len(parts[0]) - begin, _TABLE_STEPS)
        rows = np.zeros((steps, len(parts), parts[0].rows.shape[1]), dtype=np.int32)
        shares = np.zeros(rows.shape, dtype=np.float32)
        numbers, seeds = (np.zeros(rows.shape[:2], dtype=np.uint64) for _ in range(2))
        for job, plan in enumerate(parts):
            some = slice(begin, begin + steps)
            count = len(plan.rows[some])
            rows[:count, job], shares[:count, job] = plan.rows[some], plan.shares[some]
            numbers[:count, job], seeds[:count, job] = plan.numbers[some], plan.seeds[some]
        # torch has few operations on unsigned words.
        keys = derive_dropout_keys(seeds, numbers).view(np.int32)
        arrays = (rows, shares, keys, self._find_scales(numbers))
        return _Table(*(self._send(array) for array in arrays))

    def _send(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """An array on the device, without waiting for what the device is at."""
        tensor = torch.from_numpy(array)
        if self.device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)

    def _find_scales(self, numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
        """(..., 3) whether a step is its job's first, Adam's rate, and the root it divides by."""
        beta1, beta2 = self.optimizer.betas
        count = numbers.astype(np.float64) + 1.0
        rates = self.optimizer.lr / (1.0 - beta1**count)
        roots = np.sqrt(1.0 - beta2**count)
        return np.stack([count == 1.0, rates, roots], axis=-1).astype(np.float32)

    def _find_gradients(
        self,
        network: Network,
        data: _Data,
        table: _Table,
        place: int,
        weights: torch.Tensor,
        gradient: torch.Tensor,
    ) -> None:
        """Put the gradients of the mean losses of one batch of each job into their array."""
        active = len(weights)
        rows, keys = table.rows[place, :active], table.keys[place, :active]
        images = data.features.index_select(0, rows.flatten()).view(*rows.shape, -1)
        outputs, values = self._pass_forward(network, images, weights, keys)
        labels = data.labels.index_select(0, rows.flatten()).view(rows.shape)
        slopes = self._find_slopes(outputs, labels) * table.shares[place, :active, :, None]
        for number in reversed(range(len(network.blocks))):
            block, (x, y) = network.blocks[number], values[number]
            if block.is_finished:
                slopes = self._passes.unfinish(block, y, slopes, keys)
            self._passes.correlate(block, x, slopes, gradient)
            if number:
                before = network.blocks[number - 1]
                is_masked = before.is_rectified and not before.is_finished
                slopes = self._passes.spread(block, slopes, weights, x if is_masked else None)

    def _pass_forward(
        self,
        network: Network,
        images: torch.Tensor,
        weights: torch.Tensor,
        keys: torch.Tensor | None,
    ) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
        """(J, B, outputs) outputs, and what each block took in and gave out before finishing."""
        values, x = [], images
        for block in network.blocks:
            x = x.view(*x.shape[:2], block.height, block.width, block.channels)
            y = self._passes.convolve(block, x, weights)
            if keys is not None:
                values.append((x, y))
            is_finished = block.pool > 1 or (block.rate is not None and keys is not None)
            x = self._passes.finish(block, y, keys) if is_finished else y
        return x.flatten(2), values

    def _find_slopes(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Slopes of each example's loss by its outputs."""
        if self.loss == "binary":
            return outputs.sigmoid() - labels[..., None]
        classes = torch.arange(outputs.shape[-1], device=self.device)
        return outputs.softmax(dim=-1) - (labels[..., None] == classes).float()

    def _update(
        self,
        weights: torch.Tensor,
        gradient: torch.Tensor,
        first: torch.Tensor,
        second: torch.Tensor,
        scales: torch.Tensor,
    ) -> None:
        """A step of the optimiser; the formulas are those of torch.optim."""
        options = self.optimizer
        if self.device.type == "cuda" and options.name != "sgd":
            from covertfl.kernels.cnn.triton import adapt

            adapt(options, weights, gradient, first, second, scales)
            return
        is_first, rate, root = scales[:, :1], scales[:, 1:2], scales[:, 2:]
        if options.weight_decay and options.name == "adamw":
            weights.mul_(1.0 - options.lr * options.weight_decay)
        elif options.weight_decay:
            gradient.add_(weights, alpha=options.weight_decay)
        if options.name == "sgd":
            if options.momentum:
                first.mul_(options.momentum * (1.0 - is_first)).add_(gradient)
                gradient = first
            weights.add_(gradient, alpha=-options.lr)
            return
        beta1, beta2 = options.betas
        first.mul_(1.0 - is_first).lerp_(gradient, 1.0 - beta1)
        second.mul_(beta2 * (1.0 - is_first)).addcmul_(gradient, gradient, value=1.0 - beta2)
        weights.sub_(rate * first / (second.sqrt() / root + options.eps))

    def predict(
        self, weights: Vector, features: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        """(n, outputs) raw outputs (logits), without dropout."""
        outputs: npt.NDArray[np.float32] = self.predict_many([weights], features)[0]
        return outputs

    def predict_many(
        self, weights: Sequence[Vector], features: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        """(K, n, outputs) raw outputs of K weights for the same features, without dropout."""
        for vector in weights:
            check_weights(vector, self.layout)
        network = self._find_network(features.shape[1:])
        found = np.empty((len(weights), len(features), network.blocks[-1].outputs), np.float32)
        with self._at_work():
            images = self._move_images(features)
            for start in range(0, len(weights), _PREDICTED_WEIGHTS):
                some = slice(start, start + _PREDICTED_WEIGHTS)
                stack = self._load_weights(network, weights[some])
                found[some] = self._predict_stack(network, stack, images).cpu().numpy()
        return found

    def _predict_stack(
        self, network: Network, stack: torch.Tensor, images: torch.Tensor
    ) -> torch.Tensor:
        """(K, n, outputs) outputs of stacked weights for the same images."""
        outputs = [stack.new_empty((len(stack), 0, network.blocks[-1].outputs))]
        for start in range(0, len(images), _PREDICT_ROWS):
            some = images[start : start + _PREDICT_ROWS].flatten(1)
            shared = some.expand(len(stack), *some.shape)
            outputs.append(self._pass_forward(network, shared, stack, None)[0])
        return torch.cat(outputs, dim=1)


def _count_stacked(batch_size: int) -> int:
    """Jobs that are carried out together."""
    return max(1, min(_STACKED_JOBS, _STACKED_IMAGES // max(batch_size, 1)))


def _count_steps(chain: Sequence[LocalJob]) -> int:
    return sum(-(-len(job.rows) // job.batch_size) for job in chain)


def _find_stops(chain: Sequence[LocalJob], stops: Sequence[int]) -> list[int]:
    """Steps that have been taken at some stops."""
    ends = np.cumsum([0, *(_count_steps([job]) for job in chain)])
    return [int(ends[stop]) for stop in stops]


def _plan_chain(chain: Sequence[LocalJob], data: _Data, width: int) -> _Plan:
    """The steps of a chain."""
    steps = [-(-len(job.rows) // job.batch_size) for job in chain]
    rows = np.full((sum(steps), width), len(data.labels) - 1, dtype=np.int32)
    shares = np.zeros(rows.shape, dtype=np.float32)
    start = 0
    for job, count in zip(chain, steps, strict=True):
        stretch, length = slice(start, start + count), len(job.rows)
        rows[stretch].reshape(-1)[:length] = job.rows + data.starts[job.examples]
        shares[stretch] = _share_out(length, width, job.work == "gradient")
        start += count
    numbers = np.concatenate([np.arange(count, dtype=np.uint64) for count in steps])
    seeds = np.repeat(np.array([job.seed for job in chain], dtype=np.uint64), steps)
    return _Plan(rows, shares, numbers, seeds)


def _share_out(length: int, size: int, is_whole: bool) -> npt.NDArray[np.float32]:
    """(S, B) shares of examples in the mean over their batch, or over all of them."""
    steps = -(-length // max(size, 1))
    real = (np.arange(steps * size) < length).reshape(steps, size)
    over = np.full((steps, 1), length) if is_whole else real.sum(axis=1, keepdims=True)
    shares: npt.NDArray[np.float32] = (real / over).astype(np.float32)
    return shares
