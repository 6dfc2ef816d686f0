"""What a task is: a model, the data of a federation that trains it, and what its inputs are.

Users make their own `TrainingTask` from any torch module and arrays.  A trained model is of use
only with the same inputs, so the encoder and the standardisation are recorded with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from covertfl.arrays import FloatArray, IntArray
from covertfl.errors import InvalidInput
from covertfl.files.text import Section
from covertfl.kernels.job import Examples, Float32Array, Loss, Vector
from covertfl.seeding import LARGEST_SEED

if TYPE_CHECKING:
    import torch

    from covertfl.tasks.public_map import PublicMap

VECTORS = "the vector of a text"


@dataclass(frozen=True)
class Encoder:
    """The encoder that turns texts into vectors.

    Parameters
    ----------
    name, version : of the package
    dimensions : numbers in a vector
    fingerprint : SHA-256 of the vector of a fixed text; another version with the same fingerprint
        is the same encoder
    text_column : name of the column that the texts were in, None if it is not known
    """

    name: str
    version: str
    dimensions: int
    fingerprint: str
    text_column: str | None = None

    @classmethod
    def from_dict(cls, content: object) -> Encoder:
        """Return the encoder that `dataclasses.asdict` was made from, also after JSON.

        Raises
        ------
        InvalidInput
            if a key is missing or unknown, or a value has another type
        """
        if not isinstance(content, Mapping) or set(content) != set(cls.__dataclass_fields__):
            raise InvalidInput(f"an encoder must have {', '.join(cls.__dataclass_fields__)}")
        found = cls(**content)
        texts = (found.name, found.version, found.fingerprint, found.text_column or "")
        if not all(isinstance(text, str) for text in texts) or type(found.dimensions) is not int:
            raise InvalidInput("an encoder must have texts and a whole number of dimensions")
        return found


@dataclass(frozen=True, eq=False)
class Standardisation:
    """The map x -> (x - mean) / deviation of inputs.

    Parameters
    ----------
    mean, deviation : (d,), or (1,) for all numbers of an input alike; deviations are positive
    """

    mean: FloatArray
    deviation: FloatArray

    def apply(self, features: npt.NDArray[Any]) -> Float32Array:
        """Return (n, ...) features standardised, computed in double precision."""
        return np.asarray((features - self.mean) / self.deviation, dtype=np.float32)


def measure_standardisation(features: FloatArray) -> Standardisation:
    """Return mean and deviation of each of (n, d) features; the deviation of a constant is 1."""
    deviation = features.std(axis=0)
    deviation[deviation == 0.0] = 1.0
    return Standardisation(features.mean(axis=0), deviation)


@dataclass(frozen=True, eq=False)
class Inputs:
    """What the inputs of a task were before its features were made of them.

    Parameters
    ----------
    meaning : of the numbers of an input, in words
    encoder : that makes them of texts, None for inputs that are numbers
    standardisation : that they pass first, None for none
    """

    meaning: str = "the features of an example"
    encoder: Encoder | None = None
    standardisation: Standardisation | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return `meaning` and `encoder` as JSON values."""
        encoder = None if self.encoder is None else asdict(self.encoder)
        return {"meaning": self.meaning, "encoder": encoder}


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
        not balance their own (`data.draw_rows`)
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
    balance : whether clients train on their classes equally often (`data.draw_rows`)
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
