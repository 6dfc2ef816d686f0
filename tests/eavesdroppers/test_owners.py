"""Eavesdroppers with labelled data of their own: the public set, or data the learner never saw.

With bias 0 the loss of the model with two weights is log(1 + exp(-w)) on the two examples of
`make_line_means`; exchanging the sign of the bias changes nothing.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.support.seen_queries import (
    Examples,
    Means,
    listen,
    make_classes_kernel,
    make_line_means,
    make_queries,
    share_odds,
    sigmoid,
)

Sent = list[tuple[int, tuple[float, float]]]
LOSSES = [-2.0 * math.log1p(math.exp(-2.0)), -2.0 * math.log1p(math.exp(1.0))]
LATEST = [-2.0 * math.log1p(math.exp(-2.0)), -2.0 * math.log1p(math.exp(-3.0))]
BETTER_FIRST: Sent = [(0, (2.0, 0.0)), (1, (-1.0, 0.0))]
BETTER_LATER: Sent = [*BETTER_FIRST, (1, (3.0, 0.0)), (0, (2.0, 0.0))]


@pytest.mark.parametrize(
    ("name", "sent", "scores", "held"),
    [
        ("validation", [(0, (1.0, 0.0))], [0.0], [[1.0, 0.0]]),
        ("validation", BETTER_FIRST, LOSSES, [[2.0, 0.0]]),
        ("validation", BETTER_LATER, LATEST, [[3.0, 0.0]]),
        ("anti-validation", BETTER_FIRST, LOSSES[::-1], [[-1.0, 0.0]]),
        ("anti-validation", BETTER_LATER, LATEST[::-1], [[2.0, 0.0]]),
        ("fresh-labels", BETTER_FIRST, LOSSES, [[2.0, 0.0]]),
        ("fresh-labels", BETTER_LATER, LATEST, [[3.0, 0.0]]),
        # A pass of gradient descent takes w to w + lr / (1 + exp(w)).
        ("fine-tune", BETTER_FIRST, LOSSES, [[2.0 + 0.5 * sigmoid(-2.0), 0.0]]),
        ("fine-tune", BETTER_LATER, LATEST, [[3.0 + 0.5 * sigmoid(-3.0), 0.0]]),
        ("train-alone", BETTER_FIRST, [0.0, 0.0], [[0.25 + 0.5 * sigmoid(-0.25), 0.0]]),
    ],
)
def test_losses_worked_by_hand(
    name: str, sent: Sent, scores: list[float], held: list[list[float]]
) -> None:
    means = make_line_means(lr=0.5)
    eavesdropper = listen(name, make_queries(sent), replace(means, fresh=means.data))
    assert eavesdropper.belief() == pytest.approx(share_odds(*scores), rel=1e-5)
    estimate = np.array([weights.tolist() for weights in eavesdropper.estimate()])
    assert estimate == pytest.approx(np.array(held), abs=1e-6)


def test_three_of_which_two_tie() -> None:
    """What was tuned stays while it is the choice: asking twice changes nothing."""
    means = make_line_means(copies=50)  # more than a batch: the order matters
    queries = make_queries([(0, (1.0, 0.5)), (1, (1.0, -0.5)), (2, (-9.0, 0.0))])
    tuning = listen("fine-tune", queries, means)
    belief = listen("validation", queries, means).belief()
    assert belief[:2] == pytest.approx([0.5, 0.5]) and belief[2] < 1e-9
    assert tuning.belief().tolist() == belief.tolist()
    once = [weights.tolist() for weights in tuning.estimate()]
    assert [weights.tolist() for weights in tuning.estimate()] == once
    assert len(once) == 2 and all(weight > 1.0 for weight, _ in once)


def test_who_trains_alone_takes_the_scale_of_the_first_query_only() -> None:
    means, held = make_line_means(), []
    for rest in [(1, (1.0, 1.0))], [(0, (-90.0, 3.0))]:
        queries = make_queries([(0, (7.0, 2.0)), *rest])
        held.append(listen("train-alone", queries, means).estimate()[0].tolist())
    assert held[0] == held[1]


@pytest.mark.parametrize(
    ("sent", "shares", "held"),
    [
        # Biases 3 and -3 cancel.
        ([(0, (3.0, 3.0)), (1, (3.0, -3.0))], [0.5, 0.5], [3.0, 0.0]),
        ([(0, (3.0, 0.0)), (1, (-3.0, 0.0))], [1.0, 0.0], [3.0, 0.0]),
        ([(0, (-3.0, 0.0)), (1, (3.0, 0.0))], [0.0, 1.0], [3.0, 0.0]),
        # The biases cancel with three quarters of the first.
        ([(0, (3.0, 1.0)), (1, (3.0, -3.0))], [0.75, 0.25], [3.0, 0.0]),
        ([(0, (3.0, 3.0)), (1, (3.0, -1.0))], [0.25, 0.75], [3.0, 0.0]),
        # Three trajectories, one of which is left out.
        ([(0, (3.0, 3.0)), (1, (3.0, -3.0)), (2, (-9.0, 0.0))], [0.5, 0.5, 0.0], [3.0, 0.0]),
        ([(0, (1.0, 0.0)), (0, (2.0, 0.0)), (0, (2.0, 0.0))], [1.0], [2.0, 0.0]),
    ],
)
def test_mixtures_worked_by_hand(sent: Sent, shares: list[float], held: list[float]) -> None:
    eavesdropper = listen("ensemble", make_queries(sent), make_line_means())
    assert eavesdropper.belief() == pytest.approx(shares)
    assert [weights.tolist() for weights in eavesdropper.estimate()] == [pytest.approx(held)]


@pytest.mark.parametrize(
    ("name", "number"), [("fresh-labels-5", 5), ("fresh-labels", 20), ("fresh-labels-100", 100)]
)
def test_the_first_labels_count(name: str, number: int) -> None:
    """All examples say that the weight is positive but those after the first n."""
    labels = (np.arange(150) < number).astype(np.float32)
    fresh = Examples(np.ones((150, 1), dtype=np.float32), labels)
    queries = make_queries([(0, (-0.02, 0.0)), (1, (0.1, 0.0))])
    belief = listen(name, queries, replace(make_line_means(), fresh=fresh)).belief()
    scores = number * math.log(sigmoid(-0.02)), number * math.log(sigmoid(0.1))
    assert belief == pytest.approx(share_odds(*scores), rel=1e-5)


@pytest.mark.parametrize("is_turned", [False, True], ids=["labels", "labels exchanged"])
def test_even_answers_are_believed_whatever_the_labels(is_turned: bool) -> None:
    """Of inputs 1, -1, 1, -1 a weight answers half with yes, a bias all or none."""
    means = make_line_means(copies=2)
    assert means.data is not None
    labels = 1.0 - means.data.labels if is_turned else means.data.labels
    fresh = Examples(means.data.features, labels)
    sent = [(0, (0.5, 9.0)), (1, (-3.0, 0.0)), (2, (0.5, -9.0))]
    belief = listen("unlabelled", make_queries(sent), replace(means, fresh=fresh)).belief()
    assert belief == pytest.approx(share_odds(0.0, 20.0, 0.0))


def test_even_answers_of_several_classes() -> None:
    """Answers in shares 1/2, 1/4, 1/4 have 1.5 of log2(3) bits."""
    inputs = np.eye(3, dtype=np.float32)[[0, 0, 1, 2]]
    fresh = Examples(inputs, np.zeros(4, dtype=np.int64))
    queries = make_queries([(0, np.eye(3).ravel().tolist()), (1, [1.0] * 3 + [0.0] * 6)])
    means = Means(kernel=make_classes_kernel(3, 3), fresh=fresh)
    expected = share_odds(20.0 * 1.5 / math.log2(3.0), 0.0)
    assert listen("unlabelled", queries, means).belief() == pytest.approx(expected)


@pytest.mark.parametrize("classes", [2, 3])
def test_cross_entropy_of_several_classes(classes: int) -> None:
    """Logits (0, ..., 0) cost log(classes); raising the right one by 1 is worked by hand."""
    data = Examples(np.ones((4, 1), dtype=np.float32), np.zeros(4, dtype=np.int64))
    zeros = [0.0] * (classes - 1)
    queries = make_queries([(0, [0.0, *zeros]), (1, [1.0, *zeros])])
    means = Means(kernel=make_classes_kernel(1, classes), data=data)
    figures = listen("validation", queries, means).figures()
    raised = math.log(math.e + classes - 1) - 1.0
    assert figures["last loss"] == pytest.approx([math.log(classes), raised], rel=1e-6)


def test_figures_of_the_outputs_worked_by_hand() -> None:
    """Outputs are w + b and b - w, so their mean is b, their deviation |w| and their gap 2 w."""
    queries = make_queries([(0, (1.0, 2.0)), (0, (1.0, 3.0)), (0, (3.0, 4.0))])
    figures = listen("validation", queries, make_line_means()).figures()
    expected = {
        "last output": 4.0,
        "mean output": 3.0,
        "trend of output": 2.0,
        "first mean output": 2.0,
        "last deviation": 3.0,
        "last gap": 6.0,
        "last quantile 0.1": 1.6,
        "last quantile 0.5": 4.0,
        "last quantile 0.9": 6.4,
        "last positive answers": 1.0,
        "mean positive answers": 1.0,
    }
    assert {name: figures[name][0] for name in expected} == pytest.approx(expected)


def test_several_classes_are_described_by_the_margin_of_the_label() -> None:
    """Logits (3, 0, 0) and (0, 0, 6) for labels 0 and 2: margins 2 and 4 above the mean."""
    data = Examples(np.eye(2, dtype=np.float32), np.array([0, 2]))
    queries = make_queries([(0, [3.0, 0.0, 0.0, 0.0, 0.0, 6.0])])
    means = Means(kernel=make_classes_kernel(2, 3), data=data)
    figures = listen("validation", queries, means).figures()
    assert figures["last output"] == pytest.approx([3.0])
    assert figures["last deviation"] == pytest.approx([1.0])
    assert figures["last evenness"] == pytest.approx([math.log(2.0) / math.log(3.0)])
