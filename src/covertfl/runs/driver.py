"""Run generators to their ends, answering what all of them request in batches.

A run, or a walk of an experiment, is a generator: it yields a request, is sent the answer, and
returns its result.  Who answers, and how many requests at a time, is up to a callback.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Request = TypeVar("Request")
Returned = TypeVar("Returned")


def drive(
    generators: Sequence[Generator[Request, Any, Returned]],
    answer: Callable[[Mapping[int, Request]], Mapping[int, Any]],
    *,
    on_end: Callable[[Mapping[int, Returned]], None] | None = None,
    threads: int = 1,
) -> list[Returned]:
    """Run generators to their ends and return their results in order.

    Parameters
    ----------
    generators : not yet started; they need not proceed in step
    answer : callback that receives all open requests by the generator's number, and returns answers
        to at least one of them
    on_end : callback, called with the results of generators that have just ended, by number
    threads : how many generators are resumed at a time; all are started one after the other
    """
    waiting: dict[int, Request] = {}
    results: dict[int, Returned] = {}

    def resume(number: int, sent: Any) -> None:
        try:
            waiting[number] = generators[number].send(sent)
        except StopIteration as stop:
            waiting.pop(number, None)
            results[number] = stop.value

    resumed: Iterable[int] = range(len(generators))
    for number in resumed:
        resume(number, None)
    while True:
        ended = {number: results[number] for number in resumed if number in results}
        if ended and on_end is not None:
            on_end(ended)
        if not waiting:
            return [results[number] for number in range(len(generators))]
        answers = answer(dict(waiting))
        if threads == 1:
            for number, sent in answers.items():
                resume(number, sent)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(resume, answers.keys(), answers.values()))
        resumed = answers.keys()
