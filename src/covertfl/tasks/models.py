"""The models of the tasks by name; all return logits.

Each maker is a plain function, so that a task can be pickled for another process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import TYPE_CHECKING

from covertfl.errors import InvalidInput

if TYPE_CHECKING:
    from torch import nn

VectorModel = Callable[[int, int], "nn.Module"]
ModelMaker = Callable[[], "nn.Module"]


def make_head(inputs: int, outputs: int) -> nn.Module:
    """Make the paper's head: 128 hidden units, ReLU, dropout 0.1 (Appendix A)."""
    from torch import nn

    return nn.Sequential(
        nn.Linear(inputs, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, outputs)
    )


def make_logistic(inputs: int, outputs: int) -> nn.Module:
    """Make a logistic regression."""
    from torch import nn

    return nn.Sequential(nn.Linear(inputs, outputs))


def make_mlp(inputs: int, outputs: int) -> nn.Module:
    """Make a perceptron with one hidden layer of 200 units."""
    from torch import nn

    return nn.Sequential(nn.Linear(inputs, 200), nn.ReLU(), nn.Linear(200, outputs))


def make_digit_cnn() -> nn.Module:
    """Make a convolutional network of 1,898 weights for ten classes of images of 8 x 8."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 2 * 2, 10),
    )


def make_small_cnn() -> nn.Module:
    """Make a convolutional network of 6,000 weights for ten classes of images of 28 x 28."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 8, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 10),
    )


def make_paper_cnn() -> nn.Module:
    """Make the paper's network for MNIST (Appendix A): 228,010 weights, no padding."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 32, 5),
        nn.ReLU(),
        nn.Conv2d(32, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.5),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(64 * 3 * 3, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )


# The first of each is the default.
TEXT_MODELS: Mapping[str, VectorModel] = {
    "head": make_head,
    "logistic": make_logistic,
    "mlp": make_mlp,
}
DIGIT_MODELS: Mapping[str, VectorModel] = {"mlp": make_mlp, "logistic": make_logistic}
DIGIT_CONVOLUTIONS: Mapping[str, ModelMaker] = {"digit-cnn": make_digit_cnn}
CONVOLUTIONS: Mapping[str, ModelMaker] = {"small-cnn": make_small_cnn, "paper-cnn": make_paper_cnn}


def choose_vector_model(
    models: Mapping[str, VectorModel], name: str | None, task: str, inputs: int, outputs: int
) -> ModelMaker:
    """Return the maker of a named model, or of the first, for given inputs and outputs."""
    chosen = next(iter(models)) if name is None else name
    if chosen not in models:
        raise unknown_model(task, chosen, models)
    return partial(models[chosen], inputs, outputs)


def choose_image_model(
    convolutions: Mapping[str, ModelMaker],
    name: str,
    task: str,
    image: tuple[int, ...],
    outputs: int,
) -> tuple[ModelMaker, tuple[int, ...]]:
    """Return the maker of a named model, and the shape in which it takes an image."""
    if name in convolutions:
        return convolutions[name], image
    if name not in DIGIT_MODELS:
        raise unknown_model(task, name, convolutions, DIGIT_MODELS)
    pixels = prod(image)
    return partial(DIGIT_MODELS[name], pixels, outputs), (pixels,)


def unknown_model(task: str, name: str, *models: Mapping[str, object]) -> InvalidInput:
    """Return the error for a model that a task does not have."""
    names = [known for some in models for known in some]
    allowed = f"{', '.join(names[:-1])} or {names[-1]}"
    return InvalidInput(f"[data] model must be {allowed} with task = {task}, got {name}")
