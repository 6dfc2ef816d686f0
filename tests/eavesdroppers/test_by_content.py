"""Beliefs and estimates from labelled data of its own."""

from __future__ import annotations

import math

import numpy as np
import pytest

from covertfl.eavesdroppers.by_content import (
    EnsembleEavesdropper,
    FineTuneEavesdropper,
    OwnData,
    TrainAloneEavesdropper,
    ValidationEavesdropper,
)
from covertfl.eavesdroppers.eavesdropper import Means
from covertfl.errors import InvalidInput
from covertfl.kernels.job import Examples, LocalOptimizer
from covertfl.kernels.mlp import LinearLayer, MlpKernel
from covertfl.kernels.weights import Layout, Vector
from tests.support.seen_queries import feed, make_line_means, make_queries, sigmoid, vector


def test_validation_belief_is_the_likelihood_of_its_labels() -> None:
    """Both labels are right with probability 1 / (1 + exp(-w)) each."""
    queries = make_queries([(0, (2.0, 0.0)), (1, (-1.0, 0.0))])
    eavesdropper = feed(ValidationEavesdropper(make_line_means()), queries)
    right, wrong = sigmoid(2.0) ** 2, sigmoid(-1.0) ** 2
    expected = [right / (right + wrong), wrong / (right + wrong)]
    assert eavesdropper.belief() == pytest.approx(expected, rel=1e-5)
    assert [weights.tolist() for weights in eavesdropper.estimate()] == [[2.0, 0.0]]


def test_validation_the_latest_weights_count() -> None:
    sent = [(0, (2.0, 0.0)), (1, (-1.0, 0.0)), (1, (3.0, 0.0)), (0, (2.0, 0.0))]
    eavesdropper = feed(ValidationEavesdropper(make_line_means()), make_queries(sent))
    assert int(np.argmax(eavesdropper.belief())) == 1
    assert [weights.tolist() for weights in eavesdropper.estimate()] == [[3.0, 0.0]]


def test_validation_one_trajectory_ties_and_three() -> None:
    means = make_line_means()
    one = feed(ValidationEavesdropper(means), make_queries([(0, (1.0, 0.0))]))
    assert one.belief().tolist() == [1.0]
    # Exchanging the sign of the bias changes no loss on this data.
    tied = make_queries([(0, (1.0, 0.5)), (1, (1.0, -0.5)), (2, (0.0, 0.0))])
    three = feed(ValidationEavesdropper(means), tied)
    belief = three.belief()
    assert belief[0] == pytest.approx(belief[1]) and belief[0] > belief[2]
    assert belief.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("classes", [2, 3])
def test_validation_cross_entropy_of_several_classes(classes: int) -> None:
    """Logits (0, ..., 0) cost log(classes); raising the right one by 1 is worked by hand."""
    layout = Layout(("weight",), ((classes, 1),))
    layers = [LinearLayer(1, classes, has_bias=False)]
    kernel = MlpKernel(layout, layers, "multiclass", LocalOptimizer(), threads=1)
    data = Examples(np.ones((4, 1), dtype=np.float32), np.zeros(4, dtype=np.int64))
    own = OwnData(Means(kernel=kernel, data=data), "validation")
    assert own.measure_loss(vector(*[0.0] * classes)) == pytest.approx(math.log(classes))
    raised = own.measure_loss(vector(1.0, *[0.0] * (classes - 1)))
    assert raised == pytest.approx(math.log(math.e + classes - 1) - 1.0, rel=1e-6)


def test_validation_it_needs_data() -> None:
    with pytest.raises(InvalidInput, match="validation eavesdropper needs labelled data"):
        ValidationEavesdropper(Means())


def test_fine_tune_one_pass_from_the_better_trajectory() -> None:
    """A pass of gradient descent takes w to w + lr / (1 + exp(w))."""
    queries = make_queries([(0, (2.0, 0.0)), (1, (-1.0, 0.0))])
    eavesdropper = feed(FineTuneEavesdropper(make_line_means(lr=0.5)), queries)
    (held,) = eavesdropper.estimate()
    assert held == pytest.approx([2.0 + 0.5 * sigmoid(-2.0), 0.0], abs=1e-6)


def test_fine_tune_belief_is_that_of_validation() -> None:
    means = make_line_means()
    sent = [(0, (2.0, 0.0)), (1, (-1.0, 0.3)), (2, (1.0, 0.0)), (1, (4.0, 0.0))]
    for number in range(1, len(sent) + 1):
        queries = make_queries(sent[:number])
        tuning, choosing = FineTuneEavesdropper(means), ValidationEavesdropper(means)
        assert feed(tuning, queries).belief().tolist() == feed(choosing, queries).belief().tolist()


