"""Make the example log src/covertfl/data/participation.csv.

The log has 600 rounds of a federation of 20 clients, each with 34 batches of 40 examples.  A hidden
Markov chain with the paper's transition matrix determines how many clients take part.  How many of
its batches a client completes depends on how long the round is open.  Only uniform draws of one
fixed bit generator are used, so the same seed gives the same file, byte for byte, on any machine.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

SEED = 0
NUM_ROUNDS = 600
TRANSITION = ((0.8, 0.2, 0.0), (0.3, 0.5, 0.2), (0.0, 0.2, 0.8))
CLIENTS = ((3, 7), (8, 12), (15, 20))  # smallest and largest number of clients, by state
BATCH_SIZE = 40
# Shares of short, ordinary and long rounds, and the range of batches that a client completes.
ROUND_LENGTHS = (0.1, 0.7, 0.2)
BATCHES = ((0, 17), (0, 34), (24, 34))
ARRIVAL_PROB = 0.05
ARRIVAL_SIZE = 4

EXAMPLE_LOG = Path(__file__).parents[1] / "src" / "covertfl" / "data" / "participation.csv"


def draw_index(shares: tuple[float, ...], *, generator: np.random.Generator) -> int:
    """Draw an index with probabilities `shares`, from one uniform draw."""
    uniform = generator.random()
    return sum(uniform >= end for end in np.cumsum(shares)[:-1])


def draw_whole(least: int, most: int, *, generator: np.random.Generator) -> int:
    """Draw an integer uniformly from `least` to `most`, from one uniform draw."""
    return least + int(generator.random() * (most - least + 1))


def draw_round(state: int, *, generator: np.random.Generator) -> tuple[int, int, int]:
    """Draw the participating clients, the examples of their replies, and the arriving updates."""
    clients = draw_whole(*CLIENTS[state], generator=generator)
    length = draw_index(ROUND_LENGTHS, generator=generator)
    batches = sum(draw_whole(*BATCHES[length], generator=generator) for _ in range(clients))
    arrival = ARRIVAL_SIZE * int(generator.random() < ARRIVAL_PROB)
    return clients, batches * BATCH_SIZE, arrival


def make_log(num_rounds: int = NUM_ROUNDS, *, generator: np.random.Generator) -> str:
    """Return the text of a log whose first round is in the middle state."""
    lines = ["round,clients,examples,arrival"]
    state = 1
    for number in range(1, num_rounds + 1):
        clients, examples, arrival = draw_round(state, generator=generator)
        lines.append(f"{number},{clients},{examples},{arrival}")
        state = draw_index(TRANSITION[state], generator=generator)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make the example participation log.")
    help_text = "file to write (default: the log in the package's data folder)"
    parser.add_argument("file", nargs="?", type=Path, default=EXAMPLE_LOG, help=help_text)
    target = parser.parse_args().file
    log = make_log(generator=np.random.Generator(np.random.PCG64(SEED)))
    target.write_bytes(log.encode("ascii"))
    print(f"{target}: {NUM_ROUNDS} rounds")
