"""A task from one set of labelled examples.

The arrays of a data set are read once per process; tasks with different seeds or settings share
them and differ in their row numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from covertfl.arrays import IntArray
from covertfl.errors import InvalidInput
from covertfl.kernels.job import Examples, Labels, Loss
from covertfl.tasks.inputs import Inputs
from covertfl.tasks.models import ModelMaker, VectorModel, choose_vector_model
from covertfl.tasks.splits import Division, PublicSet, divide_rows, reserve_any, share_good_classes
from covertfl.tasks.task import DataSettings, TrainingTask

STREAM = 0x7461736B  # separates a task's random numbers from those of others with the same seed


@dataclass(frozen=True, eq=False)
class LabelledData:
    """All examples of a data set, with their classes.

    Parameters
    ----------
    examples : features, and labels in the form that the loss needs
    classes : (n,) class numbers
    num_classes : number of classes, at least 2
    names : of the classes, empty for their numbers
    inputs : what the features were made of
    """

    examples: Examples
    classes: IntArray
    num_classes: int
    names: tuple[str, ...] = ()
    inputs: Inputs = field(default_factory=Inputs)

    @property
    def loss(self) -> Loss:
        """Binary for two classes, with class 1 as the positive one."""
        return "binary" if self.num_classes == 2 else "multiclass"

    @property
    def outputs(self) -> int:
        """Number of logits that a model needs."""
        return 1 if self.num_classes == 2 else self.num_classes

    def take(self, rows: IntArray) -> Examples:
        """Return a copy of some of the examples."""
        return Examples(self.examples.features[rows], self.examples.labels[rows])

    def reshape(self, shape: tuple[int, ...]) -> LabelledData:
        """Return a data set of views of the same examples in another shape."""
        features = self.examples.features.reshape(-1, *shape)
        return replace(self, examples=Examples(features, self.examples.labels))


def label_data(
    features: npt.NDArray[np.floating],
    classes: IntArray,
    names: Sequence[str],
    inputs: Inputs | None = None,
) -> LabelledData:
    """Return a data set made from features, class numbers and the names of the classes."""
    kept = np.ascontiguousarray(features, dtype=np.float32)
    labels: Labels = classes.astype(np.float32) if len(names) == 2 else classes.astype(np.int64)
    examples = Examples(kept, labels)
    return LabelledData(examples, classes, len(names), tuple(names), inputs or Inputs())


def make_public_set(
    data: LabelledData, settings: DataSettings, generator: np.random.Generator
) -> PublicSet:
    """Return the public set that the settings ask for; the good classes are drawn at random."""
    counts = np.bincount(data.classes, minlength=data.num_classes)
    if data.num_classes == 2:
        if settings.public_classes is not None:
            raise InvalidInput(
                f"public_classes needs more than two classes, task {settings.task} has two: "
                "use public_positive_share"
            )
        order = np.arange(2)
        positive = settings.public_positive_share
        shares: tuple[float, ...] = (1.0 - positive, positive)
    else:
        order = generator.permutation(data.num_classes)
        shares = share_good_classes(
            counts, order, settings.public_classes, settings.public_class_share
        )
    reserve = reserve_any(order) if settings.same_clients else None
    return PublicSet(settings.public_size, shares, reserve)


def make_labelled_task(
    data: LabelledData,
    settings: DataSettings,
    make_model: ModelMaker,
    *,
    validation_size: int,
    validation: Examples | None = None,
    is_balanced: bool = False,
) -> TrainingTask:
    """Make a task from a data set.

    Parameters
    ----------
    validation_size : rows to set aside for validation; 0 if `validation` is given
    validation : examples of their own for validation
    is_balanced : whether it is public that all classes are equally frequent
    """
    division = divide_data(data, settings, validation_size)
    return TrainingTask(
        name=settings.task,
        make_model=make_model,
        loss=data.loss,
        train=data.examples,
        clients=division.clients,
        public=data.take(division.public),
        validation=data.take(division.validation) if validation is None else validation,
        classes=data.names,
        inputs=data.inputs,
        is_balanced=is_balanced,
    )


def divide_data(data: LabelledData, settings: DataSettings, validation_size: int) -> Division:
    """Return which rows of a data set the clients, the public and the validation set hold."""
    generator = np.random.default_rng([STREAM, settings.seed])
    return divide_rows(
        data.classes,
        clients=settings.clients,
        concentration=None if isinstance(settings.split, str) else settings.split.dirichlet,
        validation_size=validation_size,
        public=make_public_set(data, settings, generator),
        generator=generator,
    )


def make_vector_task(
    data: LabelledData,
    settings: DataSettings,
    models: Mapping[str, VectorModel],
    *,
    validation_size: int,
    is_balanced: bool = False,
) -> TrainingTask:
    """Make a task from labelled vectors, with the model that the settings name."""
    inputs = data.examples.features.shape[1]
    model = choose_vector_model(models, settings.model, settings.task, inputs, data.outputs)
    return make_labelled_task(
        data, settings, model, validation_size=validation_size, is_balanced=is_balanced
    )
