"""The eavesdropper `validation`."""

from __future__ import annotations

import math

import numpy as np
import pytest

from covertfl.eavesdroppers.eavesdropper import Means
from covertfl.eavesdroppers.own_data import OwnData
from covertfl.eavesdroppers.validation import ValidationEavesdropper, describe_outputs
from covertfl.errors import InvalidInput
from covertfl.kernels.job import Examples, LocalOptimizer
from covertfl.kernels.mlp import LinearLayer, MlpKernel
from covertfl.kernels.weights import Layout
from tests.support.seen_queries import feed, make_line_means, make_queries, sigmoid, vector


def test_belief_is_the_likelihood_of_its_labels() -> None:
    """Both labels are right with probability 1 / (1 + exp(-w)) each."""
    queries = make_queries([(0, (2.0, 0.0)), (1, (-1.0, 0.0))])
    eavesdropper = feed(ValidationEavesdropper(make_line_means()), queries)
    right, wrong = sigmoid(2.0) ** 2, sigmoid(-1.0) ** 2
    expected = [right / (right + wrong), wrong / (right + wrong)]
    assert eavesdropper.belief() == pytest.approx(expected, rel=1e-5)
    assert [weights.tolist() for weights in eavesdropper.estimate()] == [[2.0, 0.0]]


def test_the_latest_weights_count() -> None:
    sent = [(0, (2.0, 0.0)), (1, (-1.0, 0.0)), (1, (3.0, 0.0)), (0, (2.0, 0.0))]
    eavesdropper = feed(ValidationEavesdropper(make_line_means()), make_queries(sent))
    assert int(np.argmax(eavesdropper.belief())) == 1
    assert [weights.tolist() for weights in eavesdropper.estimate()] == [[3.0, 0.0]]


def test_one_trajectory_ties_and_three() -> None:
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
def test_cross_entropy_of_several_classes(classes: int) -> None:
    """Logits (0, ..., 0) cost log(classes); raising the right one by 1 is worked by hand."""
    layout = Layout(("weight",), ((classes, 1),))
    layers = [LinearLayer(1, classes, has_bias=False)]
    kernel = MlpKernel(layout, layers, "multiclass", LocalOptimizer(), threads=1)
    data = Examples(np.ones((4, 1), dtype=np.float32), np.zeros(4, dtype=np.int64))
    own = OwnData(Means(kernel=kernel, data=data), "validation")
    assert own.measure_loss(vector(*[0.0] * classes)) == pytest.approx(math.log(classes))
    raised = own.measure_loss(vector(1.0, *[0.0] * (classes - 1)))
    assert raised == pytest.approx(math.log(math.e + classes - 1) - 1.0, rel=1e-6)


def test_it_needs_data() -> None:
    with pytest.raises(InvalidInput, match="validation eavesdropper needs labelled data"):
        ValidationEavesdropper(Means())


def test_figures_of_the_outputs_worked_by_hand() -> None:
    """Outputs are w + b and b - w, so their mean is b, their deviation |w| and their gap 2 w."""
    queries = make_queries([(0, (1.0, 2.0)), (0, (1.0, 3.0)), (0, (3.0, 4.0))])
    figures = feed(ValidationEavesdropper(make_line_means()), queries).figures()
    assert figures["last output"][0] == pytest.approx(4.0)
    assert figures["mean output"][0] == pytest.approx(3.0)
    assert figures["trend of output"][0] == pytest.approx(2.0)
    assert figures["first mean output"][0] == pytest.approx(2.0)
    assert figures["last deviation"][0] == pytest.approx(3.0)
    assert figures["last gap"][0] == pytest.approx(6.0)
    assert figures["last quantile 0.5"][0] == pytest.approx(4.0)
    assert figures["last positive answers"][0] == 1.0


def test_several_classes_are_described_by_the_margin_of_the_label() -> None:
    outputs = np.array([[3.0, 0.0, 0.0], [0.0, 0.0, 6.0]], dtype=np.float32)
    found = describe_outputs(outputs, np.array([0, 2]))
    assert found["output"] == pytest.approx(3.0) and found["deviation"] == pytest.approx(1.0)
    assert found["evenness"] == pytest.approx(math.log(2.0) / math.log(3.0))
