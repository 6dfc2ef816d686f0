"""The eavesdroppers that need no training on other runs, by name, in the order of the tables."""

from __future__ import annotations

from collections.abc import Mapping

from covertfl.eavesdroppers import clients, listeners, owners
from covertfl.eavesdroppers.eavesdropper import Listener
from covertfl.eavesdroppers.likelihood import LikelihoodEavesdropper

KINDS: Mapping[str, type[Listener]] = {
    "majority": listeners.MajorityEavesdropper,
    "minority": listeners.MinorityEavesdropper,
    "likelihood": LikelihoodEavesdropper,
    "early-stop": listeners.EarlyStopEavesdropper,
    "change-point": listeners.ChangePointEavesdropper,
    "repeat": listeners.RepeatEavesdropper,
    "step-shape": listeners.StepShapeEavesdropper,
    "last-layer": listeners.LastLayerEavesdropper,
    "rounding": listeners.RoundingEavesdropper,
    "map-spectrum": listeners.MapSpectrumEavesdropper,
    "attendance": listeners.AttendanceEavesdropper,
    "two-runs": listeners.TwoRunsEavesdropper,
    "validation": owners.ValidationEavesdropper,
    "anti-validation": owners.AntiValidationEavesdropper,
    "fine-tune": owners.FineTuneEavesdropper,
    "ensemble": owners.EnsembleEavesdropper,
    "train-alone": owners.TrainAloneEavesdropper,
    "alignment": clients.AlignmentEavesdropper,
    "first-moves": clients.FirstMovesEavesdropper,
    "reply-length": clients.ReplyLengthEavesdropper,
    "mark": clients.MarkEavesdropper,
    "fresh-labels": owners.FreshLabelsEavesdropper,
    "fresh-labels-5": owners.FewFreshLabelsEavesdropper,
    "fresh-labels-100": owners.ManyFreshLabelsEavesdropper,
    "unlabelled": owners.UnlabelledEavesdropper,
}
