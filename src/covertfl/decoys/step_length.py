"""The length of the moves of a true trajectory, estimated from what a decoy can see.

An average over clients is the sum of a part on which they agree and of their noise.  The agreed
part shrinks as training proceeds; averaging k clients leaves 1/sqrt(k) of the noise.  On the
toxicity task the length of true moves falls from 1.1 to 0.2 within eight moves and then stays.
"""

from __future__ import annotations

import numpy as np

from covertfl.arrays import FloatArray, IntArray
from covertfl.decoys.update_rule import average_results
from covertfl.kernels.weights import Float32Array
from covertfl.tasks.task import TrainingTask

# Factor of the agreed part for each batch that a client holds: it falls to two thirds in a move of
# 38 batches.  Measured on the toxicity task with Adam and a learning rate of 1e-3.
AGREED_DECAY = 0.989
# Clients draw their numbers of batches uniformly from none to all.  Weighted by examples, their
# mean is as noisy as that of this share of clients with equal numbers.
EQUIVALENT_SHARE = 0.75


def estimate_length(agreed: float, noise: float, batches: int) -> float:
    """Return the length of a plausible true move.

    Parameters
    ----------
    agreed : length of the part that clients agree on, at the first move
    noise : length of the noise that remains after averaging
    batches : number of moves so far, times the number of batches that a client holds
    """
    return float(np.hypot(noise, agreed * AGREED_DECAY**batches))


def measure_noise(replies: Float32Array, examples: IntArray) -> float:
    """Return the length of the noise in the mean of (k, P) replies, from their scatter about it."""
    shares = examples / examples.sum()
    gaps = np.linalg.norm(replies - average_results(replies, examples), axis=1)
    return float(np.sqrt(np.sum((shares * gaps) ** 2)))


def limit_length(displacement: FloatArray, length: float) -> FloatArray:
    """Return the displacement, shortened to `length` if it is longer."""
    norm = float(np.linalg.norm(displacement))
    return displacement * (length / norm) if norm > length else displacement


def scale_length(displacement: FloatArray, length: float) -> FloatArray:
    """Return the displacement, scaled to `length` unless it is zero."""
    norm = float(np.linalg.norm(displacement))
    return displacement * (length / norm) if norm > 0.0 else displacement


def count_mean_batches(task: TrainingTask, batch_size: int) -> int:
    """Return the mean number of batches that a client holds, rounded to the nearest, at least 1."""
    return max(1, round(task.num_examples / len(task.clients) / batch_size))


def count_equivalent_clients(num_clients: int) -> float:
    """Return the number of clients with equal numbers of batches whose mean is equally noisy."""
    return max(1.0, EQUIVALENT_SHARE * num_clients)
