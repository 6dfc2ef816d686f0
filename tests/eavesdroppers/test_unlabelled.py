"""The eavesdropper `unlabelled`."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from covertfl.eavesdroppers.eavesdropper import Means
from covertfl.eavesdroppers.unlabelled import EVENNESS_ODDS, UnlabelledEavesdropper
from covertfl.kernels.job import Examples, LocalOptimizer
from covertfl.kernels.mlp import LinearLayer, MlpKernel
from covertfl.kernels.weights import Layout
from tests.support.seen_queries import feed, make_line_means, make_queries


def test_even_answers_are_believed() -> None:
    """Of inputs 1, -1, 1, -1 a weight answers half with yes, a bias all or none."""
    means = make_line_means(copies=2)
    means = dataclasses.replace(means, fresh=means.data)
    sent = [(0, (0.5, 9.0)), (1, (-3.0, 0.0)), (2, (0.5, -9.0))]
    eavesdropper = feed(UnlabelledEavesdropper(means), make_queries(sent))
    assert eavesdropper.measure_evenness().tolist() == pytest.approx([0.0, 1.0, 0.0])
    e = math.exp(EVENNESS_ODDS)
    assert eavesdropper.belief() == pytest.approx([1 / (2 + e), e / (2 + e), 1 / (2 + e)])


def test_labels_are_not_used() -> None:
    means = make_line_means()
    assert means.data is not None
    beliefs = []
    for labels in (means.data.labels, 1.0 - means.data.labels):
        fresh = Examples(means.data.features, labels)
        eavesdropper = UnlabelledEavesdropper(dataclasses.replace(means, fresh=fresh))
        queries = make_queries([(0, (1.0, 0.5)), (1, (1.0, 2.0))])
        beliefs.append(feed(eavesdropper, queries).belief().tolist())
    assert beliefs[0] == beliefs[1] and beliefs[0][0] > 0.99


def test_several_classes() -> None:
    """Answers in shares 1/2, 1/4, 1/4 have 1.5 of log2(3) bits."""
    layout = Layout(("weight",), ((3, 3),))
    layers = [LinearLayer(3, 3, has_bias=False)]
    kernel = MlpKernel(layout, layers, "multiclass", LocalOptimizer(), threads=1)
    inputs = np.eye(3, dtype=np.float32)[[0, 0, 1, 2]]
    fresh = Examples(inputs, np.zeros(4, dtype=np.int64))
    queries = make_queries([(0, np.eye(3).ravel().tolist()), (1, [1.0] * 3 + [0.0] * 6)])
    eavesdropper = feed(UnlabelledEavesdropper(Means(kernel=kernel, fresh=fresh)), queries)
    assert eavesdropper.measure_evenness() == pytest.approx([1.5 / math.log2(3.0), 0.0])
