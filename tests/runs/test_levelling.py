"""Level replies: moves of all rounds average as many replies, with about as much work."""

from __future__ import annotations

import numpy as np
import pytest
from covertfl.runs.levelling import Level, choose_level, find_level
from hypothesis import given, strategies as st

SUCCESS = np.array([0.1, 0.43, 0.95])


def draw(clients: int, generator: np.random.Generator, *, batches: int = 36) -> np.ndarray:
    """Examples of clients that each train on a uniform number of batches; absent ones left out."""
    drawn = generator.integers(0, batches + 1, clients)
    return np.asarray(drawn[drawn > 0] * 40)


def test_the_smallest_round_decides() -> None:
    level = find_level([8, 10, 14], SUCCESS, 1440.0, by_data=False, is_drawn=True)
    assert level == Level(5, None)
    rare = np.array([0.0, 0.43, 0.95])
    assert find_level([5, 10, 20], rare, 1.0, by_data=False, is_drawn=True) == Level(6, None)


def test_equal_rounds_need_no_level() -> None:
    assert find_level([9, 9, 9], SUCCESS, 1.0, by_data=False, is_drawn=True) is None
    assert find_level([9, 9, 9], SUCCESS, 1.0, by_data=True, is_drawn=True) is not None


@given(seed=st.integers(0, 500), clients=st.integers(0, 20), replies=st.integers(1, 8))
def test_as_many_replies_as_asked_for_or_none(seed: int, clients: int, replies: int) -> None:
    generator = np.random.default_rng(seed)
    examples = draw(clients, generator)
    for work in (None, (800.0, 1000.0)):
        used = choose_level(examples, Level(replies, work), generator=generator)
        if len(examples) < replies:
            assert used is None
        else:
            assert used is not None and len(used) == replies == len(set(used.tolist()))
            assert used.tolist() == sorted(used.tolist())


def test_without_data_in_the_acceptance_the_choice_is_uniform() -> None:
    """Then what is averaged has the same distribution whatever the number of clients."""
    generator = np.random.default_rng(3)
    means = {
        clients: [
            float(examples[choose_level(examples, Level(5, None), generator=generator)].mean())
            for examples in (draw(clients, generator) for _ in range(4000))
            if len(examples) >= 5
        ]
        for clients in (8, 14)
    }
    few, many = (np.array(values) for values in means.values())
    assert few.mean() == pytest.approx(many.mean(), rel=0.02)
    assert few.std() == pytest.approx(many.std(), rel=0.05)


def test_accepted_rounds_of_all_states_have_the_same_work() -> None:
    """Among rounds that are accepted by their data, few clients have done more work each."""
    generator = np.random.default_rng(4)
    level = find_level([8, 10, 14], SUCCESS, 1440.0, by_data=True, is_drawn=True)
    assert level is not None
    whole: dict[int, list[float]] = {}
    levelled: dict[int, list[float]] = {}
    for clients in (8, 14):
        while len(levelled.setdefault(clients, [])) < 300:
            examples = draw(clients, generator)
            if examples.sum() < 0.25 * 20 * 1440 or len(examples) < level.replies:
                continue
            used = examples[choose_level(examples, level, generator=generator)]
            whole.setdefault(clients, []).append(float(np.sum(examples**2) / examples.sum()))
            levelled[clients].append(float(np.sum(used**2) / used.sum()))
    before, after = (np.mean(found[8]) / np.mean(found[14]) - 1.0 for found in (whole, levelled))
    assert before > 0.1 and abs(after) < 0.02
