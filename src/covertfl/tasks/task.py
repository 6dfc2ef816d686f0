"""What a task is: a model, the clients' data, public data, validation data and a score.

A user's own task is a `TrainingTask` made from any torch module and arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from covertfl.local_training import Examples, Loss
from covertfl.oracle import IntArray

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
