"""Replies are sifted, averaged and applied; nothing is changed in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from covertfl.kernels.exact_sum import CHUNK
from covertfl.kernels.job import LocalOptimizer, Vector
from covertfl.schemes.replies import (
    Algorithm,
    ExactAverage,
    Reply,
    ServerMemory,
    SiftedReplies,
    apply_gradient,
    average_replies,
    find_fault,
    sift_replies,
)

if TYPE_CHECKING:
    import torch

GOOD = np.array([1.0, -2.0, 0.5], dtype=np.float32)
ALGORITHMS: tuple[Algorithm, ...] = ("fedavg", "fedsgd")


def floats(*values: float) -> Vector:
    return np.array(values, dtype=np.float32)


def sift(replies: Sequence[Reply], size: int = 3, most: int = 100) -> SiftedReplies:
    """Sift replies to a model of some numbers, with as many examples as a client may claim."""
    return sift_replies(replies, lambda reply: find_fault(reply, size), most)


# --- replies ---

BAD_VALUES: list[tuple[Any, str]] = [
    (floats(1, np.nan, 0), "not finite"),
    (floats(1, np.inf, 0), "not finite"),
    (floats(1, -np.inf, 0), "not finite"),
    (floats(1, 1e30, 0), "not finite"),  # its square is none that a 32-bit float can hold
    (floats(1, 2), "wrong shape"),
    (floats(1, 2, 3, 4), "wrong shape"),
    (floats(1, 2, 3)[np.newaxis], "wrong shape"),
    (np.array(1.0, dtype=np.float32), "wrong shape"),
    (floats(), "wrong shape"),
    (GOOD.astype(np.float64), "wrong dtype"),
    (GOOD.astype(np.float16), "wrong dtype"),
    (GOOD.astype(np.int32), "wrong dtype"),
    (GOOD.astype(np.complex64), "wrong dtype"),
    (GOOD.astype(">f4"), "wrong dtype"),
    (GOOD.astype(object), "wrong dtype"),
    (GOOD.tolist(), "wrong type"),
    (b"\x00" * 12, "wrong type"),
    ("weights", "wrong type"),
    (None, "wrong type"),
    (1.0, "wrong type"),
    ({"weights": GOOD}, "wrong type"),
]
BAD_COUNTS: list[Any] = [
    0,
    -1,
    101,
    10**30,
    -(10**30),
    True,
    False,
    np.True_,
    5.0,
    np.float32(5.0),
    float("nan"),
    float("inf"),
    "5",
    None,
    [5],
    np.array([5]),
    np.int64(-3),
]


@pytest.mark.parametrize(("values", "reason"), BAD_VALUES)
def test_bad_values_are_named(values: Any, reason: str) -> None:
    assert find_fault(Reply(0, values, 10), 3) == reason
    assert sift([Reply(0, values, 10)]).rejected == ((0, reason),)


@pytest.mark.parametrize("examples", BAD_COUNTS)
def test_bad_example_counts_are_named(examples: Any) -> None:
    assert sift([Reply(0, GOOD, examples)]).rejected == ((0, "bad example count"),)


@pytest.mark.parametrize("examples", [1, 100, np.int32(7), np.uint8(9), np.int64(100)])
def test_whole_numbers_in_range_are_taken(examples: Any) -> None:
    sifted = sift([Reply(0, GOOD, examples)])
    assert (sifted.clients, sifted.total, sifted.rejected) == ((0,), int(examples), ())


def test_a_fortran_or_strided_or_frozen_reply_is_as_good_as_any() -> None:
    wide = np.zeros(6, dtype=np.float32)
    wide[::2] = GOOD
    frozen = GOOD.copy()
    frozen.setflags(write=False)
    for values in (wide[::2], frozen):
        sifted = sift([Reply(0, values, 4)])
        np.testing.assert_array_equal(average_replies(sifted), GOOD)


def test_every_refusal_is_counted_beside_its_client() -> None:
    replies = [Reply(number, values, 10) for number, (values, _) in enumerate(BAD_VALUES)]
    replies += [Reply(50 + number, GOOD, examples) for number, examples in enumerate(BAD_COUNTS)]
    replies += [Reply(99, GOOD, 5)]
    sifted = sift(replies[::-1])
    assert sifted.clients == (99,)
    assert sifted.total == 5
    assert sifted.rejected == tuple(
        [(number, reason) for number, (_, reason) in enumerate(BAD_VALUES)]
        + [(50 + number, "bad example count") for number in range(len(BAD_COUNTS))]
    )


def test_nothing_valid_leaves_nothing() -> None:
    sifted = sift([Reply(1, floats(np.nan, 0, 0), 3)])
    assert sifted.clients == ()
    assert sifted.values == ()
    assert sifted.total == 0
    assert sift([]).rejected == ()


# --- FedAvg ---


def test_weighted_average_worked_by_hand() -> None:
    replies = [Reply(2, floats(1, 0, -3), 30), Reply(0, floats(5, 4, 1), 10)]
    average = average_replies(sift(replies))
    np.testing.assert_array_equal(average, floats(2, 1, -2))  # (30 (1 0 -3) + 10 (5 4 1)) / 40
    assert average.dtype == np.float32


@given(counts=st.lists(st.integers(1, 1000), min_size=1, max_size=8), seed=st.integers(0, 1000))
def test_the_average_does_not_depend_on_the_order_of_arrival(counts: list[int], seed: int) -> None:
    generator = np.random.default_rng(seed)
    replies = [
        Reply(client, generator.normal(size=17).astype(np.float32), count)
        for client, count in enumerate(counts)
    ]
    average = average_replies(sift(replies, 17, 1000))
    shuffled = [replies[at] for at in generator.permutation(len(replies))]
    assert average.tobytes() == average_replies(sift(shuffled, 17, 1000)).tobytes()
    stacked = np.stack([reply.values for reply in replies]).astype(np.float64)
    np.testing.assert_allclose(average, np.average(stacked, axis=0, weights=counts), atol=1e-6)


def test_the_average_of_a_large_model_is_that_of_each_coordinate() -> None:
    generator = np.random.default_rng(0)
    values = generator.normal(size=(5, 32 * CHUNK + 3)).astype(np.float32)
    counts = generator.integers(1, 1000, size=5)
    replies = SiftedReplies(tuple(range(5)), tuple(values), counts, ())
    total = np.einsum("i,ij->j", counts.astype(np.float64), values)
    expected = (total / counts.sum()).astype(np.float32)
    assert average_replies(replies).tobytes() == expected.tobytes()
    chosen = replies.choose([1, 4])
    assert (chosen.clients, chosen.total) == ((1, 4), counts[1] + counts[4])
    np.testing.assert_array_equal(chosen.stack(), values[[1, 4]])


def test_the_largest_floats_do_not_overflow_on_the_way() -> None:
    largest = np.full(3, np.finfo(np.float32).max)
    replies = SiftedReplies((0, 1), (largest, largest), np.array([100, 100]), ())
    np.testing.assert_array_equal(average_replies(replies), largest)


def move(
    aggregator: ExactAverage, weights: Vector, memory: ServerMemory | None, replies: SiftedReplies
) -> tuple[Vector, ServerMemory | None]:
    """Return weights and memory after a move on replies."""
    average = aggregator.attempt(0, weights, replies, keeps=True)
    assert average is not None
    moved = aggregator.finish(weights, memory, average)
    assert moved is not None
    return moved


def test_one_huge_gradient_does_not_stop_the_server() -> None:
    """Its square would stay in Adam's memory as an infinity, and no step would move anything."""
    aggregator = ExactAverage("fedsgd", LocalOptimizer("adam", lr=0.1))
    start = floats(1, 2, 3)
    gradients = [Reply(0, floats(1e30, 1, 1), 10), Reply(1, floats(1, 1, 1), 10)]
    sifted = sift(gradients, 3, 10)
    assert sifted.rejected == ((0, "not finite"),)
    moved, _ = move(aggregator, start, aggregator.start(start), sifted)
    np.testing.assert_allclose(moved, [0.9, 1.9, 2.9], atol=1e-6)


