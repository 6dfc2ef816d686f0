"""The decoys by name: those built in, and plug-ins.

To add one, write its module (see `decoy`) and enter in `DECOYS` how it is made from a task, the
clients' batch size and the update rule.  A plug-in is made from the same three (docs/extending.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from covertfl.errors import InvalidInput
from covertfl.kernels.job import LocalJob, LocalOptimizer, Vector
from covertfl.plugins import PlugIns, explaining
from covertfl.schemes.decoys.adversarial import AdversarialDecoy
from covertfl.schemes.decoys.decoy import Decoy, DecoyView, UpdateRule
from covertfl.schemes.decoys.mirrored import MirroredDecoy
from covertfl.schemes.decoys.public import PublicDecoy
from covertfl.schemes.decoys.random_weights import RandomDecoy
from covertfl.tasks.task import TrainingTask


def _make_adversarial(task: TrainingTask, batch_size: int, rule: UpdateRule) -> Decoy:
    # First moves come without comparison; a FedSGD step is a small part of a pass.
    moves = 1 if rule.algorithm == "fedavg" else 40
    return AdversarialDecoy(task.public, task.loss, batch_size, rule, first_moves=moves)


DECOYS: Mapping[str, Callable[[TrainingTask, int, UpdateRule], Decoy]] = {
    "random": RandomDecoy,
    "mirrored": lambda task, batch_size, rule: MirroredDecoy(rule),
    "public": lambda task, batch_size, rule: PublicDecoy(task.public, batch_size, rule),
    "adversarial": _make_adversarial,
}
DECOY_PLUG_INS = PlugIns("decoy", "covertfl.decoys", DECOYS)


def make_decoy(
    kind: str,
    task: TrainingTask,
    *,
    batch_size: int,
    algorithm: Literal["fedavg", "fedsgd"] = "fedavg",
    optimizer: LocalOptimizer | None = None,
) -> Decoy:
    """Make a decoy for a task.

    Parameters
    ----------
    kind : its name in `DECOYS`, or a plug-in's
    task : what is trained; its public set must not be empty, except for the mirrored decoy
    batch_size : of the clients
    algorithm : of the federation
    optimizer : of the clients (fedavg) or of the server (fedsgd); None for its defaults

    Raises
    ------
    InvalidInput
        if the kind is unknown or the public set is empty; if a plug-in cannot be imported or is no
        decoy
    """
    DECOY_PLUG_INS.check(kind, "decoy kind")
    rule = UpdateRule(algorithm, optimizer or LocalOptimizer())
    if kind not in DECOYS:
        make = DECOY_PLUG_INS.find(kind, "decoy kind")
        return _make_plugged(kind, make, task, batch_size, rule)
    if kind != "mirrored" and len(task.public) == 0:
        raise InvalidInput(f"decoy kind {kind} needs a public set, task {task.name} has none")
    return DECOYS[kind](task, batch_size, rule)


class PluggedDecoy:
    """A decoy that is a plug-in, with what it returns checked.

    Parameters
    ----------
    name : of the plug-in
    own : the decoy
    """

    def __init__(self, name: str, own: Any) -> None:
        self._name, self._own = name, own
        self.needs_replies: bool = own.needs_replies

    def plan(self, view: DecoyView, *, generator: np.random.Generator) -> list[LocalJob]:
        """Return its jobs."""
        jobs = list(self._own.plan(view, generator=generator))
        if not all(isinstance(job, LocalJob) for job in jobs):
            raise InvalidInput(f"decoy {self._name}: plan must return a list of LocalJob")
        return jobs

    def move(
        self, view: DecoyView, results: Sequence[Vector], *, generator: np.random.Generator
    ) -> Vector:
        """Return its weights after the move, as 32-bit floats."""
        moved = np.asarray(self._own.move(view, results, generator=generator), dtype=np.float32)
        if moved.shape != view.weights.shape:
            raise InvalidInput(
                f"decoy {self._name}: move must return weights of shape {view.weights.shape}, got "
                f"{moved.shape}"
            )
        return moved


def _make_plugged(
    name: str,
    make: Callable[[TrainingTask, int, UpdateRule], Any],
    task: TrainingTask,
    batch_size: int,
    rule: UpdateRule,
) -> Decoy:
    """Make the decoy of a plug-in for a task; raise InvalidInput if it is no decoy."""
    with explaining(f"decoy {name} cannot be made from task, batch_size and rule"):
        own = make(task, batch_size, rule)
    has_methods = all(callable(getattr(own, method, None)) for method in ("plan", "move"))
    if not has_methods or type(getattr(own, "needs_replies", None)) is not bool:
        raise InvalidInput(
            f"decoy {name} must have plan, move and needs_replies, True or False (see "
            f"covertfl.schemes.decoys.decoy.Decoy), got {type(own).__name__}"
        )
    return PluggedDecoy(name, own)
