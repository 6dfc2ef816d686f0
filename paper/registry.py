"""The experiments by name, in the order of the page."""

from __future__ import annotations

from collections.abc import Mapping

from paper import (
    figure_cost,
    figure_spga,
    figure_tracking,
    mnist_learners,
    partial_oracle,
    random_policy,
    table_fedsgd,
    table_main,
    table_mnist,
    table_states,
    theory,
)
from paper.experiment import Experiment

EXPERIMENTS: Mapping[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        table_main.TABLE,
        table_main.FIGURE,
        figure_spga.FIGURE,
        figure_tracking.FIGURE,
        figure_cost.FIGURE,
        theory.THEORY,
        partial_oracle.PRICE,
        table_mnist.TABLE_20,
        table_mnist.TABLE_50,
        table_fedsgd.TABLE,
        table_states.TABLE,
        random_policy.COMPARISON,
        mnist_learners.LEARNERS,
    )
}
