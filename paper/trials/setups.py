"""The federations of the paper's experiments, and their data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from covertfl.decision.problem_file import read_preset_text
from covertfl.files.toml import parse_toml
from covertfl.tasks.registry import make_task
from covertfl.tasks.task import DataSettings, DirichletSplit, TrainingTask
from paper.experiment import Reading
from paper.trials.scorer import take_part

Transition = tuple[tuple[float, ...], ...]

BATCH_SIZE = 40  # the paper's


@dataclass(frozen=True)
class PublicData:
    """The data of the eavesdropper.

    Parameters
    ----------
    size : relative to a client's data
    positive_share : share of toxic comments
    classes, class_share : number of good classes of images; their share, None for the natural
    """

    size: float = 1.0
    positive_share: float = 0.1
    classes: int | None = None
    class_share: float | None = None


@dataclass(frozen=True)
class Setup:
    """A federation, and the problem that its policies are solved for; policy and seed are open.

    Parameters
    ----------
    reading, preset : of the problem
    rounds, updates : N and M
    clients, participation : how many, and how many take part by oracle state
    acceptance, min_share : when a round is a success
    learning_rate : of the clients' Adam, or of the server's with fedsgd
    thinning : every how-many-th example is used, 1 for all
    client_thinning : every how-many-th example of a client is used, on top of that
    split : concentration of a Dirichlet split by class, None for clients that are alike
    transition : of the oracle, None for the preset's
    """

    task: Literal["toxicity", "mnist", "digits"]
    reading: Reading
    rounds: int
    updates: int
    clients: int
    participation: tuple[int, ...]
    preset: str = "main"
    model: str | None = None
    acceptance: Literal["data", "model"] = "data"
    min_share: float = 0.25
    algorithm: Literal["fedavg", "fedsgd"] = "fedavg"
    learning_rate: float = 1e-3
    thinning: int = 1
    client_thinning: int = 1
    split: float | None = None
    transition: Transition | None = None

    def describe(self) -> dict[str, Any]:
        """Return the settings as keys of cells and results hold them."""
        return asdict(self)


def choose_acceptance(reading: Reading) -> Literal["data", "model"]:
    """Return `data` in the sound reading, `model` (printed probabilities) in the paper's (D19)."""
    return "data" if reading == "sound" else "model"


def choose_learning_rate(reading: Reading) -> float:
    """Return the learning rate of the paper's text, or of its published code (D24)."""
    return 1e-4 if reading == "paper-code" else 1e-3


def make_run_content(setup: Setup, policy: str, seed: int, device: str) -> dict[str, Any]:
    """Return the content of a run file for one run; its decoy is ungated, as the paper's is."""
    problem = parse_toml(read_preset_text(f"{setup.reading}/{setup.preset}"), setup.preset)
    problem["horizon"] = {"rounds": setup.rounds, "updates": setup.updates}
    if setup.transition is not None:
        rows = [list(row) for row in setup.transition]
        problem["oracle"] = {**problem["oracle"], "transition": rows}
    return {
        "task": "own",
        "seed": seed,
        "federation": {
            "clients": setup.clients,
            "participation": list(setup.participation),
            "acceptance": setup.acceptance,
            "min_share": setup.min_share,
            "algorithm": setup.algorithm,
            "optimizer": {"name": "adam", "lr": setup.learning_rate},
            "batch_size": BATCH_SIZE,
        },
        "policy": {"kind": policy},
        "decoy": {"kind": "public", "gated": False},
        "engine": {"device": device},
        **problem,
    }


@lru_cache(maxsize=512)
def load_task(setup: Setup, seed: int, public: PublicData) -> TrainingTask:
    """Load model and data; the clients' rows do not depend on the public set."""
    settings = DataSettings(
        task=setup.task,
        seed=seed,
        clients=setup.clients,
        split="iid" if setup.split is None else DirichletSplit(dirichlet=setup.split),
        public_size=public.size,
        public_positive_share=public.positive_share,
        public_classes=public.classes,
        public_class_share=public.class_share,
        model=setup.model,
        same_clients=True,
    )
    task = make_task(settings)
    assert isinstance(task, TrainingTask)
    stride = setup.thinning * setup.client_thinning
    thinned = tuple(np.ascontiguousarray(rows[::stride]) for rows in task.clients)
    if setup.thinning == 1:
        return replace(task, clients=thinned)
    return replace(
        task,
        clients=thinned,
        public=take_part(task.public, setup.thinning),
        validation=take_part(task.validation, setup.thinning),
    )
