"""The settings a task is made from: the keys `task`, `seed` and `[data]` of a run file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from covertfl.errors import InvalidInput


@dataclass(frozen=True)
class DataSettings:
    """Which data a task uses, and how they are divided.

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
        size, so that the learner's trajectory does not depend on what the eavesdropper holds.  The
        rows that any such set may need are set aside.  False: clients hold all rows that neither
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
