"""The eavesdropper `two-runs`."""

from __future__ import annotations

import numpy as np
import pytest

from covertfl.eavesdroppers.two_runs import TwoRunsEavesdropper
from tests.support.seen_queries import feed
from tests.support.small_federation import (
    FLIPPED,
    INPUTS,
    LAYOUT,
    PIVOT,
    draw_weights,
    make_image,
    make_means,
    send_in_turn,
    train_decoy,
    train_truth,
    with_other_run,
)

OTHER_FLIPS = np.array([-1, 1, -1, -1, 1, 1])


def test_new_flips_in_each_run_give_the_truth_away() -> None:
    others = train_truth(seed=50)
    means = with_other_run(make_means(), send_in_turn(make_image(others, OTHER_FLIPS), others))
    for seed in range(4):
        truth = train_truth(seed=seed)
        queries = send_in_turn(truth, make_image(truth))
        assert feed(TwoRunsEavesdropper(means), queries).belief()[0] > 0.5


def test_the_same_flips_in_each_run_give_nothing_away() -> None:
    others = train_truth(seed=50)
    means = with_other_run(make_means(), send_in_turn(make_image(others, FLIPPED), others))
    for seed in range(4):
        truth = train_truth(seed=seed)
        queries = send_in_turn(truth, make_image(truth, FLIPPED))
        assert feed(TwoRunsEavesdropper(means), queries).belief().tolist() == [0.5, 0.5]


def test_effects_of_a_linear_part() -> None:
    """One unit that is always active: the effect of an input is the product of its weights."""
    parts = {name: np.zeros_like(part) for name, part in LAYOUT.split(draw_weights(0)).items()}
    parts[PIVOT][0] = np.arange(1.0, INPUTS + 1.0)
    parts["0.bias"][0] = 100.0
    parts["1.weight"][0, 0] = -2.0
    eavesdropper = TwoRunsEavesdropper(with_other_run(make_means(), []))
    effects = eavesdropper.measure_effects(LAYOUT.join(parts))
    assert effects == pytest.approx(-2.0 * np.arange(1.0, INPUTS + 1.0), rel=1e-4)


def test_without_another_trajectory_all_tie() -> None:
    means = with_other_run(make_means(), [])
    queries = send_in_turn(train_truth(), train_decoy())
    assert feed(TwoRunsEavesdropper(means), queries).belief().tolist() == [0.5, 0.5]
