"""The most operations per second that large matrix products reach on all cores: `sgemm_peak.py`.

It is the larger of one product by all cores and of one by a single core, times the cores: if other
programs use the machine, the first waits for its slowest part.
"""

from __future__ import annotations

import json

import torch
from measurement import run_apart, time_repeats

from covertfl.kernels.job import count_cores

SIZE, REPEATS, LIMIT = 2048, 12, 120.0


def measure_peak() -> float:
    """Return operations per second, measured in a separate process."""
    found = run_apart(__file__, (), limit=LIMIT)
    return float("nan") if found is None else float(found)


def time_product(threads: int) -> float:
    """Return the operations per second of the best of several products."""
    torch.set_num_threads(threads)
    left, right = (torch.randn(SIZE, SIZE) for _ in range(2))
    _, timing = time_repeats(lambda: left @ right, repeats=REPEATS)
    return 2 * SIZE**3 / timing.best


def main() -> None:
    """Measure and print."""
    cores = count_cores()
    print(json.dumps(max(time_product(cores), cores * time_product(1))))


if __name__ == "__main__":
    main()
