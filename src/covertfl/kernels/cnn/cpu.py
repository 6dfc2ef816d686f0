"""Local jobs of small convolutional networks on a CPU, in compiled code (`_cnn.c`).

As with perceptrons, each job runs in one thread and jobs are spread over the processor's cores, so
that the result of a job depends neither on the other jobs nor on the number of threads.  Dropout
uses the masks of `dropout.hash_dropout_mask`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from covertfl.arrays import FloatArray, IntArray
from covertfl.errors import InvalidInput
from covertfl.kernels import _cnn
from covertfl.kernels.autograd.module import ModelFactory, describe_layout, isolate_generator
from covertfl.kernels.cnn.blocks import Block, Network, describe_network
from covertfl.kernels.cnn.kernel import find_image
from covertfl.kernels.compiled import count_threads, list_options, make_request, share_work
from covertfl.kernels.job import Float32Array, LocalJob, LocalOptimizer, Loss, Vector, check_weights

_ROWS_PER_THREAD = 200


def fits_cpu_kernel(module: nn.Module, optimizer: LocalOptimizer) -> bool:
    """Return whether `CnnCpuKernel` can run a module, for square images of some size.

    Its last layer must be linear; its padded outputs need a positive eps.
    """
    image = find_image(module)
    network = None if image is None else describe_network(module, image)
    return network is not None and _ends_linear(network) and optimizer.eps > 0.0


def _ends_linear(network: Network) -> bool:
    last = network.blocks[-1]
    return last.height * last.width == 1


@dataclass(frozen=True, eq=False)
class _Tables:
    """A network as the compiled code reads it."""

    blocks: IntArray  # (B, 11) sizes
    rates: FloatArray  # (B,) of dropout
    source: IntArray  # place in the weights of each element of the padded vector; -1 for padding
    outputs: int
    vector_length: int


def _make_tables(network: Network) -> _Tables:
    source = np.full(network.size, -1, dtype=np.int64)
    source[network.places] = np.arange(len(network.places))
    rates = np.array([block.rate or 0.0 for block in network.blocks])
    rows = np.array([_list_sizes(block) for block in network.blocks], dtype=np.int64)
    outputs = network.blocks[-1].outputs
    return _Tables(rows, rates, source, outputs, _choose_vector_length(network))


def _choose_vector_length(network: Network) -> int:
    """Return 16, or 8 if vectors of 16 outputs would compute a quarter more, most of it padding."""
    narrow, wide = (
        sum(block.flops // block.outputs * -(-block.outputs // length) for block in network.blocks)
        * length
        for length in (8, 16)
    )
    return 8 if wide > 1.25 * narrow else 16


def _list_sizes(block: Block) -> tuple[int, ...]:
    return (
        block.height,
        block.width,
        block.channels,
        block.kernel_height,
        block.kernel_width,
        block.outputs,
        block.weights_start,
        -1 if block.biases_start is None else block.biases_start,
        int(block.is_rectified),
        block.pool,
        -1 if block.rate is None else block.dropout,
    )


class CnnCpuKernel:
    """Kernel for local jobs of a convolutional network on the CPU.

    Parameters
    ----------
    model_factory : returns the module, one that `fits_cpu_kernel`
    loss : binary (mean of binary cross entropy with logits) or multiclass (mean cross entropy)
    threads : largest number of threads; None for one per core
    vector_length : of the widest vectors used, in floats: 4, 8 or 16; None for the one that suits
        the network
    """

    def __init__(
        self,
        model_factory: ModelFactory,
        loss: Loss,
        optimizer: LocalOptimizer,
        *,
        threads: int | None = None,
        vector_length: int | None = None,
    ) -> None:
        with isolate_generator():
            self._module = model_factory()
        self.layout = describe_layout(self._module)
        self.loss: Loss = loss
        self.optimizer = optimizer
        self.threads = count_threads(threads)
        self._options = list_options(optimizer)
        self._vector_length = vector_length
        self._tables: dict[tuple[int, ...], _Tables] = {}

    def run(self, jobs: Sequence[LocalJob]) -> list[Vector]:
        """Return the weights after each job, or its gradient, whatever else is in the list."""
        results = [np.empty(self.layout.size, dtype=np.float32) for _ in jobs]
        members: dict[tuple[int, ...], list[int]] = {}
        for number, job in enumerate(jobs):
            self._find_tables(job.examples.features)
            members.setdefault(job.examples.features.shape[1:], []).append(number)
        for image, numbers in members.items():
            self._run_some(
                self._tables[image], [jobs[n] for n in numbers], [results[n] for n in numbers]
            )
        return results

    def _run_some(
        self, tables: _Tables, jobs: Sequence[LocalJob], results: Sequence[Vector]
    ) -> None:
        """Run jobs whose images have one shape."""
        requests = [
            make_request(job, result, self.layout, self.loss)
            for job, result in zip(jobs, results, strict=True)
        ]
        counter = np.zeros(1, dtype=np.int64)

        def work() -> None:
            _cnn.run(
                tables.blocks,
                tables.rates,
                tables.source,
                self._options,
                int(self.loss == "binary"),
                requests,
                counter,
                self._vector_length or tables.vector_length,
            )

        share_work(work, min(self.threads, len(jobs)))

    def _find_tables(self, features: Float32Array) -> _Tables:
        """Return the network for images of the shape (channels, rows, columns) of the features."""
        image = features.shape[1:]
        if features.dtype != np.float32:
            raise InvalidInput(f"features must be 32-bit floats, got {features.dtype}")
        if image not in self._tables:
            network = describe_network(self._module, image)
            if network is None or not _ends_linear(network):
                raise InvalidInput(f"features must be images that fit the model, got shape {image}")
            self._tables[image] = _make_tables(network)
        tables = self._tables[image]
        if self.loss == "binary" and tables.outputs != 1:
            raise InvalidInput(
                f"a model with a binary loss must have one output, got {tables.outputs}"
            )
        return tables

    def predict(self, weights: Vector, features: Float32Array) -> Float32Array:
        """Return (n, outputs) raw outputs (logits), without dropout."""
        check_weights(weights, self.layout)
        tables = self._find_tables(features)
        outputs = np.empty((len(features), tables.outputs), dtype=np.float32)
        start, rows = np.ascontiguousarray(weights), np.ascontiguousarray(features)
        counter = np.zeros(1, dtype=np.int64)

        def work() -> None:
            _cnn.predict(
                tables.blocks,
                tables.rates,
                tables.source,
                start,
                rows,
                outputs,
                counter,
                self._vector_length or tables.vector_length,
            )

        share_work(work, min(self.threads, len(features) // _ROWS_PER_THREAD + 1))
        return outputs
