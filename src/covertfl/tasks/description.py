"""All that is needed to use the trained model of a task, besides its weights, as JSON.

A run keeps the description in its folder, because the data of a task may be gone, or changed, when
its model is exported.
"""

from __future__ import annotations

from typing import Any

from covertfl.tasks.architecture import describe_module
from covertfl.tasks.task import TrainingTask

THRESHOLD = 0.5  # of the probability above which class 1 of two is named


def describe_model(task: TrainingTask) -> dict[str, Any]:
    """Return the description of a task's model.

    - `task`: its name
    - `architecture`: as `architecture.describe_module` returns it
    - `parameters`: the shape of each parameter by name
    - `classes`: the names of the classes, in the order of the outputs; empty if they have none
    - `inputs`: `meaning` and `shape` of an input, and the `encoder` that makes it of a text
    - `standardisation`: `mean` and `deviation`, null for none; `public_map`: the SHA-256 of the
      public set of the map that inputs pass after it, null for none
    - `output`: its `meaning` and, for two classes, the `threshold` of the probability
    """
    from covertfl.kernels.generator import isolate_generator

    with isolate_generator():
        module = task.make_model()
    standardisation, is_binary = task.inputs.standardisation, task.loss == "binary"
    return {
        "task": task.name,
        "architecture": describe_module(module),
        "parameters": {name: list(part.shape) for name, part in module.named_parameters()},
        "classes": list(task.classes or (("0", "1") if is_binary else ())),
        "inputs": {**task.inputs.to_dict(), "shape": list(task.public.features.shape[1:])},
        "standardisation": None
        if standardisation is None
        else {
            "mean": standardisation.mean.tolist(),
            "deviation": standardisation.deviation.tolist(),
        },
        "public_map": None if task.public_map is None else task.public_map.fingerprint,
        "output": {
            "meaning": "logit of the second class" if is_binary else "logit of each class",
            "threshold": THRESHOLD if is_binary else None,
        },
    }
