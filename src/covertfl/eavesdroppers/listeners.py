"""Tier A: eavesdroppers that listen, and own nothing."""

from __future__ import annotations

from collections.abc import Mapping

from covertfl.eavesdroppers.attendance import AttendanceEavesdropper
from covertfl.eavesdroppers.change_point import ChangePointEavesdropper
from covertfl.eavesdroppers.early_stop import EarlyStopEavesdropper
from covertfl.eavesdroppers.eavesdropper import Listener
from covertfl.eavesdroppers.last_layer import LastLayerEavesdropper
from covertfl.eavesdroppers.likelihood import LikelihoodEavesdropper
from covertfl.eavesdroppers.majority import MajorityEavesdropper
from covertfl.eavesdroppers.map_spectrum import MapSpectrumEavesdropper
from covertfl.eavesdroppers.minority import MinorityEavesdropper
from covertfl.eavesdroppers.repeat import RepeatEavesdropper
from covertfl.eavesdroppers.rounding import RoundingEavesdropper
from covertfl.eavesdroppers.step_shape import StepShapeEavesdropper
from covertfl.eavesdroppers.two_runs import TwoRunsEavesdropper

LISTENERS: Mapping[str, type[Listener]] = {
    "majority": MajorityEavesdropper,
    "minority": MinorityEavesdropper,
    "likelihood": LikelihoodEavesdropper,
    "early-stop": EarlyStopEavesdropper,
    "change-point": ChangePointEavesdropper,
    "repeat": RepeatEavesdropper,
    "step-shape": StepShapeEavesdropper,
    "last-layer": LastLayerEavesdropper,
    "rounding": RoundingEavesdropper,
    "map-spectrum": MapSpectrumEavesdropper,
    "attendance": AttendanceEavesdropper,
    "two-runs": TwoRunsEavesdropper,
}
