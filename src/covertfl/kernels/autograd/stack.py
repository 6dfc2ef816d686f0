"""Jobs that run as one batch: a stack of weights, and the gradients of all of them at once.

Short batches are padded with examples of weight 0, unless the module's examples may depend on each
other, as with BatchNorm: then the jobs of a step are grouped by the sizes of their batches.
Buffers that a pass changes are stacked as the weights are.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from itertools import pairwise

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from covertfl.arrays import IntArray
from covertfl.kernels.autograd.module import (
    DropoutKeys,
    Updater,
    check_outputs,
    isolate_generator,
    measure_losses,
    replace_dropout,
)
from covertfl.kernels.autograd.traits import Traits, find_traits, set_training
from covertfl.kernels.dropout import derive_dropout_key
from covertfl.kernels.job import (
    Examples,
    Float32Array,
    Layout,
    LocalJob,
    LocalOptimizer,
    Loss,
    Vector,
)

# Rows of a forward pass; on a CPU, as many as its caches hold of a small network's layers.
_PREDICT_ROWS = {"cpu": 256, "cuda": 2048}
# Largest number of stacked jobs, which bounds the memory of a batch.
_STACKED_JOBS = 256

_Tensors = dict[str, torch.Tensor]


@contextmanager
def _deterministic() -> Iterator[None]:
    """Restrict torch to deterministic algorithms in full precision."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    # Newer versions of torch have a second switch for TF32 products.
    flags = torch.backends.cudnn.flags
    precise = {"fp32_precision": "ieee"} if "fp32_precision" in signature(flags).parameters else {}
    try:
        with flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False, **precise):
            yield
    finally:
        torch.use_deterministic_algorithms(before)


