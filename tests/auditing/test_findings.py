"""The finding of one eavesdropper: its last belief, with ties as shares."""

from __future__ import annotations

import pytest

from covertfl.auditing.findings import listen
from covertfl.eavesdroppers.by_schedule import MajorityEavesdropper
from covertfl.eavesdroppers.eavesdropper import Means
from tests.support.seen_queries import feed, follow_schedule


def test_a_tie_counts_its_share() -> None:
    queries = follow_schedule([0, 1, 2, 2, 1])
    finding = listen(MajorityEavesdropper(Means()), queries, {0: False, 1: True, 2: False}, None)
    assert finding.named == 0.5 and finding.accuracy is None
    assert finding.belief == pytest.approx((0.2, 0.4, 0.4))
    assert listen(MajorityEavesdropper(Means()), queries, None, None).named is None


def test_a_finding_is_of_the_last_round() -> None:
    queries = follow_schedule([0, 1, 1])
    finding = listen(MajorityEavesdropper(Means()), queries, {0: True, 1: False}, None)
    expected = feed(MajorityEavesdropper(Means()), queries).belief()
    assert finding.named == 0.0
    assert finding.belief == tuple(expected.tolist())
