"""Run generators to their ends, answering what all of them request in batches.

A run is a generator: it yields a request, is sent the answer, and returns its result.  Who answers,
and how many requests at a time, is up to a callback.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar

Request = TypeVar("Request")
Returned = TypeVar("Returned")


def drive(
    generators: Sequence[Generator[Request, Any, Returned]],
    answer: Callable[[Mapping[int, Request]], Mapping[int, Any]],
) -> list[Returned]:
    """Run generators to their ends and return their results in order.

    Parameters
    ----------
    generators : not yet started; they need not proceed in step
    answer : callback that receives all open requests by the generator's number, and returns answers
        to at least one of them
    """
    waiting: dict[int, Request] = {}
    results: dict[int, Returned] = {}
    answers: Mapping[int, Any] = dict.fromkeys(range(len(generators)))
    while True:
        for number, sent in answers.items():
            try:
                waiting[number] = generators[number].send(sent)
            except StopIteration as stop:
                waiting.pop(number, None)
                results[number] = stop.value
        if not waiting:
            return [results[number] for number in range(len(generators))]
        answers = answer(dict(waiting))