class JobStacks:
    """A module on one device that runs jobs in stacks."""

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        loss: Loss,
        optimizer: LocalOptimizer,
        device: torch.device,
    ) -> None:
        self.layout, self.loss, self.optimizer, self.device = layout, loss, optimizer, device
        self._data: weakref.WeakKeyDictionary[Examples, tuple[torch.Tensor, torch.Tensor]]
        self._data = weakref.WeakKeyDictionary()
        self._keys = DropoutKeys()
        self._module = replace_dropout(module, self._keys).to(device)
        self._traits: Traits | None = None
        self._can_stack: bool | None = None
        if device.type == "cuda":
            # cuBLAS reads this when it starts; without it sums may differ between runs.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

    def can_stack(self, jobs: Sequence[LocalJob]) -> bool:
        """Return whether the module's jobs can be stacked; the first job with rows shows it.

        They cannot where it draws from torch's own generator, which must be seeded by job, or uses
        what `torch.func.vmap` does not support.
        """
        for job in jobs:
            if self._can_stack is None and len(job.rows):
                with self._at_work(job):
                    self._can_stack = self._try_stack(job)
        return self._can_stack is not False

    def _try_stack(self, job: LocalJob) -> bool:
        traits = self._find_traits(job)
        if traits.draws:
            return False
        stacked = self._split(self._stack_weights([job, job]))
        weights = {name: stacked[name] for name in self.layout.trained_names}
        try:
            self._find_gradients([job, job], weights, self._list_moving(stacked, traits), 0)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            return False
        return True

    @contextmanager
    def _at_work(self, job: LocalJob) -> Iterator[None]:
        """Restrict torch to deterministic algorithms and leave its generators alone.

        Attention is computed by plain products, the only form that can be stacked.
        """
        devices = [self.device] if self.device.type == "cuda" else []
        with isolate_generator(devices), _deterministic(), sdpa_kernel(SDPBackend.MATH):
            torch.manual_seed(int(job.seed))
            yield

    def _find_traits(self, job: LocalJob) -> Traits:
        """Return what the module does in a pass over a job's first batch."""
        if self._traits is None:
            rows = job.rows[: job.batch_size]
            features = torch.from_numpy(job.examples.features[rows]).to(self.device)
            self._keys.low, self._keys.high = derive_dropout_key(job.seed, 0)
            self._keys.calls = 0
            self._traits = find_traits(self._module, self.layout, features)
        return self._traits

    def run(self, jobs: Sequence[LocalJob]) -> list[Vector]:
        """Return results of jobs; those of one kind and batch size are stacked, longest first."""
        results: list[Vector] = [job.weights for job in jobs]
        kinds: dict[tuple[str, int], list[int]] = {}
        for number, job in enumerate(jobs):
            kinds.setdefault((job.work, job.batch_size), []).append(number)
        for members in kinds.values():
            members.sort(key=lambda number: -len(jobs[number].rows))
            for start in range(0, len(members), _STACKED_JOBS):
                numbers = members[start : start + _STACKED_JOBS]
                stack = self._run_stack([jobs[number] for number in numbers])
                for number, result in zip(numbers, stack, strict=True):
                    results[number] = result
        return results

    def _run_stack(self, jobs: Sequence[LocalJob]) -> Float32Array:
        """Return (J, P) results of jobs of one kind and batch size, in falling order of length."""
        lengths = np.array([len(job.rows) for job in jobs])
        stacked = self._stack_weights(jobs)
        if lengths.any():
            with self._at_work(jobs[0]):
                stacked = self._take_steps(jobs, lengths, stacked)
        elif jobs[0].work == "gradient":
            stacked = torch.zeros_like(stacked)
        return stacked.cpu().numpy()

    def _take_steps(
        self, jobs: Sequence[LocalJob], lengths: IntArray, stacked: torch.Tensor
    ) -> torch.Tensor:
        """Return (J, P) results of jobs of which the first has rows."""
        parts, size = self._split(stacked), jobs[0].batch_size
        weights = {name: parts[name] for name in self.layout.trained_names}
        moving = self._list_moving(parts, self._find_traits(jobs[0]))
        updaters = {name: Updater(self.optimizer, part) for name, part in weights.items()}
        totals = {name: torch.zeros_like(part) for name, part in parts.items()}
        for step, start in enumerate(range(0, int(lengths[0]), size)):
            sizes = np.minimum(lengths[lengths > start] - start, size)
            gradients = self._join_gradients(jobs, sizes, weights, moving, step)
            shares = torch.from_numpy((sizes / lengths[: len(sizes)]).astype(np.float32))
            for name, gradient in gradients.items():
                if jobs[0].work == "train":
                    updaters[name].step(weights[name][: len(sizes)], gradient)
                    continue
                shape = (len(sizes), *[1] * (gradient.ndim - 1))
                totals[name][: len(sizes)] += gradient * shares.to(self.device).view(shape)
        parts = parts if jobs[0].work == "train" else totals
        return torch.cat([parts[name].reshape(len(jobs), -1) for name in self.layout.names], dim=1)

    def _list_moving(self, parts: _Tensors, traits: Traits) -> _Tensors:
        """Return the buffers that a pass may change, each with a leading axis of jobs."""
        measured = self.layout.names[len(self.layout.trained_names) :]
        moving = {name: parts[name] for name in measured}
        num_jobs = len(next(iter(parts.values())))
        for name in traits.moving:
            buffer = self._module.get_buffer(name)
            moving[name] = buffer.expand(num_jobs, *buffer.shape).clone()
        return moving

    def _join_gradients(
        self,
        jobs: Sequence[LocalJob],
        sizes: IntArray,
        weights: _Tensors,
        moving: _Tensors,
        step: int,
    ) -> _Tensors:
        """Return the gradients of the first jobs, whose batches have falling sizes; move buffers.

        Jobs are grouped by size where their examples may depend on each other.
        """
        assert self._traits is not None
        cuts = (np.flatnonzero(np.diff(sizes)) + 1).tolist() if self._traits.mixes else []
        found: dict[str, list[torch.Tensor]] = {name: [] for name in weights}
        for first, last in pairwise([0, *cuts, len(sizes)]):
            some = slice(first, last)
            held, state = (
                {n: part[some] for n, part in kind.items()} for kind in (weights, moving)
            )
            gradients, moved = self._find_gradients(jobs[some], held, state, step)
            for name, gradient in gradients.items():
                found[name].append(gradient)
            for name, buffer in moved.items():
                moving[name][some] = buffer
        return {name: torch.cat(group) for name, group in found.items()}

    def _stack_weights(self, jobs: Sequence[LocalJob]) -> torch.Tensor:
        """Return (J, P) weights; those that jobs share are moved to the device once."""
        numbers: dict[int, int] = {}
        order = [numbers.setdefault(id(job.weights), len(numbers)) for job in jobs]
        distinct = {id(job.weights): job.weights for job in jobs}
        moved = torch.from_numpy(np.stack(list(distinct.values()))).to(self.device)
        return moved[torch.tensor(order, device=self.device)]

    def _split(self, stacked: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the parameters by name, each with a leading axis of jobs."""
        parts, start = {}, 0
        for name, shape in zip(self.layout.names, self.layout.shapes, strict=True):
            stop = start + int(np.prod(shape))
            parts[name] = stacked[:, start:stop].reshape(len(stacked), *shape)
            start = stop
        return parts

    def _find_gradients(
        self, jobs: Sequence[LocalJob], weights: _Tensors, moving: _Tensors, step: int
    ) -> tuple[_Tensors, _Tensors]:
        """Return the gradients of the mean loss of each job's batch, and the moved buffers."""
        if len(jobs) == 1 and self.device.type == "cuda":
            # For a single job, cuDNN's deterministic convolutions are accurate to 1e-4 only.
            doubled, twice = (
                {name: torch.cat([part, part]) for name, part in kind.items()}
                for kind in (weights, moving)
            )
            pair = self._find_gradients([jobs[0], jobs[0]], doubled, twice, step)
            gradients, moved = ({name: part[:1] for name, part in kind.items()} for kind in pair)
            return gradients, moved
        assert self._traits is not None
        features, labels, is_real = self._gather(jobs, step)
        start, size = step * jobs[0].batch_size, jobs[0].batch_size
        held = np.concatenate([job.examples.labels[job.rows[start : start + size]] for job in jobs])
        keys = torch.tensor(
            [derive_dropout_key(job.seed, step) for job in jobs], device=self.device
        )
        # All jobs of a stack have had as many batches.
        counters = {name: self._module.get_buffer(name) + step for name in self._traits.counters}

        def measure(
            parts: _Tensors,
            buffers: _Tensors,
            inputs: torch.Tensor,
            targets: torch.Tensor,
            real: torch.Tensor,
            key: torch.Tensor,
        ) -> tuple[torch.Tensor, _Tensors]:
            self._keys.low, self._keys.high, self._keys.calls = key[0], key[1], 0
            # The module may write to its buffers, or put others in their place.
            state = {name: part.clone() for name, part in {**buffers, **counters}.items()}
            used = {**parts, **state}
            outputs = torch.func.functional_call(self._module, used, (inputs,))
            check_outputs(outputs.shape, held, self.loss)
            losses = measure_losses(outputs, targets, self.loss)
            moved = {name: used[name].detach() for name in buffers}
            return (losses * real).sum() / real.sum(), moved

        set_training(self._module, int(is_real.shape[1]))
        differentiate = torch.func.vmap(
            torch.func.grad(measure, has_aux=True), randomness="different"
        )
        found: tuple[_Tensors, _Tensors] = differentiate(
            weights, moving, features, labels, is_real, keys
        )
        return found

    def _gather(
        self, jobs: Sequence[LocalJob], step: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return (J, B, ...) features, (J, B) labels and a (J, B) mask, 0 for padding.

        Padding rows are zero, so that nothing infinite or NaN comes from them.  B is the size of
        the batches, or that of the longest if examples depend on each other.
        """
        size = width = jobs[0].batch_size
        if self._traits is not None and self._traits.mixes:
            width = min(size, len(jobs[0].rows) - step * size)
        rows = np.full((len(jobs), width), -1, dtype=np.int64)
        members: dict[Examples, list[int]] = {}
        for number, job in enumerate(jobs):
            batch = job.rows[step * size : (step + 1) * size]
            rows[number, : len(batch)] = batch
            members.setdefault(job.examples, []).append(number)
        picked = [self._pick(examples, rows[numbers]) for examples, numbers in members.items()]
        order = torch.from_numpy(np.argsort(np.concatenate(list(members.values()))))
        order = order.to(self.device)
        features = torch.cat([part for part, _ in picked])[order]
        labels = torch.cat([part for _, part in picked])[order]
        return features, labels, torch.from_numpy((rows >= 0).astype(np.float32)).to(self.device)

    def _pick(self, examples: Examples, rows: IntArray) -> tuple[torch.Tensor, torch.Tensor]:
        """Return features and labels of some rows; zero for row -1."""
        if examples not in self._data:
            self._data[examples] = (
                torch.tensor(examples.features, device=self.device),
                torch.tensor(examples.labels, device=self.device),
            )
        features, labels = self._data[examples]
        index = torch.from_numpy(rows).to(self.device)
        is_real = (index >= 0).view(*index.shape, *[1] * (features.ndim - 1))
        index = index.clamp(min=0)
        zero = torch.zeros((), device=self.device)
        return torch.where(is_real, features[index], zero), labels[index]

    def predict(self, weights: Vector, features: Float32Array) -> Float32Array:
        """Return (n, outputs) raw outputs (logits), without dropout."""
        with _deterministic(), torch.no_grad():
            self._module.eval()
            stacked = torch.from_numpy(weights[np.newaxis].copy()).to(self.device)
            parts = {name: part[0] for name, part in self._split(stacked).items()}
            most = _PREDICT_ROWS[self.device.type]
            outputs = []
            for start in range(0, max(len(features), 1), most):
                batch = torch.tensor(features[start : start + most], device=self.device)
                outputs.append(torch.func.functional_call(self._module, parts, (batch,)))
            return np.array(torch.cat(outputs).cpu().numpy())
