"""The paper's theorems and lemmas, measured: Theorems 1 to 3, Lemmas 1 and 2."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from covertfl.experiments import theory_mixture, theory_stability, theory_structure, theory_updates
from covertfl.experiments.experiment import Experiment, Request, Result
from covertfl.experiments.trials.cells import CellStore


def run_theory(request: Request, store: CellStore) -> Result:
    """Compute all parts; none of them depends on the reading."""
    quick = request.quick
    models = theory_structure.QUICK_MODELS if quick else theory_structure.MODELS
    queues = theory_mixture.QUICK_QUEUES if quick else theory_mixture.QUEUES
    updates = theory_updates.QUICK_UPDATES if quick else theory_updates.UPDATES
    runs = request.count_seeds(theory_updates.RUNS, theory_updates.QUICK_RUNS)
    work: dict[str, tuple[dict[str, Any], Callable[..., Mapping[str, Any]]]] = {
        "theorem-1": ({"updates": updates, "runs": runs}, theory_updates.measure_norms),
        "theorem-2": ({"models": models}, theory_structure.examine_models),
        "theorem-3": ({"queues": queues}, theory_mixture.examine_mixtures),
        "lemma-1": ({}, theory_stability.examine_stability),
    }
    store.plan(len(work))
    result: Result = {"settings": {"quick": quick}}
    for name, (arguments, compute) in work.items():
        compute_part = partial(compute, **arguments)
        result[name] = store.work_out({"part": name, **arguments}, compute_part)
        store.advance(1, name)
    return result


THEORY = Experiment(
    "theory", "What is proven, measured", "Theorems 1 to 3, Lemmas 1 and 2", run_theory
)