def test_nothing_is_moved_without_replies_or_to_what_is_not_finite() -> None:
    start, largest = floats(1, 2, 3), np.full(3, np.finfo(np.float32).max)
    for algorithm in ALGORITHMS:
        aggregator = ExactAverage(algorithm, LocalOptimizer("sgd", lr=2.0))
        assert aggregator.attempt(0, start, sift([]), keeps=True) is None
        for proposal, found in ((largest, largest), (floats(1, np.inf, 0), None)):
            assert aggregator.attempt(1, start, sift([]), keeps=True, proposal=proposal) is found
    with np.errstate(over="ignore"):
        assert aggregator.finish(start, aggregator.start(start), largest) is None


# --- FedSGD ---

OPTIMIZERS = [
    LocalOptimizer("sgd", lr=0.1),
    LocalOptimizer("sgd", lr=0.1, momentum=0.9),
    LocalOptimizer("sgd", lr=0.05, momentum=0.5, weight_decay=0.1),
    LocalOptimizer("adam", lr=0.01),
    LocalOptimizer("adam", lr=0.01, weight_decay=0.1),
    LocalOptimizer("adam", lr=0.01, betas=(0.5, 0.7), eps=1e-3),
    LocalOptimizer("adamw", lr=0.01),
    LocalOptimizer("adamw", lr=0.01, weight_decay=0.2),
]


