"""What a task is, and the settings that it is made from.

Users make their own `TrainingTask` from any torch module and arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from covertfl.arrays import IntArray
from covertfl.errors import InvalidInput
from covertfl.kernels.job import Examples, Loss
from covertfl.kernels.weights import Vector
from covertfl.tasks.inputs import Inputs

if TYPE_CHECKING:
    import torch

    from covertfl.tasks.public_map import PublicMap


@dataclass(frozen=True, eq=False)
class TrainingTask:
    """A model, and the data of a federation that trains it.

    Parameters
    ----------
    make_model : returns the torch module, freshly initialised from torch's global generator
    loss : binary (one output, a logit) or multiclass (a logit for each class)
    train : the examples of all clients
    clients : rows of `train` that each client holds, disjoint
    public : the public set, which the eavesdropper holds and the learner knows
    validation : disjoint from the clients' and the public data; balanced in built-in tasks
    public_map : that all inputs have passed (`public_map.add_public_map`), None for none
    classes : names of the classes, empty if they have none
    inputs : what the features were made of, recorded with the trained model
    is_balanced : whether it is public that all classes are equally frequent, so that clients need
        not balance their own (`training_rows.draw_rows`)
    """

    name: str
    make_model: Callable[[], torch.nn.Module]
    loss: Loss
    train: Examples
    clients: tuple[IntArray, ...]
    public: Examples
    validation: Examples
    public_map: PublicMap | None = None
    classes: tuple[str, ...] = ()
    inputs: Inputs = field(default_factory=Inputs)
    is_balanced: bool = False

    @property
    def num_examples(self) -> int:
        """Number of examples that all clients hold together."""
        return sum(len(rows) for rows in self.clients)

    def draw_weights(self, seed: int) -> Vector:
        """Draw the (P,) weights of the model's own initialisation."""
        from covertfl.kernels.choose import draw_weights

        return draw_weights(self.make_model, seed=seed)


@dataclass(frozen=True)
class DataSettings:
    """Which data a task uses, and how they are divided: `task`, `seed` and `[data]` of a run file.

    Parameters
    ----------
    task : name in the registry
    seed : of the division into clients', public and validation data; at least 0
    clients : number of clients, at least 1
    split : "iid", or the positive concentration of a Dirichlet split by class
    public_size : size of the public set relative to a client's, positive
    public_positive_share : share of positives in the public set, in [0, 1]; two classes only
    public_classes : number of "good" classes, which make up `public_class_share` of the public set;
        more than two classes only.  None: all classes as frequent as among all examples
    public_class_share : in [0, 1]; None: the good classes' share among all examples
    path : of the task's file or folder, for tasks that need or allow one
    model : name of the model; None: the task's default
    same_clients : whether clients hold the same rows for every public set of at most one client's
        size, so that the learner's trajectory does not depend on what the eavesdropper holds (but
        in the task embeddings, whose features the public set standardises).  The rows that any
        such set may need are set aside.  False: clients hold all rows that neither
        the validation nor the public set uses
    """

    task: str
    seed: int = 0
    clients: int = 20
    split: Literal["iid"] | float = "iid"
    public_size: float = 1.0
    public_positive_share: float = 0.1
    public_classes: int | None = None
    public_class_share: float | None = None
    path: str | None = None
    model: str | None = None
    same_clients: bool = False

    def __post_init__(self) -> None:
        _require(self.seed >= 0, "seed", "at least 0", self.seed)
        _require(self.clients >= 1, "clients", "at least 1", self.clients)
        if isinstance(self.split, str):
            _require(self.split == "iid", "split", "iid or a Dirichlet concentration", self.split)
        else:
            _require(_is_positive(self.split), "dirichlet", "a positive number", self.split)
        _require(_is_positive(self.public_size), "public_size", "positive", self.public_size)
        share = self.public_positive_share
        _require(0.0 <= share <= 1.0, "public_positive_share", "in [0, 1]", share)
        if self.public_classes is not None:
            _require(self.public_classes >= 1, "public_classes", "at least 1", self.public_classes)
        if self.public_class_share is not None:
            if self.public_classes is None:
                raise InvalidInput("public_class_share needs public_classes, which is not set")
            share = self.public_class_share
            _require(0.0 <= share <= 1.0, "public_class_share", "in [0, 1]", share)


def _is_positive(number: float) -> bool:
    return math.isfinite(number) and number > 0.0


def _require(holds: bool, name: str, allowed: str, came: object) -> None:
    if not holds:
        raise InvalidInput(f"{name} must be {allowed}, got {came}")


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
    make_model : returns the torch module; its parameters and buffers are what is sent
    public : examples that decoys are trained on
    validation : examples that weights are scored on; None to score nothing
    clients, examples : approximate number of clients, and of examples that each of them holds
    """
    if clients < 1 or examples < 1:
        raise InvalidInput(f"clients and examples must be at least 1, got {clients} and {examples}")
    nothing = Examples(public.features[:0], public.labels[:0])
    rows = tuple(np.split(np.arange(clients * examples), clients))
    return TrainingTask(name, make_model, loss, nothing, rows, public, validation or nothing)
