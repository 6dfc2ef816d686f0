"""What the `peer_*.py` scripts share: their arguments, the clock, and the files they write.

Called as `peer_*.py MODEL ROUNDS THREADS SEEDS FOLDER`; measurements and the weights after the
first round are written into the folder.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from covertfl.kernels.weights import Vector

TITLES = {
    "head": "toxicity head 128-128-1",
    "logistic": "logistic regression 784-10",
    "mlp": "MLP 784-200-10",
    "still-head": "the head without dropout",
    "digit-cnn": "digit-cnn, 8 x 8 images",
    "small-cnn": "small-cnn, 28 x 28 images",
}
CLIENTS, BATCHES, BATCH_SIZE = 20, 10, 40
ANSWER, WEIGHTS = "answer.json", "weights.npy"


@dataclass(frozen=True)
class Asked:
    """Arguments of a simulator script.

    Parameters
    ----------
    model : name of the model
    rounds : number of timed rounds, after one that is not timed
    threads : number of PyTorch threads
    seeds : number of runs at once, if the simulator supports it
    folder : for the files it writes
    """

    model: str
    rounds: int
    threads: int
    seeds: int
    folder: Path


def read_arguments() -> Asked:
    """Parse the command line and set PyTorch's number of threads."""
    parser = argparse.ArgumentParser(description="train a federation with one simulator")
    parser.add_argument("model", choices=TITLES)
    parser.add_argument("rounds", type=int)
    parser.add_argument("threads", type=int)
    parser.add_argument("seeds", type=int)
    parser.add_argument("folder", type=Path)
    asked = Asked(**vars(parser.parse_args()))
    import torch

    torch.set_num_threads(asked.threads)
    return asked


class RoundClock:
    """A clock that times the rounds after the first and saves the weights after the first."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._ends = folder, list[float]()

    def end_round(self, read: Callable[[], Vector]) -> None:
        """End a round; `read` returns its weights."""
        if not self._ends:
            np.save(self._folder / WEIGHTS, read())
        self._ends.append(time.perf_counter())

    def report(self, memory: int) -> None:
        """Write the seconds of each round, and the memory."""
        answer = {"seconds": np.diff(self._ends).tolist(), "memory": memory}
        (self._folder / ANSWER).write_text(json.dumps(answer))
