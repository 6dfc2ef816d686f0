"""Tiers B, C and D: eavesdroppers with the public set, a place among the clients, or fresh data."""

from __future__ import annotations

from collections.abc import Mapping

from covertfl.eavesdroppers.alignment import AlignmentEavesdropper
from covertfl.eavesdroppers.anti_validation import AntiValidationEavesdropper
from covertfl.eavesdroppers.eavesdropper import Listener
from covertfl.eavesdroppers.ensemble import EnsembleEavesdropper
from covertfl.eavesdroppers.fine_tune import FineTuneEavesdropper
from covertfl.eavesdroppers.first_moves import FirstMovesEavesdropper
from covertfl.eavesdroppers.fresh_labels import (
    FewFreshLabelsEavesdropper,
    FreshLabelsEavesdropper,
    ManyFreshLabelsEavesdropper,
)
from covertfl.eavesdroppers.mark import MarkEavesdropper
from covertfl.eavesdroppers.reply_length import ReplyLengthEavesdropper
from covertfl.eavesdroppers.train_alone import TrainAloneEavesdropper
from covertfl.eavesdroppers.unlabelled import UnlabelledEavesdropper
from covertfl.eavesdroppers.validation import ValidationEavesdropper

OWNERS: Mapping[str, type[Listener]] = {
    "validation": ValidationEavesdropper,
    "anti-validation": AntiValidationEavesdropper,
    "fine-tune": FineTuneEavesdropper,
    "ensemble": EnsembleEavesdropper,
    "train-alone": TrainAloneEavesdropper,
    "alignment": AlignmentEavesdropper,
    "first-moves": FirstMovesEavesdropper,
    "reply-length": ReplyLengthEavesdropper,
    "mark": MarkEavesdropper,
    "fresh-labels": FreshLabelsEavesdropper,
    "fresh-labels-5": FewFreshLabelsEavesdropper,
    "fresh-labels-100": ManyFreshLabelsEavesdropper,
    "unlabelled": UnlabelledEavesdropper,
}