def test_fine_tune_what_was_tuned_stays_while_it_is_the_choice() -> None:
    """Also where two trajectories tie: asking twice changes nothing."""
    means = make_line_means(copies=50)  # more than a batch: the order matters
    queries = make_queries([(0, (1.0, 0.5)), (1, (1.0, -0.5)), (2, (-9.0, 0.0))])
    eavesdropper = feed(FineTuneEavesdropper(means), queries)
    once = [weights.tolist() for weights in eavesdropper.estimate()]
    assert [weights.tolist() for weights in eavesdropper.estimate()] == once
    assert len(once) == 2 and all(weight > 1.0 for weight, _ in once)


def test_fine_tune_it_needs_data() -> None:
    with pytest.raises(InvalidInput, match="needs labelled data"):
        FineTuneEavesdropper(Means())


def test_ensemble_the_mean_of_two_that_err_in_opposite_ways() -> None:
    """Biases 3 and -3 cancel."""
    queries = make_queries([(0, (3.0, 3.0)), (1, (3.0, -3.0))])
    eavesdropper = feed(EnsembleEavesdropper(make_line_means()), queries)
    assert eavesdropper.belief() == pytest.approx([0.5, 0.5])
    (held,) = eavesdropper.estimate()
    assert held == pytest.approx([3.0, 0.0])


@pytest.mark.parametrize(
    ("first", "second", "share"),
    [
        ((3.0, 0.0), (-3.0, 0.0), 1.0),
        ((-3.0, 0.0), (3.0, 0.0), 0.0),
        # The biases cancel with three quarters of the first.
        ((3.0, 1.0), (3.0, -3.0), 0.75),
        ((3.0, 3.0), (3.0, -1.0), 0.25),
    ],
)
def test_ensemble_shares_of_two(
    first: tuple[float, float], second: tuple[float, float], share: float
) -> None:
    queries = make_queries([(0, first), (1, second)])
    eavesdropper = feed(EnsembleEavesdropper(make_line_means()), queries)
    assert eavesdropper.belief() == pytest.approx([share, 1.0 - share])


def test_ensemble_three_trajectories_of_which_one_is_left_out() -> None:
    queries = make_queries([(0, (3.0, 3.0)), (1, (3.0, -3.0)), (2, (-9.0, 0.0))])
    eavesdropper = feed(EnsembleEavesdropper(make_line_means()), queries)
    assert eavesdropper.belief() == pytest.approx([0.5, 0.5, 0.0])
    (held,) = eavesdropper.estimate()
    assert held == pytest.approx([3.0, 0.0])


def test_ensemble_one_trajectory_and_moves() -> None:
    sent = [(0, (1.0, 0.0)), (0, (2.0, 0.0)), (0, (2.0, 0.0))]
    eavesdropper = feed(EnsembleEavesdropper(make_line_means()), make_queries(sent))
    assert eavesdropper.belief().tolist() == [1.0]
    assert [weights.tolist() for weights in eavesdropper.estimate()] == [[2.0, 0.0]]


def test_ensemble_it_needs_data() -> None:
    with pytest.raises(InvalidInput, match="needs labelled data"):
        EnsembleEavesdropper(Means())


def test_train_alone_a_pass_for_each_round_from_nothing() -> None:
    """A parameter of one number has no spread, so it starts at 0."""
    queries = make_queries([(0, (7.0, 2.0)), (1, (-7.0, 5.0)), (0, (7.0, 2.0))])
    eavesdropper, expected = TrainAloneEavesdropper(make_line_means(lr=0.5)), 0.0
    for query in queries:
        eavesdropper.observe(query)
        expected += 0.5 * sigmoid(-expected)
        (held,) = eavesdropper.estimate()
        assert held == pytest.approx([expected, 0.0], abs=1e-6)


def test_train_alone_what_is_sent_after_the_first_query_does_not_matter() -> None:
    means = make_line_means()

    def hold(rest: list[tuple[int, tuple[float, float]]]) -> Vector:
        queries = make_queries([(0, (7.0, 2.0)), *rest])
        (held,) = feed(TrainAloneEavesdropper(means), queries).estimate()
        return held

    assert np.array_equal(hold([(1, (1.0, 1.0))]), hold([(0, (-90.0, 3.0))]))


def test_train_alone_it_believes_in_nothing() -> None:
    queries = make_queries([(0, (7.0, 2.0)), (1, (9.0, 0.0)), (2, (5.0, 5.0)), (0, (7.0, 2.0))])
    belief = feed(TrainAloneEavesdropper(make_line_means()), queries).belief()
    assert belief == pytest.approx([1 / 3] * 3)


def test_train_alone_it_needs_data() -> None:
    with pytest.raises(InvalidInput, match="needs labelled data"):
        TrainAloneEavesdropper(Means())
