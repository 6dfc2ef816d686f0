"""The decoy of a run, or the replicas of an exchangeable one, from its settings and secrets.

The sign flips of replicas belong to the federation and must be the same in all runs over the same
clients: with new ones only the true trajectories of two runs share a frame.  They come from the
federation's secret, a file that its owner makes once.  A run without one draws its own.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from pathlib import Path

import numpy as np

from covertfl.decoys.decoy import Decoy
from covertfl.decoys.flips import MOST_GENERATORS, draw_generators, span
from covertfl.decoys.registry import REPLICA, make_decoy
from covertfl.decoys.replica import Replicas
from covertfl.errors import InvalidInput
from covertfl.files.disk import write_atomically
from covertfl.files.text import FORMATS, read_text, require_format
from covertfl.kernels.weights import Float32Array, Layout
from covertfl.runs.settings import RunSettings
from covertfl.seeding import Stream, make_generator
from covertfl.tasks.pivot import find_pivot
from covertfl.tasks.public_map import find_free_axes
from covertfl.tasks.task import TrainingTask

SECRET_BITS = 256


def make_run_decoy(
    settings: RunSettings, task: TrainingTask, layout: Layout
) -> tuple[Decoy | None, Replicas | None]:
    """Return the decoy of a run, or the replicas of an exchangeable one."""
    section, federation = settings.sections.decoy, settings.sections.federation
    if layout.measured and federation.algorithm != "fedavg":
        raise InvalidInput(
            "[federation] algorithm must be fedavg for a model with buffers: gradients do not hold "
            f"{layout.names[-1]}, got {federation.algorithm}"
        )
    if section.kind == REPLICA:
        return None, make_replicas(settings, task, layout)
    decoy = make_decoy(
        section.kind,
        task,
        batch_size=federation.batch_size,
        algorithm=federation.algorithm,
        optimizer=federation.optimizer.make(),
    )
    return decoy, None


def make_replicas(settings: RunSettings, task: TrainingTask, layout: Layout) -> Replicas:
    """Return the replicas of an exchangeable run.

    Raises
    ------
    InvalidInput
        if the model has no pivot, the public set knows too many axes, or the federation's secret
        cannot be used
    """
    assert task.public_map is not None
    size, hidden = settings.num_trajectories, settings.hidden_seed
    named = settings.sections.decoy.pivot
    pivot = find_pivot(task.make_model, task.public.features.shape[1:], named)
    path, count = settings.sections.federation.secret, size.bit_length() - 1
    if path is None:
        flips = draw_flips(task, count, generator=make_generator(hidden, Stream.FLIP))
    else:
        flips = read_secret(path, task, count)
    return Replicas(layout, pivot, span(flips), draw_choice(hidden, size))


def draw_flips(task: TrainingTask, count: int, *, generator: np.random.Generator) -> Float32Array:
    """Draw (count, d) sign flips of the axes that the public set of a mapped task does not know."""
    free = find_free_axes(task.public)
    return draw_generators(
        free, count, generator=generator, known=task.validation, public=task.public.features
    )


def draw_choice(hidden_seed: int, trajectories: int) -> int:
    """Draw the slot of the true trajectory, uniformly: all that must stay secret of a run."""
    return int(make_generator(hidden_seed, Stream.CHOICE, 0).integers(trajectories))


def write_secret(path: str | os.PathLike[str], task: TrainingTask) -> int:
    """Make the secret of a federation with a mapped task, a file that its owner alone may read.

    Return the largest number of trajectories that it has flips for.

    Raises
    ------
    InvalidInput
        if the file exists: a new secret would give away the runs made with the old one
    """
    file = Path(path)
    if file.is_dir():
        raise InvalidInput(f"{file} is a folder: name a file in it for the federation's secret")
    if file.exists():
        raise InvalidInput(
            f"{file} exists: a federation keeps its secret, since runs with another one give both "
            "away; choose another name for another federation"
        )
    assert task.public_map is not None
    count = min(MOST_GENERATORS, int(find_free_axes(task.public).sum()))
    generator = np.random.default_rng(secrets.randbits(SECRET_BITS))
    flips = draw_flips(task, max(count, 1), generator=generator)
    content = {
        "format": FORMATS["secret"],
        "map": task.public_map.fingerprint,
        "flips": ["".join("-" if sign < 0.0 else "+" for sign in row) for row in flips],
    }
    write_atomically(file, json.dumps(content, indent=2) + "\n", mode=0o600)
    return int(2 ** len(flips))


def read_secret(path: str | os.PathLike[str], task: TrainingTask, count: int) -> Float32Array:
    """Return the first (count, d) sign flips of a federation's secret, for a mapped task.

    Raises
    ------
    InvalidInput
        if the file cannot be read, others may read it, it was made for another public map, or has
        fewer flips
    """
    file = Path(path)
    text = read_text(file, "the secret of a federation (covertfl federation init makes one)")
    if stat.S_IMODE(file.stat().st_mode) & 0o077:
        raise InvalidInput(f"{file} must be readable by its owner only (chmod 600)")
    try:
        content = json.loads(text)
        version, made_for = content["format"], str(content["map"])
        rows = [str(row) for row in content["flips"]]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise InvalidInput(
            f"{file} does not hold the secret of a federation: it must be a JSON object with "
            "format, map and flips"
        ) from error
    require_format("secret", version, str(file))
    assert task.public_map is not None
    if made_for != task.public_map.fingerprint:
        raise InvalidInput(
            f"{file} was made for another public map: runs of a federation must have the same task "
            "and public set ([data] seed keeps them while `seed` varies)"
        )
    if any(set(row) - set("+-") or len(row) != len(task.public_map.mean) for row in rows):
        raise InvalidInput(f"{file} does not hold the secret of a federation: flips must be + or -")
    if len(rows) < count:
        raise InvalidInput(
            f"{file} has flips for at most {2 ** len(rows)} trajectories, got {2**count}: the "
            "public set knows the other axes"
        )
    signs = [[-1.0 if sign == "-" else 1.0 for sign in row] for row in rows[:count]]
    flips = np.array(signs, dtype=np.float32)
    known = ~find_free_axes(task.public)
    if len(np.unique(span(flips), axis=0)) < 2**count or np.any(flips[:, known] < 0.0):
        raise InvalidInput(
            f"{file} was changed: flips must be independent and leave axes alone that the public "
            "set knows"
        )
    return flips
