"""The decoys by name.

To add one, write its module (see `decoy`) and enter in `DECOYS` how it is made from a task, the
clients' batch size and the update rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

from covertfl.decoys.adversarial import AdversarialDecoy, Contradiction
from covertfl.decoys.decoy import Decoy
from covertfl.decoys.following import FollowingDecoy, choose_gains
from covertfl.decoys.mirrored import MirroredDecoy
from covertfl.decoys.public import PublicDecoy
from covertfl.decoys.random_weights import RandomDecoy
from covertfl.decoys.step_length import count_mean_batches
from covertfl.decoys.update_rule import UpdateRule
from covertfl.errors import InvalidInput
from covertfl.kernels.job import LocalOptimizer
from covertfl.tasks.task import TrainingTask


def _contradict(task: TrainingTask, batch_size: int, rule: UpdateRule) -> Contradiction:
    # First moves come without comparison; a FedSGD step is a small part of a pass.
    moves = 1 if rule.algorithm == "fedavg" else 40
    return Contradiction(task.public, task.loss, batch_size, rule.work, first_moves=moves)


def _make_adversarial(task: TrainingTask, batch_size: int, rule: UpdateRule) -> Decoy:
    return AdversarialDecoy(_contradict(task, batch_size, rule), rule)


def _make_following(task: TrainingTask, batch_size: int, rule: UpdateRule) -> Decoy:
    import torch

    from covertfl.kernels.autograd.module import describe_layout

    with torch.random.fork_rng(devices=[]):
        layout = describe_layout(task.make_model())
    # Clients pull towards the true model: contradict more, and accept a higher public loss for it.
    base = _contradict(task, batch_size, rule)
    contradiction = replace(base, least_keep_prob=0.3, full_until=1.0, none_from=2.0)
    batches = count_mean_batches(task, batch_size)
    return FollowingDecoy(contradiction, rule, choose_gains(layout), batches)


REPLICA = "replica"  # of exchangeable policies; the run makes all replicas together
DECOYS: Mapping[str, Callable[[TrainingTask, int, UpdateRule], Decoy]] = {
    "random": RandomDecoy,
    "mirrored": lambda task, batch_size, rule: MirroredDecoy(rule),
    "public": lambda task, batch_size, rule: PublicDecoy(task.public, batch_size, rule),
    "adversarial": _make_adversarial,
    "following": _make_following,
}


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
    kind : its name in `DECOYS`
    task : what is trained; its public set must not be empty, except for the mirrored decoy
    batch_size : of the clients, at least 1
    algorithm : of the federation
    optimizer : of the clients (fedavg) or of the server (fedsgd); None for its defaults

    Raises
    ------
    InvalidInput
        if the kind is unknown, the batch size is not positive or the public set is empty
    """
    if kind not in DECOYS:
        raise InvalidInput(f"decoy kind must be {', '.join(DECOYS)}, got {kind!r}")
    if batch_size < 1:
        raise InvalidInput(f"batch_size must be at least 1, got {batch_size}")
    if kind != "mirrored" and len(task.public) == 0:
        raise InvalidInput(f"decoy kind {kind} needs a public set, task {task.name} has none")
    rule = UpdateRule(algorithm, optimizer or LocalOptimizer())
    return DECOYS[kind](task, batch_size, rule)
