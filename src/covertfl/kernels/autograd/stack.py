"""Jobs that run as one batch: a stack of weights, and the gradients of all of them at once."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import signature

import numpy as np
import torch
from torch import nn

from covertfl.arrays import IntArray
from covertfl.kernels.autograd.module import (
    DropoutKeys,
    Updater,
    check_outputs,
    measure_losses,
    replace_dropout,
)
from covertfl.kernels.dropout import derive_dropout_key
from covertfl.kernels.job import Examples, LocalJob, LocalOptimizer, Loss
from covertfl.kernels.weights import Float32Array, Layout, Vector

# Rows of a forward pass; on a CPU, as many as its caches hold of a small network's layers.
_PREDICT_ROWS = {"cpu": 256, "cuda": 2048}
# Largest number of stacked jobs, which bounds the memory of a batch.
_STACKED_JOBS = 256


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
        if device.type == "cuda":
            # cuBLAS reads this when it starts; without it sums may differ between runs.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

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
        weights = self._split(stacked)
        updaters = {name: Updater(self.optimizer, part) for name, part in weights.items()}
        totals = {name: torch.zeros_like(part) for name, part in weights.items()}
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), _deterministic():
            torch.manual_seed(int(jobs[0].seed))
            for step, start in enumerate(range(0, int(lengths.max()), jobs[0].batch_size)):
                active = int(np.sum(lengths > start))
                held = {name: part[:active] for name, part in weights.items()}
                gradients = self._find_gradients(jobs[:active], held, step)
                for name, gradient in gradients.items():
                    if jobs[0].work == "train":
                        updaters[name].step(held[name], gradient)
                        continue
                    sizes = np.minimum(lengths[:active] - start, jobs[0].batch_size)
                    shares = torch.from_numpy((sizes / lengths[:active]).astype(np.float32))
                    shape = (active, *[1] * (gradient.ndim - 1))
                    totals[name][:active] += gradient * shares.to(self.device).view(shape)
        parts = weights if jobs[0].work == "train" else totals
        joined = torch.cat([part.reshape(len(jobs), -1) for part in parts.values()], dim=1)
        return joined.cpu().numpy()

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
        self, jobs: Sequence[LocalJob], weights: dict[str, torch.Tensor], step: int
    ) -> dict[str, torch.Tensor]:
        """Return the gradients of the mean loss of each job's batch, by parameter."""
        if len(jobs) == 1 and self.device.type == "cuda":
            # For a single job, cuDNN's deterministic convolutions are accurate to 1e-4 only.
            doubled = {name: torch.cat([part, part]) for name, part in weights.items()}
            pair = self._find_gradients([jobs[0], jobs[0]], doubled, step)
            return {name: part[:1] for name, part in pair.items()}
        features, labels, is_real = self._gather(jobs, step)
        start, size = step * jobs[0].batch_size, jobs[0].batch_size
        held = np.concatenate([job.examples.labels[job.rows[start : start + size]] for job in jobs])
        keys = torch.tensor(
            [derive_dropout_key(job.seed, step) for job in jobs], device=self.device
        )

        def measure(
            parts: dict[str, torch.Tensor],
            inputs: torch.Tensor,
            targets: torch.Tensor,
            real: torch.Tensor,
            key: torch.Tensor,
        ) -> torch.Tensor:
            self._keys.low, self._keys.high, self._keys.calls = key[0], key[1], 0
            outputs = torch.func.functional_call(self._module, parts, (inputs,))
            check_outputs(outputs.shape, held, self.loss)
            losses = measure_losses(outputs, targets, self.loss)
            return (losses * real).sum() / real.sum()

        self._module.train()
        differentiate = torch.func.vmap(torch.func.grad(measure), randomness="different")
        found: dict[str, torch.Tensor] = differentiate(weights, features, labels, is_real, keys)
        return found

    def _gather(
        self, jobs: Sequence[LocalJob], step: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return (J, B, ...) features, (J, B) labels and a (J, B) mask, 0 for padding.

        Padding rows are zero, so that nothing infinite or NaN comes from them.
        """
        size = jobs[0].batch_size
        rows = np.full((len(jobs), size), -1, dtype=np.int64)
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