def make_torch_optimizer(
    parameter: torch.nn.Parameter, optimizer: LocalOptimizer
) -> torch.optim.Optimizer:
    import torch

    settings: dict[str, Any] = {"lr": optimizer.lr, "weight_decay": optimizer.weight_decay}
    if optimizer.name == "sgd":
        return torch.optim.SGD([parameter], momentum=optimizer.momentum, **settings)
    kind = torch.optim.Adam if optimizer.name == "adam" else torch.optim.AdamW
    return kind([parameter], betas=optimizer.betas, eps=optimizer.eps, **settings)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_one_client_and_gradients_is_the_optimizer_of_that_name(optimizer: LocalOptimizer) -> None:
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(4)
    start = generator.normal(size=50).astype(np.float32)
    parameter = torch.nn.Parameter(torch.tensor(start, dtype=torch.float64))
    reference = make_torch_optimizer(parameter, optimizer)
    aggregator, weights = ExactAverage("fedsgd", optimizer), start
    memory = aggregator.start(start)
    for _ in range(12):
        gradient = generator.normal(size=50).astype(np.float32)
        parameter.grad = torch.tensor(gradient, dtype=torch.float64)
        reference.step()
        weights, memory = move(aggregator, weights, memory, sift([Reply(0, gradient, 3)], 50, 10))
        np.testing.assert_allclose(weights, parameter.detach().numpy(), rtol=0, atol=1e-5)
    assert memory is not None and memory.steps == 12


def test_plain_sgd_by_hand() -> None:
    aggregator = ExactAverage("fedsgd", LocalOptimizer("sgd", lr=0.5))
    start = floats(1, 2)
    replies = sift([Reply(0, floats(1, 0), 1), Reply(1, floats(0, 4), 3)], 2, 10)
    moved, _ = move(aggregator, start, aggregator.start(start), replies)
    np.testing.assert_allclose(moved, [1 - 0.5 * 0.25, 2 - 0.5 * 3.0])


# --- nothing in place ---


def freeze(weights: Vector, memory: ServerMemory | None) -> list[bytes]:
    arrays = (weights,) if memory is None else (weights, memory.mean, memory.square)
    return [array.tobytes() for array in arrays]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS[:5:2], ids=repr)
def test_steps_leave_states_and_replies_alone(
    algorithm: Algorithm, optimizer: LocalOptimizer
) -> None:
    draws = np.random.default_rng(0).normal(size=(2, 9)).astype(np.float32)
    aggregator = ExactAverage(algorithm, optimizer)
    weights, reply = draws[0].copy(), Reply(0, draws[1].copy(), 5)
    memory = aggregator.start(weights)
    for _ in range(3):
        before = freeze(weights, memory)
        after = move(aggregator, weights, memory, sift([reply], 9, 10))
        assert freeze(weights, memory) == before
        assert reply.values.tobytes() == draws[1].tobytes()
        weights, memory = after
    assert (memory is None) == (algorithm == "fedavg")
    assert memory is None or memory.steps == 3


def test_the_first_momentum_is_the_gradient_itself() -> None:
    optimizer, start = LocalOptimizer("sgd", lr=1.0, momentum=0.9), floats(0)
    memory = ExactAverage("fedsgd", optimizer).start(start)
    assert memory is not None
    first, memory = apply_gradient(start, floats(2), memory, optimizer)
    second, _ = apply_gradient(first, floats(1), memory, optimizer)
    np.testing.assert_allclose([first[0], second[0]], [-2.0, -2.0 - (0.9 * 2.0 + 1.0)])
