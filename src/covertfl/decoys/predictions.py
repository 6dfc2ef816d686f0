"""Predicted classes, sampled labels and mean loss from a model's raw outputs."""

from __future__ import annotations

import numpy as np

from covertfl.arrays import IntArray
from covertfl.kernels.job import Labels, Loss
from covertfl.kernels.weights import Float32Array


def find_classes(labels: Labels, loss: Loss) -> IntArray:
    """Return (n,) class numbers; with a binary loss, 1 for labels above 0.5."""
    return (labels > 0.5).astype(np.int64) if loss == "binary" else labels.astype(np.int64)


def predict_classes(outputs: Float32Array, loss: Loss) -> IntArray:
    """Return the (n,) classes predicted by (n, outputs) logits."""
    if loss == "binary":
        return (outputs[:, 0] > 0.0).astype(np.int64)
    return np.asarray(outputs.argmax(axis=1), dtype=np.int64)


def predict_other_classes(outputs: Float32Array, excluded: IntArray) -> IntArray:
    """Return the (n,) classes predicted by (n, classes) logits if one class is excluded."""
    left = outputs.copy()
    left[np.arange(len(excluded)), excluded] = -np.inf
    return np.asarray(left.argmax(axis=1), dtype=np.int64)


def sample_labels(outputs: Float32Array, loss: Loss, *, generator: np.random.Generator) -> Labels:
    """Return (n,) labels sampled from the distributions of (n, outputs) logits."""
    logits = outputs.astype(np.float64)
    if loss == "binary":
        prob = 0.5 * (1.0 + np.tanh(0.5 * logits[:, 0]))
        return (generator.random(len(prob)) < prob).astype(np.float32)
    # The argmax of logits plus Gumbel noise is a sample from their softmax.
    noisy = logits + generator.gumbel(size=logits.shape)
    return np.asarray(noisy.argmax(axis=1), dtype=np.int64)


def measure_loss(outputs: Float32Array, labels: Labels, loss: Loss) -> float:
    """Return the mean cross entropy of (n, outputs) logits."""
    logits = outputs.astype(np.float64)
    if loss == "binary":
        return float(np.mean(np.logaddexp(0.0, logits[:, 0]) - labels * logits[:, 0]))
    largest = logits.max(axis=1)
    spread = np.log(np.exp(logits - largest[:, None]).sum(axis=1))
    named = logits[np.arange(len(labels)), labels.astype(np.int64)]
    return float(np.mean(largest + spread - named))
