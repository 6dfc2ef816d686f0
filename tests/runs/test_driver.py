"""Generators are run to their ends, in whatever batches their requests are answered."""

from __future__ import annotations

from collections.abc import Generator, Mapping

import pytest

from covertfl.runs.engine import drive


def count_up(start: int, steps: int) -> Generator[int, int, int]:
    """Request the successor of a number again and again; return the last."""
    number = start
    for _ in range(steps):
        number = yield number
    return number


def answer_all(waiting: Mapping[int, int]) -> dict[int, int]:
    return {place: number + 1 for place, number in waiting.items()}


def answer_smallest(waiting: Mapping[int, int]) -> dict[int, int]:
    place = min(waiting, key=lambda place: (waiting[place], place))
    return {place: waiting[place] + 1}


@pytest.mark.parametrize("answer", [answer_all, answer_smallest])
def test_results_are_in_order_however_requests_are_answered(answer: object) -> None:
    assert callable(answer)
    generators = [count_up(10 * place, steps) for place, steps in enumerate((3, 0, 5))]
    assert drive(generators, answer) == [3, 10, 25]


def test_nothing_to_drive() -> None:
    assert drive([], answer_all) == []


def test_an_error_of_a_generator_comes_through() -> None:
    def fail() -> Generator[int, int, int]:
        yield 1
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        drive([fail()], answer_all)
