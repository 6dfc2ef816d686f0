"""Answers to the requests of walks, as few and as large batches as possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from covertfl.kernels.chain import RatedChain
from covertfl.kernels.job import LocalKernel
from covertfl.kernels.weights import Vector
from covertfl.runs.clients import make_replies
from covertfl.runs.driver import drive
from covertfl.runs.learner import average_replies, sift_replies
from covertfl.runs.responder import ClientWork
from paper.trials.scorer import BatchKernel, Jobs
from paper.trials.walks import Request, ToAverage, ToChain, ToRate, Trajectory, Walk

_Kind = TypeVar("_Kind", ToAverage, ToChain, ToRate)


def run_walks(
    walks: Sequence[tuple[LocalKernel, Walk]],
    *,
    on_batch: Callable[[int], None] | None = None,
    on_end: Callable[[Mapping[int, Trajectory]], None] | None = None,
    threads: int = 1,
) -> list[Trajectory]:
    """Carry all walks to their ends and return their trajectories in order.

    Parameters
    ----------
    walks : each with the kernel that carries out its jobs
    on_batch : called with the number of examples trained on after every batch
    on_end : called with the trajectories of walks that have just ended, by number
    threads : walks that are resumed at a time; a GPU must not wait for one core to average replies
    """
    kernels, examples = [kernel for kernel, _ in walks], [0] * len(walks)

    def answer(waiting: Mapping[int, Request]) -> Mapping[int, Any]:
        # Jobs wait until all weights are rated, so that walks stay in step and batches large.
        if rates := _choose(waiting, ToRate):
            return _rate(rates)
        chains = _choose(waiting, ToChain)
        asked: Mapping[int, Request] = chains or waiting
        trained = {number: count_rows(_list_jobs(request)) for number, request in asked.items()}
        for number, count in trained.items():
            examples[number] += count
        if chains:
            return _rate_chains(kernels, chains, on_batch)
        answers = _carry_out(kernels, waiting)
        if on_batch is not None:
            on_batch(sum(trained.values()))
        return answers

    def count(trajectories: Mapping[int, Trajectory]) -> None:
        for number, trajectory in trajectories.items():
            trajectory.examples = examples[number]
        if on_end is not None:
            on_end(trajectories)

    return drive([walk for _, walk in walks], answer, on_end=count, threads=threads)


def count_rows(jobs: Jobs) -> int:
    """Return the number of examples in some jobs."""
    return sum(len(job.rows) for job in jobs)


def _choose(waiting: Mapping[int, Request], kind: type[_Kind]) -> dict[int, _Kind]:
    return {number: request for number, request in waiting.items() if isinstance(request, kind)}


def _list_jobs(request: Request) -> Jobs:
    assert not isinstance(request, ClientWork), "walks request the clients' jobs as ToAverage"
    return () if isinstance(request, ToRate) else request.jobs


def _rate(asked: Mapping[int, ToRate]) -> dict[int, float]:
    """Return the accuracies that walks request, those on the same examples rated together."""
    groups: dict[tuple[int, bool], list[int]] = {}
    for number, request in asked.items():
        groups.setdefault((id(request.scorer), request.fully), []).append(number)
    found: dict[int, float] = {}
    for members in groups.values():
        first = asked[members[0]]
        weights = [asked[number].weights for number in members]
        rated = first.scorer.rate(weights, fully=first.fully)
        found.update(zip(members, rated, strict=True))
    return found


def _carry_out(kernels: Sequence[LocalKernel], asked: Mapping[int, Request]) -> dict[int, Any]:
    """Return the answers to requests for jobs, each kernel's and kind's computed together."""
    done: dict[int, Any] = {}
    for kernel in {id(kernels[number]): kernels[number] for number in asked}.values():
        members = {number: one for number, one in asked.items() if kernels[number] is kernel}
        done |= _average_on_kernel(kernel, _choose(members, ToAverage))
        rest = {number: one for number, one in members.items() if number not in done}
        if not rest:
            continue
        results = iter(kernel.run([job for one in rest.values() for job in _list_jobs(one)]))
        for number, one in rest.items():
            found = [next(results) for _ in _list_jobs(one)]
            done[number] = _average(one, found) if isinstance(one, ToAverage) else found
    return done


def _rate_chains(
    kernels: Sequence[LocalKernel],
    asked: Mapping[int, ToChain],
    on_batch: Callable[[int], None] | None,
) -> dict[int, RatedChain]:
    """Rate chains, those with the same kernel and examples together."""
    groups: dict[tuple[int, int], list[int]] = {}
    for number, one in asked.items():
        groups.setdefault((id(kernels[number]), id(one.scorer)), []).append(number)
    done: dict[int, RatedChain] = {}
    for members in groups.values():
        kernel, scorer = kernels[members[0]], asked[members[0]].scorer
        assert isinstance(kernel, BatchKernel)
        rated = kernel.rate_chains(
            [asked[number].moves for number in members],
            [asked[number].stops for number in members],
            coarse=scorer.coarse,
            full=scorer.full,
            on_examples=on_batch,
        )
        done |= dict(zip(members, rated, strict=True))
    return done


def _average_on_kernel(kernel: LocalKernel, asked: Mapping[int, ToAverage]) -> dict[int, Vector]:
    """Return the means that the kernel can compute by itself."""
    if not asked or not isinstance(kernel, BatchKernel):
        return {}
    means = kernel.average_jobs([one.jobs for one in asked.values()])
    # One reply that is not finite spoils a mean: then replies are sifted one by one.
    pairs = zip(asked, means, strict=True)
    return {number: mean for number, mean in pairs if np.isfinite(mean).all()}


def _average(asked: ToAverage, results: Sequence[Vector]) -> Vector:
    """Return the mean of the results that a server would accept."""
    replies = make_replies(asked.attendance, asked.jobs, results)
    return average_replies(sift_replies(replies, len(results[0]), asked.most_examples))
