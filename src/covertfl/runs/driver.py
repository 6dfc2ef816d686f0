"""Run generators to their ends, answering what all of them request in batches.

A run, or a walk of an experiment, is a generator: it yields a request, is sent the answer, and
returns its result.  The driver collects the requests of all generators that wait, hands them to a
callback, and resumes those that it has answered.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

Request = TypeVar("Request")
Result = TypeVar("Result")


class _Generators(Generic[Request, Result]):
    """Generators, the requests of those that wait, and the results of those that have ended."""

    def __init__(self, generators: Sequence[Generator[Request, Any, Result]]) -> None:
        self._generators = generators
        self.waiting: dict[int, Request] = {}
        self.results: dict[int, Result] = {}

    def resume(self, number: int, answer: Any) -> None:
        """Send an answer; the generator runs to its next request or to its end."""
        try:
            self.waiting[number] = self._generators[number].send(answer)
        except StopIteration as stop:
            self.waiting.pop(number, None)
            self.results[number] = stop.value

    def resume_all(self, answers: Mapping[int, Any], threads: int) -> None:
        """Send answers, to several generators at a time if there are threads for it."""
        if threads == 1:
            for number, answer in answers.items():
                self.resume(number, answer)
            return
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(self.resume, answers.keys(), answers.values()))

    def list_ended(self, numbers: Iterable[int]) -> dict[int, Result]:
        """Return the results of those among some generators that have ended."""
        return {number: self.results[number] for number in numbers if number in self.results}


def drive(
    generators: Sequence[Generator[Request, Any, Result]],
    answer: Callable[[Mapping[int, Request]], Mapping[int, Any]],
    *,
    on_end: Callable[[Mapping[int, Result]], None] | None = None,
    threads: int = 1,
) -> list[Result]:
    """Run generators to their ends and return their results in order.

    Parameters
    ----------
    generators : at any stage; they need not proceed in step
    answer : callback that receives all open requests by the generator's number, and returns answers
        to at least one of them
    on_end : callback, called with the results of generators that have just ended, by number
    threads : how many generators are resumed at a time; all are started one after the other
    """
    running = _Generators(generators)
    running.resume_all(dict.fromkeys(range(len(generators))), threads=1)
    resumed: Iterable[int] = range(len(generators))
    while True:
        if on_end is not None and (ended := running.list_ended(resumed)):
            on_end(ended)
        if not running.waiting:
            return [running.results[number] for number in range(len(generators))]
        answers = answer(dict(running.waiting))
        running.resume_all(answers, threads)
        resumed = answers.keys()
