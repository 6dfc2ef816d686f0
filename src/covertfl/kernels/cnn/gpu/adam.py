"""Adam and AdamW of stacked networks on a GPU, in Triton, with the formulas of torch.optim."""

# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl

from covertfl.kernels.job import LocalOptimizer

_BLOCK_SIZE = 1024


@triton.jit
def _update_kernel(
    weights,
    gradient,
    first,
    second,
    scales,
    size,
    lr,
    beta1,
    beta2,
    eps,
    decay,
    DECOUPLED: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Update the weights and the optimiser state of a job."""
    job = tl.program_id(1).to(tl.int64)
    e = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    mask = e < size
    places = job * size + e
    is_first = tl.load(scales + 3 * job)
    rate = tl.load(scales + 3 * job + 1)
    root = tl.load(scales + 3 * job + 2)
    w = tl.load(weights + places, mask=mask, other=0.0)
    g = tl.load(gradient + places, mask=mask, other=0.0)
    if DECOUPLED:
        w *= 1.0 - lr * decay
    else:
        g += decay * w
    # State of an earlier job, or uninitialised memory, does not enter the sums.
    m = tl.where(is_first > 0.0, 0.0, tl.load(first + places, mask=mask, other=0.0))
    v = tl.where(is_first > 0.0, 0.0, tl.load(second + places, mask=mask, other=0.0))
    m += (g - m) * (1.0 - beta1)
    v = v * beta2 + g * g * (1.0 - beta2)
    w -= rate * m / (tl.sqrt(v) / root + eps)
    tl.store(weights + places, w, mask=mask)
    tl.store(first + places, m, mask=mask)
    tl.store(second + places, v, mask=mask)


def step_adam(
    options: LocalOptimizer,
    weights: torch.Tensor,
    gradient: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    scales: torch.Tensor,
) -> None:
    """Take a step of Adam or AdamW in place.

    Parameters
    ----------
    scales : (J, 3) 1 in a job's first step, the step's rate, and the root it divides by
    """
    size = weights.shape[1]
    _update_kernel[(triton.cdiv(size, _BLOCK_SIZE), len(gradient))](
        weights,
        gradient,
        first,
        second,
        scales,
        size,
        options.lr,
        *options.betas,
        options.eps,
        options.weight_decay,
        DECOUPLED=options.name == "adamw",
        SIZE=_BLOCK_SIZE,
    )
