"""What a trained eavesdropper measures in a run: numbers, whatever the queries hold."""

from __future__ import annotations

import numpy as np

from covertfl.eavesdroppers.trained import collect_figures, list_sources
from tests.support.seen_queries import Means, make_queries


def test_what_is_not_a_number_counts_as_zero() -> None:
    queries = make_queries([(0, (0.0, 0.0)), (0, (np.nan, 1.0))])
    names, figures = collect_figures(list_sources("ABC"), Means(), queries)
    assert np.isfinite(figures).all()
    assert figures[0, names.index("step-shape: length")] == 0.0
