"""The sign flips of replicas: which layer and axes they flip, and the secret that keeps them.

The pivot is the first trained layer, linear in inputs that the public map has centred and rotated
(`tasks.public_map`).  Flips multiply columns of its weights by 1 or -1.  That needs a model which
maps a flip of an input's sign to a flip of a column's sign and to nothing else, also after
training, and whose pivot starts from random weights (`find_pivot`).

A decoy is the true model with some inputs reflected.  Whether it still ranks examples depends on
which axes are flipped, and over random flips its ranking (AUC) has a deviation of about 0.1.  A
server that holds labelled examples draws several candidates and keeps one whose reflections of a
linear fit separate the classes badly, and answer the public set as the fit itself does.  This keeps
the theorem of docs/exchangeable.md: reflecting all inputs, those of the public set included,
reflects the fit, so the outputs of each reflected fit, and with them the choice, stay the same.

The flips belong to the federation and must be the same in all runs over the same clients: with new
ones only the true trajectories of two runs share a frame.  They come from the federation's secret,
a file that its owner makes once.  A run without one draws its own.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from covertfl.arrays import BoolArray, FloatArray
from covertfl.errors import InvalidInput
from covertfl.files.disk import write_atomically
from covertfl.files.text import FORMATS, read_text, require_format
from covertfl.kernels.job import Examples, Float32Array
from covertfl.tasks.models import ModelMaker
from covertfl.tasks.public_map import find_free_axes
from covertfl.tasks.task import TrainingTask

if TYPE_CHECKING:
    import torch
    from torch import nn

MOST_GENERATORS = 3  # of a subgroup of 8
CANDIDATES = 500
SHAPE = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)  # quantiles of outputs that are compared
MOST_ROWS = 5000  # examples that candidates are compared on
RIDGE = 0.1  # penalty of the linear fit, as a share of the inputs' mean square
SECRET_BITS = 256
# Outputs of two forward passes that are equal but for rounding differ by less than this share.
ROUNDING = 1e-4


def draw_generators(
    free: BoolArray,
    count: int,
    *,
    generator: np.random.Generator,
    known: Examples | None = None,
    public: Float32Array | None = None,
) -> Float32Array:
    """Draw (count, d) sign flips of free axes that generate a subgroup of order 2^count.

    The first ones do not depend on how many are drawn.

    Parameters
    ----------
    free : (d,) axes that may be flipped
    count : 1, 2 or 3
    known : labelled examples that the server holds, to compare candidates; None to take the first
    public : (n, d) inputs of the public set, on which a decoy should answer like the truth

    Raises
    ------
    InvalidInput
        if there are fewer free axes than generators
    """
    if int(free.sum()) < count:
        raise InvalidInput(
            f"{2**count} trajectories need at least {count} axes that the public set does not "
            f"know, got {int(free.sum())}"
        )
    has_classes = known is not None and len(np.unique(known.labels[:MOST_ROWS])) > 1
    fit = _fit(known) if known is not None and has_classes else None
    chosen = np.ones((0, len(free)), dtype=np.float32)
    for _ in range(count):
        members, candidates = span(chosen), _draw_new(free, chosen, generator=generator)
        best = next(candidates)
        if fit is not None:
            others = np.stack([best, *(next(candidates) for _ in range(CANDIDATES - 1))])
            new = (others[:, np.newaxis] * members).reshape(-1, len(free))
            apart = _separate(*fit, new).reshape(CANDIDATES, -1).max(axis=1)
            score = apart / np.median(apart)
            if public is not None:
                differ = _differ(fit[2], public, new).reshape(CANDIDATES, -1).max(axis=1)
                score += differ / np.median(differ)
            best = others[int(np.argmin(score))]
        chosen = np.concatenate([chosen, best[np.newaxis]])
    return chosen


def span(generators: Float32Array) -> Float32Array:
    """Return the (2^g, d) signs of the subgroup that (g, d) flips generate.

    Members are numbered so that the product of members a and b is member a ^ b (bitwise).
    """
    signs = np.ones((1, generators.shape[1]), dtype=np.float32)
    for flips in generators:
        signs = np.concatenate([signs, signs * flips])
    return signs


def _draw_new(
    free: BoolArray, chosen: Float32Array, *, generator: np.random.Generator
) -> Iterator[Float32Array]:
    """Yield random flips of free axes that are not in the span of those already chosen.

    One of every two neighbours among the free axes is flipped, so that as much is flipped of strong
    axes as of weak ones.
    """
    members, places = span(chosen), np.flatnonzero(free)
    while True:
        first = generator.integers(0, 2, size=-(-len(places) // 2))
        flipped = np.column_stack([first, 1 - first]).ravel()[: len(places)]
        drawn = np.ones(len(free), dtype=np.float32)
        drawn[places] = 1.0 - 2.0 * flipped
        if not np.any(np.all(members == drawn, axis=1)):
            yield drawn


def _fit(known: Examples) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return inputs (n, d), classes (n, c) as 0 and 1, and a linear fit (c, d) by ridge regression.

    Of two classes the second is fitted, of more each against the others.
    """
    inputs = known.features[:MOST_ROWS].astype(np.float64)
    labels = known.labels[:MOST_ROWS].astype(np.int64)
    classes = np.unique(labels)
    wanted = (labels[:, np.newaxis] == (classes[1:] if len(classes) == 2 else classes)).astype(
        np.float64
    )
    gram = inputs.T @ inputs
    penalty = RIDGE * np.trace(gram) / len(gram)
    moments = inputs.T @ (wanted - wanted.mean(axis=0))
    return inputs, wanted, np.linalg.solve(gram + penalty * np.eye(len(gram)), moments).T


