"""A task: a model, the clients' data, the public set, the validation set and a score.

Users make their own `TrainingTask` from any torch module and arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from covertfl.arrays import IntArray
from covertfl.errors import InvalidInput
from covertfl.kernels.job import Examples, Loss
from covertfl.kernels.weights import Float32Array

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class TrainingTask:
    """A model, and the data of a federation that trains it.

    Parameters
    ----------
    name : of the task
    make_model : returns the torch module, freshly initialised from torch's global generator
    loss : binary (one output, a logit) or multiclass (a logit for each class)
    train : the examples of all clients
    clients : rows of `train` that each client holds, disjoint
    public : the public set, which the eavesdropper holds and the learner knows
    validation : balanced, disjoint from the clients' and the public data
    """

    name: str
    make_model: Callable[[], torch.nn.Module]
    loss: Loss
    train: Examples
    clients: tuple[IntArray, ...]
    public: Examples
    validation: Examples

    @property
    def num_examples(self) -> int:
        """Number of examples that all clients hold together."""
        return sum(len(rows) for rows in self.clients)


def make_server_task(
    make_model: Callable[[], torch.nn.Module],
    loss: Loss,
    public: Examples,
    validation: Examples | None = None,
    *,
    clients: int,
    examples: int,
    name: str = "own",
) -> TrainingTask:
    """Make a task for the server of a real federation, which does not have the clients' data.

    Parameters
    ----------
    make_model : returns the torch module, without buffers; its parameters are what is sent
    public : examples that decoys are trained on
    validation : examples that weights are scored on; None to score nothing
    clients, examples : approximate number of clients, and of examples that each of them holds
    """
    if clients < 1 or examples < 1:
        raise InvalidInput(f"clients and examples must be at least 1, got {clients} and {examples}")
    nothing = Examples(public.features[:0], public.labels[:0])
    rows = tuple(np.split(np.arange(clients * examples), clients))
    return TrainingTask(name, make_model, loss, nothing, rows, public, validation or nothing)


def score_accuracy(outputs: Float32Array, labels: npt.NDArray[np.generic], loss: Loss) -> float:
    """Return the accuracy, in [0, 1], of (n, outputs) logits for (n,) labels."""
    predicted = outputs[:, 0] > 0.0 if loss == "binary" else outputs.argmax(axis=1)
    return float(np.mean(predicted == labels))
