"""The eavesdroppers `fresh-labels`, `fresh-labels-5` and `fresh-labels-100`."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from covertfl.eavesdroppers.eavesdropper import Means
from covertfl.eavesdroppers.fresh_labels import (
    FewFreshLabelsEavesdropper,
    FreshLabelsEavesdropper,
    ManyFreshLabelsEavesdropper,
)
from covertfl.errors import InvalidInput
from covertfl.kernels.job import Examples
from tests.support.seen_queries import feed, make_line_means, make_queries, sigmoid

KINDS = (FewFreshLabelsEavesdropper, FreshLabelsEavesdropper, ManyFreshLabelsEavesdropper)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.number))
def test_belief_is_the_likelihood_of_the_first_labels(kind: type[FreshLabelsEavesdropper]) -> None:
    """All examples say that the weight is positive but those after the first n."""
    features = np.ones((150, 1), dtype=np.float32)
    labels = (np.arange(150) < kind.number).astype(np.float32)
    means = dataclasses.replace(make_line_means(), fresh=Examples(features, labels))
    eavesdropper = feed(kind(means), make_queries([(0, (-0.02, 0.0)), (1, (0.1, 0.0))]))
    right, wrong = sigmoid(0.1) ** kind.number, sigmoid(-0.02) ** kind.number
    assert eavesdropper.belief()[1] == pytest.approx(right / (right + wrong), rel=1e-5)


def test_the_latest_weights_count_and_fewer_examples_are_enough() -> None:
    means = make_line_means()
    means = dataclasses.replace(means, fresh=means.data)
    queries = make_queries([(0, (2.0, 0.0)), (1, (-1.0, 0.0)), (1, (3.0, 0.0))])
    eavesdropper = feed(FreshLabelsEavesdropper(means), queries)
    right, wrong = sigmoid(3.0) ** 2, sigmoid(2.0) ** 2
    assert eavesdropper.belief()[1] == pytest.approx(right / (right + wrong), rel=1e-5)


def test_it_needs_examples_of_its_own() -> None:
    with pytest.raises(InvalidInput, match="that the learner does not know"):
        FreshLabelsEavesdropper(make_line_means())
    with pytest.raises(InvalidInput, match="FreshLabels needs a model and examples"):
        FreshLabelsEavesdropper(Means())