def _differ(fit: FloatArray, public: Float32Array, signs: Float32Array) -> FloatArray:
    """Return (k,) how far reflections of a fit answer otherwise than the fit does, on some inputs.

    Quantiles of standardised outputs are compared: their shape, not their level and scale.
    """
    inputs = public[:MOST_ROWS].astype(np.float64)
    worst = np.zeros(len(signs))
    for weights in fit:
        shapes = []
        for outputs in (inputs @ weights[:, np.newaxis], inputs @ (signs * weights).T):
            spread = outputs.std(axis=0) + 1e-12
            shapes.append(np.quantile((outputs - outputs.mean(axis=0)) / spread, SHAPE, axis=0))
        worst = np.maximum(worst, np.abs(shapes[1] - shapes[0]).mean(axis=0))
    return worst + 1e-12


def _separate(
    inputs: FloatArray, wanted: FloatArray, fit: FloatArray, signs: Float32Array
) -> FloatArray:
    """Return (k,) how far reflections of a fit separate the classes: the largest |d'| of a class.

    d' is the difference of the mean outputs of a class and the rest in units of their deviation.
    """
    separations = np.zeros(len(signs))
    for weights, is_class in zip(fit, wanted.T, strict=True):
        outputs = inputs @ (signs * weights).T
        inside, outside = outputs[is_class == 1.0], outputs[is_class == 0.0]
        if len(inside) and len(outside):
            spread = np.sqrt(0.5 * (inside.var(axis=0) + outside.var(axis=0))) + 1e-12
            apart = np.abs(inside.mean(axis=0) - outside.mean(axis=0)) / spread
            separations = np.maximum(separations, apart)
    return separations


def draw_flips(task: TrainingTask, count: int, *, generator: np.random.Generator) -> Float32Array:
    """Draw (count, d) sign flips of the axes that the public set of a mapped task does not know."""
    free = find_free_axes(task.public)
    return draw_generators(
        free, count, generator=generator, known=task.validation, public=task.public.features
    )


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


def find_pivot(make_model: ModelMaker, shape: tuple[int, ...], name: str | None = None) -> str:
    """Return the name of the pivot's weights, (outputs, inputs).

    Parameters
    ----------
    make_model : returns the torch module, freshly initialised from torch's global generator
    shape : of one input
    name : the name that is expected, None for any

    Raises
    ------
    InvalidInput
        if the first trained layer is not linear in the inputs, has another name, or starts from
        known weights
    """
    import torch
    from torch import nn

    from covertfl.kernels.autograd.module import isolate_generator

    with isolate_generator():
        module, again = _draw(make_model, 0), _draw(make_model, 1)
        inputs = torch.randn(4, *shape)
        first = _find_first(module, inputs)
        layer = dict(module.named_modules())[first]
        pivot = f"{first}.weight" if first else "weight"
        if type(layer) is not nn.Linear or layer.in_features != math.prod(shape):
            raise _refuse(f"the first trained layer must be linear in the inputs, got {layer}")
        if name not in (None, pivot):
            raise _refuse(
                f"pivot must be {pivot}, the weights of the first trained layer, got {name}"
            )
        if torch.equal(layer.weight, dict(again.named_parameters())[pivot]):
            raise _refuse(f"{pivot} must start from random weights, but starts from known ones")
        if not _is_equivariant(module, layer, inputs):
            raise _refuse(f"nothing but {pivot} may act on the inputs' signs, but something does")
    return pivot


def _refuse(reason: str) -> InvalidInput:
    return InvalidInput(f"replicas cannot be made of this model: {reason}")


def _draw(make_model: ModelMaker, seed: int) -> nn.Module:
    import torch

    torch.default_generator.manual_seed(seed)
    return make_model().eval()


def _find_first(module: nn.Module, inputs: torch.Tensor) -> str:
    """Return the name of the first module with trained parameters of its own that is called."""
    import torch

    called: list[str] = []
    hooks = []
    for name, part in module.named_modules():
        if any(parameter.requires_grad for parameter in part.parameters(recurse=False)):
            hooks.append(part.register_forward_pre_hook(lambda *_, name=name: called.append(name)))
    try:
        with torch.no_grad():
            module(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    if not called:
        raise _refuse("it must call a layer with trained parameters, got none")
    return called[0]


def _is_equivariant(module: nn.Module, layer: nn.Linear, inputs: torch.Tensor) -> bool:
    """Return whether flipped inputs and flipped columns give the same outputs, also after training.

    Training may move every parameter and buffer, so each is moved at random first.
    """
    import torch

    signs = torch.where(torch.arange(layer.in_features) % 2 == 0, 1.0, -1.0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        for buffer in module.buffers():
            if buffer.is_floating_point():
                buffer.add_(0.1 * torch.rand_like(buffer))
        before = module(inputs)
        layer.weight.mul_(signs)
        after = module(inputs * signs.reshape(inputs.shape[1:]))
    scale = float(before.abs().max()) + ROUNDING
    return bool((before - after).abs().max() <= ROUNDING * scale)
