"""Convolutional networks on a CPU: covertfl's engine against a PyTorch loop over clients."""

from __future__ import annotations

from dataclasses import replace

from federated_work import MODELS
from measurement import format_ratio, load_peer
from section import Check, Section
from sgemm_peak import measure_peak
from simulator_process import BATCH_SIZE, BATCHES, CLIENTS, TITLES
from training_against_peers import (
    AGREEMENT,
    OURS,
    PEERS,
    Row,
    compare_weights,
    describe_shares,
    measure_model,
)

from covertfl.kernels.cnn.blocks import describe_network

TIMED = ("digit-cnn", "small-cnn")
LEAST_RATIO = 4.0
ROUNDS = 20


def measure(*, quick: bool) -> Section:
    """Measure the comparison."""
    load_peer("torch", "torch")
    ours, loop = replace(OURS, rounds=ROUNDS), PEERS[0]
    rows = [row for model in TIMED for row in measure_model(model, ours, (loop,), quick=quick)]
    return Section(
        "Convolutional networks on a CPU: covertfl's engine against a PyTorch loop",
        ABOUT,
        (
            "model",
            "simulator",
            "time per round",
            "rounds per second",
            "memory",
            "ratio",
            "ratio of best rounds",
        ),
        tuple(row.cells for row in rows),
        _check(rows),
        ratios={
            TITLES[row.model]: row.ratio for row in rows if row.run and row.run is not row.ours
        },
        notes=describe_shares(rows, {model: count_flops(model) for model in TIMED}, measure_peak()),
    )


def count_flops(name: str) -> int:
    """Return the operations of a training pass over one image."""
    model = MODELS[name]
    assert model.image is not None
    network = describe_network(model.make_module(), model.image)
    assert network is not None
    return network.flops


def _check(rows: list[Row]) -> tuple[Check, ...]:
    checks = [
        Check(
            f"{TITLES[model]}: the same weights after one round to {AGREEMENT:g} "
            f"(largest difference {difference:.1e})",
            difference <= AGREEMENT,
        )
        for model, difference in compare_weights(rows).items()
    ]
    for row in rows:
        if row.run is not row.ours:
            # On a busy machine means depend on the load, the best rounds hardly do.
            text, ratio = f"{TITLES[row.model]}: at least {LEAST_RATIO:.0f} times", row.best_ratio
            text = f"{text} as fast as a PyTorch loop, in the best rounds ({format_ratio(ratio)})"
            checks.append(Check(text, ratio >= LEAST_RATIO))
    return tuple(checks)


ABOUT = (
    f"One round of FedAvg as in the comparison of simulators: {CLIENTS} clients, {BATCHES} batches "
    f"of {BATCH_SIZE} images of noise each, Adam.  digit-cnn is a network of the digits task, and "
    "small-cnn the default of the mnist task.",
    "The loop uses one or two PyTorch threads, whichever is faster, and fused Adam.  covertfl "
    "trains one client per core, in compiled code.  The share of the sgemm peak counts the "
    "products of the network that autograd does, in the best round; the peak is that of large "
    "matrix products by PyTorch on all cores, measured in the same run.  On the way back through a "
    "pooling covertfl multiplies the maxima only, a quarter of these products, so that the share "
    "can exceed 100%.",
)
