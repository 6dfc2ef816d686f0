"""The eavesdroppers by name.

To add one, write a module with its class (see `eavesdropper`) and enter it in `EAVESDROPPERS` and,
if it needs anything besides the queries, in `NEEDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from covertfl.eavesdroppers.alignment import AlignmentEavesdropper
from covertfl.eavesdroppers.change_point import ChangePointEavesdropper
from covertfl.eavesdroppers.early_stop import EarlyStopEavesdropper
from covertfl.eavesdroppers.eavesdropper import Eavesdropper, Means
from covertfl.eavesdroppers.ensemble import EnsembleEavesdropper
from covertfl.eavesdroppers.fine_tune import FineTuneEavesdropper
from covertfl.eavesdroppers.likelihood import LikelihoodEavesdropper
from covertfl.eavesdroppers.majority import MajorityEavesdropper
from covertfl.eavesdroppers.minority import MinorityEavesdropper
from covertfl.eavesdroppers.repeat import RepeatEavesdropper
from covertfl.eavesdroppers.step_shape import StepShapeEavesdropper
from covertfl.eavesdroppers.train_alone import TrainAloneEavesdropper
from covertfl.eavesdroppers.validation import ValidationEavesdropper

EAVESDROPPERS: Mapping[str, Callable[[Means], Eavesdropper]] = {
    "majority": MajorityEavesdropper,
    "minority": MinorityEavesdropper,
    "likelihood": LikelihoodEavesdropper,
    "early-stop": EarlyStopEavesdropper,
    "change-point": ChangePointEavesdropper,
    "repeat": RepeatEavesdropper,
    "step-shape": StepShapeEavesdropper,
    "alignment": AlignmentEavesdropper,
    "validation": ValidationEavesdropper,
    "fine-tune": FineTuneEavesdropper,
    "ensemble": EnsembleEavesdropper,
    "train-alone": TrainAloneEavesdropper,
}

# What an eavesdropper needs besides the queries, as fields of `Means`.
NEEDS: Mapping[str, tuple[str, ...]] = {
    "likelihood": ("scheme",),
    "alignment": ("kernel", "reply"),
    "validation": ("kernel", "data"),
    "fine-tune": ("kernel", "data"),
    "ensemble": ("kernel", "data"),
    "train-alone": ("kernel", "data"),
}
# Those that use only which trajectory each query belongs to; formula F4 bounds their success.
BY_SCHEDULE = ("majority", "minority", "likelihood", "change-point")


def list_possible(means: Means) -> list[str]:
    """Return the names of the eavesdroppers whose needs are met by `means`."""
    return [
        name
        for name in EAVESDROPPERS
        if all(getattr(means, need) is not None for need in NEEDS.get(name, ()))
    ]
