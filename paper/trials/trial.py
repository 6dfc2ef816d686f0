"""Single runs of a setup, prepared when they are first used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from covertfl.decision.problem import FiniteHorizon
from covertfl.decoys.registry import make_decoy
from covertfl.evaluation.horizon import HorizonEvaluation, evaluate_horizon_policy
from covertfl.runs.build import KernelCache, build_federation, require_torch
from covertfl.runs.clients import ClientResponder
from covertfl.runs.federation import Federation, start_trajectories
from covertfl.runs.learner import LearnerState
from covertfl.runs.run_file import build_run
from paper.trials.cells import Key
from paper.trials.schedule import Schedule, draw_schedule
from paper.trials.setups import PublicData, Setup, load_task, make_run_content


@dataclass(frozen=True, eq=False)
class Trial:
    """One run of a setup; what it needs is prepared, and its rounds are drawn, when first used.

    Parameters
    ----------
    prepare : returns the federation
    """

    setup: Setup
    policy: str
    seed: int
    device: str
    prepare: Callable[[], Federation]

    @cached_property
    def federation(self) -> Federation:
        """Clients, policy and problem."""
        return self.prepare()

    @cached_property
    def schedule(self) -> Schedule:
        """The rounds."""
        return draw_schedule(self.federation)

    @property
    def clients(self) -> ClientResponder:
        """The clients."""
        assert isinstance(self.federation.responder, ClientResponder)
        return self.federation.responder

    @property
    def key(self) -> Key:
        """Return what determines the true trajectory; a GPU and a CPU give different ones."""
        setup, device = self.setup.describe(), self.device.partition(":")[0]
        return {"setup": setup, "policy": self.policy, "seed": self.seed, "device": device}

    @cached_property
    def start(self) -> LearnerState:
        """Trajectories before the first round, the same for every eavesdropper's decoy."""
        return start_trajectories(self.federation.settings, self.clients)

    def evaluate(self) -> HorizonEvaluation:
        """Return the exact costs and probabilities of the policy, first oracle state stationary."""
        problem = self.federation.problem
        assert isinstance(problem, FiniteHorizon)
        return evaluate_horizon_policy(problem, self.federation.policy.policy)

    def with_public(self, public: PublicData, decoy: str) -> ClientResponder:
        """Return the same clients with a decoy made for another public set."""
        task = load_task(self.setup, self.seed, public)
        section = self.federation.settings.sections.federation
        made = make_decoy(
            decoy,
            task,
            batch_size=section.batch_size,
            algorithm=section.algorithm,
            optimizer=self.clients.optimizer,
        )
        return replace(self.clients, task=task, decoy=made)


def prepare_trial(
    setup: Setup, policy: str, seed: int, kernels: KernelCache, *, device: str = "cpu"
) -> Trial:
    """Return a run whose policy is solved for, and whose rounds are drawn, when first used."""
    return Trial(
        setup, policy, seed, device, partial(_prepare, setup, policy, seed, kernels, device)
    )


def _prepare(setup: Setup, policy: str, seed: int, kernels: KernelCache, device: str) -> Federation:
    require_torch()
    content = make_run_content(setup, policy, seed, device)
    settings = build_run(content, "reproduce", folder=Path())
    settings = settings.with_task(load_task(setup, seed, PublicData()))
    return build_federation(settings, kernels)
