"""The paper's theorems and lemmas, measured: Theorems 1 to 3, Lemmas 1 and 2."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from paper import theory_queues, theory_structure, theory_updates
from paper.cells import CellStore
from paper.experiment import Experiment, Request, ResultDict


def run_theory(request: Request, store: CellStore) -> ResultDict:
    """Compute all parts; none of them depends on the reading."""
    quick = request.quick
    models = theory_structure.QUICK_MODELS if quick else theory_structure.MODELS
    queues = theory_queues.QUICK_QUEUES if quick else theory_queues.QUEUES
    updates = theory_updates.QUICK_UPDATES if quick else theory_updates.UPDATES
    runs = request.count_seeds(theory_updates.RUNS, theory_updates.QUICK_RUNS)
    parts: dict[str, tuple[dict[str, Any], Callable[..., Mapping[str, Any]]]] = {
        "theorem-1": ({"updates": updates, "runs": runs}, theory_updates.measure_norms),
        "theorem-2": ({"models": models}, theory_structure.examine_models),
        "theorem-3": ({"queues": queues}, theory_queues.examine_mixtures),
        "lemma-1": ({}, theory_queues.examine_stability),
    }
    work = {
        name: ({"part": name, **arguments}, partial(compute, **arguments))
        for name, (arguments, compute) in parts.items()
    }
    return {"settings": {"quick": quick}, **store.work_out(work)}


THEORY = Experiment(
    "theory", "What is proven, measured", "Theorems 1 to 3, Lemmas 1 and 2", run_theory
)
