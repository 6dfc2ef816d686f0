"""The eavesdroppers by name.

To add one, write its class (see `eavesdropper`) and enter it in `EAVESDROPPERS` and, if it needs
anything besides the queries, in `NEEDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from covertfl.eavesdroppers import by_content, by_movement, by_schedule
from covertfl.eavesdroppers.eavesdropper import Eavesdropper, Means
from covertfl.eavesdroppers.likelihood import LikelihoodEavesdropper

EAVESDROPPERS: Mapping[str, Callable[[Means], Eavesdropper]] = {
    "majority": by_schedule.MajorityEavesdropper,
    "minority": by_schedule.MinorityEavesdropper,
    "likelihood": LikelihoodEavesdropper,
    "early-stop": by_movement.EarlyStopEavesdropper,
    "change-point": by_schedule.ChangePointEavesdropper,
    "repeat": by_movement.RepeatEavesdropper,
    "step-shape": by_movement.StepShapeEavesdropper,
    "alignment": by_movement.AlignmentEavesdropper,
    "validation": by_content.ValidationEavesdropper,
    "fine-tune": by_content.FineTuneEavesdropper,
    "ensemble": by_content.EnsembleEavesdropper,
    "train-alone": by_content.TrainAloneEavesdropper,
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
