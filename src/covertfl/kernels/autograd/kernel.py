"""Local jobs of any torch module, by automatic differentiation.

On a CPU each job runs by itself in one thread, several jobs at a time, so that its result depends
neither on the other jobs nor on the number of cores.  On a GPU jobs run as one batch: a stack of
weights, and the gradients of all of them at once.

Dropout uses the masks of `dropout.dropout_mask`; the layer number of a mask counts the calls of
dropout modules in a forward pass.  For a module with other random parts, torch's generator is
seeded from the job, and its jobs run one after the other.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import numpy as np
import numpy.typing as npt
import torch

from covertfl.kernels.autograd.module import ModelFactory, describe_layout
from covertfl.kernels.autograd.replica import Replica, single_threaded
from covertfl.kernels.autograd.stack import JobStacks
from covertfl.kernels.cores import count_cores
from covertfl.kernels.job import LocalJob, LocalOptimizer, Loss, check_job, check_weights
from covertfl.kernels.weights import Vector


class TorchKernel:
    """Kernel for local jobs of any torch module, on a CPU or a GPU.

    Parameters
    ----------
    model_factory : returns the module; its initial weights do not matter
    loss : binary (mean of binary cross entropy with logits) or multiclass (mean cross entropy)
    optimizer : of the jobs
    device : cpu or cuda
    batched : whether jobs are stacked; by default on cuda only
    threads : number of jobs at a time on a CPU; None for one per core
    """

    def __init__(
        self,
        model_factory: ModelFactory,
        loss: Loss,
        optimizer: LocalOptimizer,
        device: str = "cpu",
        *,
        batched: bool | None = None,
        threads: int | None = None,
    ) -> None:
        with torch.random.fork_rng(devices=[]):
            module = model_factory()
        self.layout = describe_layout(module)
        self.loss: Loss = loss
        self.optimizer = optimizer
        self.device = torch.device(device)
        self.batched = self.device.type != "cpu" if batched is None else batched
        self.threads = count_cores() if threads is None else threads
        self._lock = Lock()
        self._plain_module = module
        self._replicas: list[Replica] = []
        self._stacks = JobStacks(copy.deepcopy(module), self.layout, loss, optimizer, self.device)

    def run(self, jobs: Sequence[LocalJob]) -> list[Vector]:
        """Return the weights after each job, or its gradient."""
        for job in jobs:
            check_job(job, self.layout, self.loss)
        with self._lock:
            return self._stacks.run(jobs) if self.batched else self._run_jobs(jobs)

    def _run_jobs(self, jobs: Sequence[LocalJob]) -> list[Vector]:
        """Run jobs one by one until one does not use torch's generator, the others in threads."""
        results: list[Vector] = []
        with torch.random.fork_rng(devices=[]), single_threaded():
            replica = self._take_replica(0)
            for job in jobs:
                torch.default_generator.manual_seed(int(job.seed))
                before = torch.get_rng_state()
                results.append(replica.run(job))
                if len(job.rows) and torch.equal(before, torch.get_rng_state()):
                    break
        return results + self._run_in_threads(jobs[len(results) :])

    def _take_replica(self, number: int) -> Replica:
        while len(self._replicas) <= number:
            module = copy.deepcopy(self._plain_module)
            replica = Replica(module, self.loss, self.optimizer, self.layout.size)
            self._replicas.append(replica)
        return self._replicas[number]

    def _run_in_threads(self, jobs: Sequence[LocalJob]) -> list[Vector]:
        results: list[Vector] = [job.weights for job in jobs]
        waiting = iter(range(len(jobs)))  # shared by the threads, safe under the interpreter's lock
        replicas = [self._take_replica(number) for number in range(min(self.threads, len(jobs)))]

        def work(replica: Replica) -> None:
            with single_threaded():
                for number in waiting:
                    results[number] = replica.run(jobs[number])

        if len(replicas) == 1:
            work(replicas[0])
        elif replicas:
            with ThreadPoolExecutor(len(replicas)) as pool:
                list(pool.map(work, replicas))
        return results

    def predict(
        self, weights: Vector, features: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        """Return (n, outputs) raw outputs (logits), without dropout."""
        check_weights(weights, self.layout)
        with self._lock:
            return self._stacks.predict(weights, features)
