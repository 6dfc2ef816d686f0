"""How long the moves of a true trajectory are, guessed from what a decoy can see.

An update that averages clients is the sum of what they agree on and of their noise.  The agreed
part shrinks as training gets on; averaging k clients leaves 1/sqrt(k) of the noise.  On the
toxicity task true moves fall from 1.1 to 0.2 within eight moves and then stay there.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from covertfl.decoys.update_rule import FloatVector, average
from covertfl.tasks.task import TrainingTask

# Of the agreed part from batch to batch, where a client holds so many: it falls to two thirds in a
# move of 38 batches.  Measured on the toxicity task with Adam and a learning rate of 1e-3.
AGREED_DECAY = 0.989
# A client draws a number of batches uniformly from none to all; weighted by examples, that many
# clients average away as much noise as this share of them with equal numbers.
EQUIVALENT_SHARE = 0.75


def guess_length(agreed: float, noise: float, batches: int) -> float:
    """Length of a plausible true move.

    Parameters
    ----------
    agreed : length of the part that clients agree on, at the first move
    noise : length of the noise that is left after averaging
    batches : moves that the trajectory has made, times the batches that a client holds
    """
    return float(np.hypot(noise, agreed * AGREED_DECAY**batches))


def measure_noise(replies: npt.NDArray[np.float32], examples: npt.NDArray[np.int64]) -> float:
    """Length of the noise in the mean of replies, from how they scatter around it.

    Parameters
    ----------
    replies : (k, P)
    examples : (k,) behind each
    """
    shares = examples / examples.sum()
    gaps = np.linalg.norm(replies - average(replies, examples), axis=1)
    return float(np.sqrt(np.sum((shares * gaps) ** 2)))


def limit_length(displacement: FloatVector, length: float) -> FloatVector:
    """The displacement, shortened where it is longer than a length."""
    norm = float(np.linalg.norm(displacement))
    return displacement * (length / norm) if norm > length else displacement


def scale_length(displacement: FloatVector, length: float) -> FloatVector:
    """The displacement with another length; one of zero stays."""
    norm = float(np.linalg.norm(displacement))
    return displacement * (length / norm) if norm > 0.0 else displacement


def count_batches(task: TrainingTask, batch_size: int) -> int:
    """Batches that a client holds, in the mean and rounded, at least 1."""
    return max(1, round(task.num_examples / len(task.clients) / batch_size))


def count_equivalent(num_clients: int) -> float:
    """Clients with equal numbers of examples that average away as much noise as these."""
    return max(1.0, EQUIVALENT_SHARE * num_clients)
