"""The eavesdropper `fine-tune`."""

from __future__ import annotations

import pytest

from covertfl.eavesdroppers.eavesdropper import Means
from covertfl.eavesdroppers.fine_tune import FineTuneEavesdropper
from covertfl.eavesdroppers.validation import ValidationEavesdropper
from covertfl.errors import InvalidInput
from tests.support.seen_queries import feed, make_line_means, make_queries, sigmoid


def test_one_pass_from_the_better_trajectory() -> None:
    """A pass of gradient descent takes w to w + lr / (1 + exp(w))."""
    queries = make_queries([(0, (2.0, 0.0)), (1, (-1.0, 0.0))])
    eavesdropper = feed(FineTuneEavesdropper(make_line_means(lr=0.5)), queries)
    (held,) = eavesdropper.estimate()
    assert held == pytest.approx([2.0 + 0.5 * sigmoid(-2.0), 0.0], abs=1e-6)


def test_belief_is_that_of_validation() -> None:
    means = make_line_means()
    sent = [(0, (2.0, 0.0)), (1, (-1.0, 0.3)), (2, (1.0, 0.0)), (1, (4.0, 0.0))]
    for number in range(1, len(sent) + 1):
        queries = make_queries(sent[:number])
        tuning, choosing = FineTuneEavesdropper(means), ValidationEavesdropper(means)
        assert feed(tuning, queries).belief().tolist() == feed(choosing, queries).belief().tolist()


def test_what_was_tuned_stays_while_it_is_the_choice() -> None:
    """Also where two trajectories tie: asking twice changes nothing."""
    means = make_line_means(copies=50)  # more than a batch: the order matters
    queries = make_queries([(0, (1.0, 0.5)), (1, (1.0, -0.5)), (2, (-9.0, 0.0))])
    eavesdropper = feed(FineTuneEavesdropper(means), queries)
    once = [weights.tolist() for weights in eavesdropper.estimate()]
    assert [weights.tolist() for weights in eavesdropper.estimate()] == once
    assert len(once) == 2 and all(weight > 1.0 for weight, _ in once)


def test_it_needs_data() -> None:
    with pytest.raises(InvalidInput, match="needs labelled data"):
        FineTuneEavesdropper(Means())
