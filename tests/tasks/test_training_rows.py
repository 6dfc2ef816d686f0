"""Which rows clients train on: classes equally often where they are not, else as they come."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from covertfl.kernels.job import Examples
from covertfl.tasks.data import balance_rows, draw_rows, is_uneven
from covertfl.tasks.registry import make_task
from covertfl.tasks.task import DataSettings, TrainingTask


@pytest.mark.parametrize("number", [7, 40, 97, 100])
def test_classes_are_equally_often_and_rows_too(number: int) -> None:
    classes = np.repeat([0, 3, 8], [70, 25, 5])
    rows = np.arange(1000, 1100)
    drawn = balance_rows(rows, classes, number, generator=np.random.default_rng(number))
    assert len(drawn) == number and set(drawn) <= set(rows)
    by_class = Counter(classes[drawn - 1000].tolist())
    assert max(by_class.values()) - min(by_class.values()) <= 1 and len(by_class) == 3
    for label in (0, 3, 8):
        own = Counter(drawn[classes[drawn - 1000] == label].tolist())
        most = -(-by_class[label] // np.sum(classes == label))
        assert max(own.values()) == max(1, most)


def test_no_class_is_first_or_gets_more_on_the_whole() -> None:
    classes, rows = np.repeat([0, 1, 2], [60, 30, 10]), np.arange(100)
    generator = np.random.default_rng(0)
    drawn = [classes[balance_rows(rows, classes, 4, generator=generator)] for _ in range(1000)]
    # Each place has each class with probability 1/3; five standard errors.
    for label in range(3):
        shares = np.mean(np.array(drawn) == label, axis=0)
        assert np.abs(shares - 1.0 / 3.0).max() < 5.0 * np.sqrt(2.0 / 9.0 / 1000)


@pytest.mark.parametrize(("counts", "is_balanced"), [((59, 41), True), ((60, 40), False)])
def test_only_beyond_a_ratio_of_three_to_two(counts: tuple[int, int], is_balanced: bool) -> None:
    generator = np.random.default_rng(0)
    rows = generator.permutation(100)
    drawn = balance_rows(rows, np.repeat([0, 1], counts), 50, generator=generator)
    assert (drawn.tolist() == rows[:50].tolist()) == is_balanced


def test_one_class_alone_is_left_as_it_is() -> None:
    rows, ones = np.arange(9), np.ones(9, dtype=np.int64)
    drawn = balance_rows(rows, ones, 6, generator=np.random.default_rng(0))
    assert drawn.tolist() == list(range(6))


@pytest.mark.parametrize("split", ["iid", {"dirichlet": 0.1}])
@pytest.mark.parametrize("name", ["toxicity", "digits"])
def test_built_in_tasks_stay_as_they_are(name: str, split: Any) -> None:
    """Their classes are known to be balanced, whatever a single client holds of them."""
    task = make_task(DataSettings(task=name, split=split))
    assert isinstance(task, TrainingTask)
    drawn = draw_rows(task, 3, 40, generator=np.random.default_rng(7)).tolist()
    assert drawn == np.random.default_rng(7).permutation(task.clients[3])[:40].tolist()
    unknown = replace(task, is_balanced=False)
    off = draw_rows(unknown, 3, 40, balance=False, generator=np.random.default_rng(7))
    assert off.tolist() == drawn


@pytest.mark.parametrize("counts", [(59, 41), (60, 40), (100, 0)])
def test_a_client_is_judged_by_its_own_rows(counts: tuple[int, int]) -> None:
    task = make_task(DataSettings(task="digits", clients=2))
    assert isinstance(task, TrainingTask)
    labels = np.repeat([0, 1, 0, 1], (*counts, 50, 50))
    features = np.zeros((200, *task.train.features.shape[1:]), dtype=np.float32)
    clients = (np.arange(100), np.arange(100, 200))
    own = replace(task, train=Examples(features, labels), clients=clients, is_balanced=False)
    for _ in range(2):  # the second time from memory
        assert is_uneven(own, 0) == (counts == (60, 40)) and not is_uneven(own, 1)
        drawn = draw_rows(own, 0, 40, generator=np.random.default_rng(7))
        order = np.random.default_rng(7).permutation(clients[0])
        assert (drawn.tolist() == order[:40].tolist()) == (counts != (60, 40))
    assert is_uneven(replace(own, clients=clients[::-1]), 1) == (counts == (60, 40))
