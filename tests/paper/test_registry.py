"""The experiments as they are registered, with settings that cannot be changed."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

pytest.importorskip("torch")

from paper import table_main, table_mnist
from paper.experiment import Request
from paper.registry import EXPERIMENTS


def test_settings_cannot_be_changed() -> None:
    for settings in (Request(), table_main.make_setup("sound"), EXPERIMENTS["theory"]):
        with pytest.raises(FrozenInstanceError):
            settings.name = "other"  # type: ignore[union-attr, misc]


def test_printed_tables() -> None:
    """27 rows each; nine cells of the second are no accuracies; the learner's columns exchanged."""
    for clients in (20, 50):
        rows = table_mnist.list_rows(clients)
        assert len({row.public for row in rows}) == 27
    assert sum(row.eavesdropper["optimal"] is None for row in table_mnist.list_rows(50)) == 9
    first = table_mnist.list_rows(20)[0]
    assert first.learner == {"greedy": 0.832, "optimal": 0.925}
    assert (
        first.public.class_share == 0.99 and table_mnist.list_rows(20)[2].public.class_share is None
    )
