"""Weights and examples on the device, and the copies to and from it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from covertfl.kernels.cnn.blocks import Network
from covertfl.kernels.job import Examples, Float32Array, LocalJob, Vector, count_cores

Send = Callable[[npt.NDArray[Any]], torch.Tensor]  # copies an array to the device


@dataclass(frozen=True, eq=False)
class DeviceExamples:
    """Sets of examples on the device, each with an example of zeros at the end."""

    features: torch.Tensor  # (n, rows, columns, channels)
    labels: torch.Tensor  # (n,)
    starts: dict[Examples, int]  # first row of each set


class DeviceMemory:
    """Copies of examples and of vectors of `size` weights between this process and a device."""

    def __init__(self, device: torch.device, size: int) -> None:
        self.device, self._size = device, size
        self._staged: torch.Tensor | None = None
        self._sets: weakref.WeakKeyDictionary[Examples, tuple[torch.Tensor, torch.Tensor]]
        self._sets = weakref.WeakKeyDictionary()

    def send(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """Return an array on the device, without waiting for the device's current work."""
        tensor = torch.from_numpy(array)
        if self.device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)

    def load_weights(self, network: Network, vectors: Sequence[Vector]) -> torch.Tensor:
        """Return (J, padded) weights; those that jobs share are copied to the device once."""
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

    def download(self, results: torch.Tensor) -> list[Vector]:
        """Return the rows of a tensor as separate vectors."""
        staged = self._stage(len(results)).copy_(results)
        vectors = [np.empty(0, np.float32)] * len(results)

        def take(row: int) -> None:
            vectors[row] = staged[row].numpy().copy()

        self._copy_rows(take, len(results))
        return vectors

    def _stage(self, rows: int) -> torch.Tensor:
        """Return (rows, P) memory that the device can access directly, kept for the next time."""
        if self._staged is None or len(self._staged) < rows:
            is_cuda = self.device.type == "cuda"
            self._staged = torch.empty((rows, self._size), pin_memory=is_cuda)
        return self._staged[:rows]

    def _copy_rows(self, copy: Callable[[int], None], rows: int) -> None:
        """Copy rows in parallel; a single core is slower than the bus to the device."""
        with ThreadPoolExecutor(count_cores()) as pool:
            list(pool.map(copy, range(rows)))

    def load_examples(self, jobs: Sequence[LocalJob]) -> DeviceExamples:
        """Return all examples of some jobs; sets seen before are on the device already."""
        sets = list(dict.fromkeys(job.examples for job in jobs))
        for examples in sets:
            if examples not in self._sets:
                self._sets[examples] = self._move(examples)
        moved = [self._sets[examples] for examples in sets]
        ends = np.cumsum([len(labels) for _, labels in moved])
        starts = dict(zip(sets, [0, *ends[:-1].tolist()], strict=True))
        if len(moved) == 1:
            return DeviceExamples(*moved[0], starts)
        features = torch.cat([features for features, _ in moved])
        return DeviceExamples(features, torch.cat([labels for _, labels in moved]), starts)

    def _move(self, examples: Examples) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.move_images(examples.features)
        labels = torch.tensor(examples.labels, device=self.device)
        return (
            torch.cat([features, features.new_zeros((1, *features.shape[1:]))]),
            torch.cat([labels, labels.new_zeros(1)]),
        )

    def move_images(self, features: Float32Array) -> torch.Tensor:
        """Return (n, rows, columns, channels) images on the device."""
        return torch.tensor(features, device=self.device).permute(0, 2, 3, 1).contiguous()
