"""What a task is: a model, the clients' data, public data, validation data and a score.

A user's own task is a `TrainingTask` made from any torch module and arrays.
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

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class TrainingTask:
    """A model and the data of a federation.

    Parameters
    ----------
    name : of the task
    make_model : makes the torch module, freshly initialised from torch's global generator
    loss : binary (one output, a logit) or multiclass (a logit for each class)
    train : all clients' examples
    clients : rows of `train` that each client holds; no row belongs to two
    public : the public set, which the eavesdropper has and the learner knows
    validation : balanced; apart from clients' and public data
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
        """Examples that all clients hold together."""
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
    """A task as the server of a real federation has it: the clients' data is theirs.

    Parameters
    ----------
    make_model : makes the torch module, without buffers; its parameters are those that travel
    public : what decoys are trained on
    validation : what weights are scored on; None to score nothing
    clients, examples : about how many clients there are, and how many examples each of them holds
    """
    if clients < 1 or examples < 1:
        raise InvalidInput(f"clients and examples must be at least 1, got {clients} and {examples}")
    nothing = Examples(public.features[:0], public.labels[:0])
    rows = tuple(np.split(np.arange(clients * examples), clients))
    return TrainingTask(name, make_model, loss, nothing, rows, public, validation or nothing)


def score_accuracy(
    outputs: npt.NDArray[np.float32], labels: npt.NDArray[np.generic], loss: Loss
) -> float:
    """Share of examples that raw outputs name rightly, as a number in [0, 1].

    Parameters
    ----------
    outputs : (n, outputs) logits
    labels : (n,)
    """
    named = outputs[:, 0] > 0.0 if loss == "binary" else outputs.argmax(axis=1)
    return float(np.mean(named == labels))
