"""What a task is, and the settings that it is made from.

Users make their own `TrainingTask` from any torch module and arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from covertfl.arrays import IntArray
from covertfl.errors import InvalidInput
from covertfl.files.toml import Section
from covertfl.kernels.job import Examples, Loss
from covertfl.kernels.weights import Vector
from covertfl.seeding import LARGEST_SEED
from covertfl.tasks.inputs import Inputs

if TYPE_CHECKING:
    import torch

    from covertfl.tasks.public_map import PublicMap

Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


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
    public_map : that all inputs have passed (`public_map`), None for none
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


class DirichletSplit(Section):
    """`split = { dirichlet = 0.3 }`: unequal shares of the classes, drawn for each client."""

    dirichlet: Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


class DataSection(Section):
    """`[data]` of a run file: the data, and how they are divided among clients and the public set.

    Parameters
    ----------
    split : "iid", or unequal shares of the classes
    public_size : size of the public set relative to a client's
    public_positive_share : share of positives in the public set; two classes only
    public_classes : number of "good" classes, which make up `public_class_share` of the public set;
        more than two classes only.  None: all classes as frequent as among all examples
    public_class_share : None: the good classes' share among all examples
    path : of the task's file or folder, for tasks that need or allow one
    model : name of the model; None: the task's default
    seed : of the division into clients', public and validation data, by default the run's own; runs
        with the same one have the same federation
    map : whether all inputs pass the public map (`public_map`)
    balance : whether clients train on their classes equally often (`training_rows`)
    """

    split: Literal["iid"] | DirichletSplit = "iid"
    public_size: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 1.0
    public_positive_share: Share = 0.1
    public_classes: Count | None = None
    public_class_share: Share | None = None
    path: str | None = None
    model: str | None = None
    seed: Seed | None = None
    map: Literal["public"] | None = None
    balance: bool = True


class DataSettings(DataSection):
    """All that a task is made from.

    Parameters
    ----------
    task : name in the registry
    clients : number of clients
    same_clients : whether clients hold the same rows for every public set of at most one client's
        size, so that the learner's trajectory does not depend on what the eavesdropper holds (but
        in the task embeddings, whose features the public set standardises).  The rows that any
        such set may need are set aside.  False: clients hold all rows that neither
        the validation nor the public set uses
    """

    task: str
    seed: Seed = 0
    clients: Count = 20
    same_clients: bool = False


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
