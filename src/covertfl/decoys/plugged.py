"""Decoys that are plug-ins, with what they return checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from covertfl.decoys.decoy import Decoy, DecoyView
from covertfl.decoys.update_rule import UpdateRule
from covertfl.errors import InvalidInput
from covertfl.kernels.job import LocalJob
from covertfl.kernels.weights import Vector
from covertfl.plugins import explaining
from covertfl.tasks.task import TrainingTask


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


def make_plugged_decoy(
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
            f"covertfl.decoys.decoy.Decoy), got {type(own).__name__}"
        )
    return PluggedDecoy(name, own)
