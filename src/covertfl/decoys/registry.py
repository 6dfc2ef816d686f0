"""The decoys by name: those built in, and plug-ins.

To add one, write its module (see `decoy`) and enter in `DECOYS` how it is made from a task, the
clients' batch size and the update rule.  A plug-in is made from the same three (docs/extending.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from covertfl.decoys.adversarial import AdversarialDecoy
from covertfl.decoys.decoy import Decoy
from covertfl.decoys.mirrored import MirroredDecoy
from covertfl.decoys.plugged import make_plugged_decoy
from covertfl.decoys.public import PublicDecoy
from covertfl.decoys.random_weights import RandomDecoy
from covertfl.decoys.update_rule import UpdateRule
from covertfl.errors import InvalidInput
from covertfl.kernels.job import LocalOptimizer
from covertfl.plugins import PlugIns
from covertfl.tasks.task import TrainingTask


def _make_adversarial(task: TrainingTask, batch_size: int, rule: UpdateRule) -> Decoy:
    # First moves come without comparison; a FedSGD step is a small part of a pass.
    moves = 1 if rule.algorithm == "fedavg" else 40
    return AdversarialDecoy(task.public, task.loss, batch_size, rule, first_moves=moves)


REPLICA = "replica"  # of exchangeable policies; the run makes all replicas together
DECOYS: Mapping[str, Callable[[TrainingTask, int, UpdateRule], Decoy]] = {
    "random": RandomDecoy,
    "mirrored": lambda task, batch_size, rule: MirroredDecoy(rule),
    "public": lambda task, batch_size, rule: PublicDecoy(task.public, batch_size, rule),
    "adversarial": _make_adversarial,
}
DECOY_PLUG_INS = PlugIns("decoy", "covertfl.decoys", DECOYS, reserved=(REPLICA,))


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
    batch_size : of the clients, at least 1
    algorithm : of the federation
    optimizer : of the clients (fedavg) or of the server (fedsgd); None for its defaults

    Raises
    ------
    InvalidInput
        if the kind is unknown, the batch size is not positive or the public set is empty; if a
        plug-in cannot be imported or is no decoy
    """
    DECOY_PLUG_INS.check(kind, "decoy kind")
    if batch_size < 1:
        raise InvalidInput(f"batch_size must be at least 1, got {batch_size}")
    rule = UpdateRule(algorithm, optimizer or LocalOptimizer())
    if kind not in DECOYS:
        make = DECOY_PLUG_INS.find(kind, "decoy kind")
        return make_plugged_decoy(kind, make, task, batch_size, rule)
    if kind != "mirrored" and len(task.public) == 0:
        raise InvalidInput(f"decoy kind {kind} needs a public set, task {task.name} has none")
    return DECOYS[kind](task, batch_size, rule)
