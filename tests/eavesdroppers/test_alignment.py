"""The eavesdropper `alignment`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import pytest

from covertfl.eavesdroppers.alignment import ALIGNMENT_ODDS, AlignmentEavesdropper
from covertfl.eavesdroppers.eavesdropper import Means
from covertfl.eavesdroppers.first_moves import FirstMovesEavesdropper
from covertfl.eavesdroppers.reply_length import ReplyLengthEavesdropper
from covertfl.errors import InvalidInput
from covertfl.kernels.job import LocalJob, Work
from covertfl.kernels.mlp import MlpKernel
from covertfl.kernels.weights import Vector
from tests.support.seen_queries import feed, make_line_means, make_queries

# Its replies pull the weight up and leave the bias alone.
ALONG = [(0, (0.0, 0.0)), (0, (1.0, 0.0))]


AGAINST = [(1, (0.5, 0.0)), (1, (-2.0, 0.0))]


ASLANT = [(1, (-1.0, 0.0)), (1, (0.0, 1.0))]


@pytest.mark.parametrize("work", ["train", "gradient"])
def test_cosines_worked_by_hand(work: Work) -> None:
    means = make_line_means(lr=0.1, work=work)
    eavesdropper = feed(AlignmentEavesdropper(means), make_queries(ALONG + AGAINST))
    assert eavesdropper.alignment(0) == pytest.approx(1.0, abs=1e-6)
    assert eavesdropper.alignment(1) == pytest.approx(-1.0, abs=1e-6)
    assert eavesdropper.belief()[0] == pytest.approx(1.0 / (1.0 + math.exp(-2.0 * ALIGNMENT_ODDS)))
    (held,) = eavesdropper.estimate()
    assert held.tolist() == [1.0, 0.0]


def test_a_move_aslant_has_the_cosine_of_its_angle() -> None:
    eavesdropper = feed(AlignmentEavesdropper(make_line_means()), make_queries(ALONG + ASLANT))
    assert eavesdropper.alignment(1) == pytest.approx(math.sqrt(0.5), abs=1e-6)
    odds = math.exp(ALIGNMENT_ODDS * (1.0 - math.sqrt(0.5)))
    assert eavesdropper.belief() == pytest.approx([odds / (1 + odds), 1 / (1 + odds)], rel=1e-4)


def test_the_mean_is_over_moves_and_repeats_count_for_nothing() -> None:
    sent = [(0, (0.0, 0.0)), (0, (0.0, 0.0)), (0, (1.0, 0.0)), (0, (1.0, 3.0))]
    eavesdropper = feed(AlignmentEavesdropper(make_line_means()), make_queries(sent))
    assert eavesdropper.alignment(0) == pytest.approx(0.5, abs=1e-6)
    assert eavesdropper.belief().tolist() == [1.0]


def test_ties_and_three_trajectories() -> None:
    first = [(0, (0.0, 0.0)), (1, (5.0, 0.0)), (2, (9.0, 0.0))]
    eavesdropper = feed(AlignmentEavesdropper(make_line_means()), make_queries(first))
    assert eavesdropper.belief() == pytest.approx([1 / 3] * 3)
    assert len(eavesdropper.estimate()) == 3
    moved = make_queries([*first, (2, (9.5, 0.0))])
    eavesdropper = feed(AlignmentEavesdropper(make_line_means()), moved)
    e = math.exp(ALIGNMENT_ODDS)
    assert eavesdropper.belief() == pytest.approx([1 / (2 + e), 1 / (2 + e), e / (2 + e)], rel=1e-4)


def test_it_must_be_a_client() -> None:
    with pytest.raises(InvalidInput, match="needs to be a client"):
        AlignmentEavesdropper(Means())


def test_rounds_in_which_it_was_not_asked_cost_nothing_and_count_for_nothing() -> None:
    """Asked in round 1 only, it compares the first move and neither trains nor compares later."""
    means = make_line_means()
    asked = []

    def reply(round_number: int, weights: Vector) -> LocalJob:
        asked.append(round_number)
        assert means.reply is not None
        return means.reply(round_number, weights)

    limited = dataclasses.replace(means, reply=reply, attended=frozenset({1}))
    sent = [(0, (0.0, 0.0)), (0, (1.0, 0.0)), (0, (-4.0, 0.0))]
    eavesdropper = feed(AlignmentEavesdropper(limited), make_queries(sent))
    assert eavesdropper.alignment(0) == pytest.approx(1.0, abs=1e-6)
    assert asked == [1]


def test_the_reply_before_and_the_changes_of_both() -> None:
    """Moves up, then up and aside; its replies go up, the second one less far."""
    sent = [(0, (0.0, 0.0)), (0, (1.0, 0.0)), (0, (2.0, 1.0))]
    figures = feed(AlignmentEavesdropper(make_line_means()), make_queries(sent)).figures()
    assert figures["cosine"][0] == pytest.approx((1.0 + math.sqrt(0.5)) / 2.0, abs=1e-6)
    assert figures["cosine with the reply before"][0] == pytest.approx(math.sqrt(0.5), abs=1e-6)
    assert figures["cosine of changes"][0] == pytest.approx(0.0, abs=1e-6)


def test_replies_are_worked_out_once_for_all_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    means = make_line_means()
    jobs: list[LocalJob] = []
    run = MlpKernel.run

    def count(self: MlpKernel, requested: Sequence[LocalJob]) -> list[Vector]:
        jobs.extend(requested)
        return run(self, requested)

    monkeypatch.setattr(MlpKernel, "run", count)
    queries = make_queries(ALONG + AGAINST)
    for kind in (AlignmentEavesdropper, FirstMovesEavesdropper, ReplyLengthEavesdropper):
        feed(kind(means), queries)
    assert len(jobs) == len(queries)
