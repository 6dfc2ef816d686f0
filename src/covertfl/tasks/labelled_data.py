"""A task from one set of labelled examples: divided by the settings, nothing copied for clients.

The arrays of a data set are read once in a process; tasks with other seeds or settings share them
and differ in their row numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from covertfl.arrays import IntArray
from covertfl.errors import InvalidInput
from covertfl.kernels.job import Examples, Labels, Loss
from covertfl.tasks.data_settings import DataSettings
from covertfl.tasks.models import ImageModel
from covertfl.tasks.splits import Division, PublicSet, divide_rows, reserve_any, share_good_classes
from covertfl.tasks.task import TrainingTask

STREAM = 0x7461736B  # keeps a task's draws apart from those of other parts with the same seed


@dataclass(frozen=True, eq=False)
class LabelledData:
    """All examples of a data set.

    Parameters
    ----------
    examples : features and labels as a loss wants them
    classes : (n,) class numbers
    num_classes : at least 2
    """

    examples: Examples
    classes: IntArray
    num_classes: int

    @property
    def loss(self) -> Loss:
        """Binary for two classes, with class 1 the positive one."""
        return "binary" if self.num_classes == 2 else "multiclass"

    @property
    def outputs(self) -> int:
        """Logits that a model needs."""
        return 1 if self.num_classes == 2 else self.num_classes

    def take(self, rows: IntArray) -> Examples:
        """Some of the examples, copied."""
        return Examples(self.examples.features[rows], self.examples.labels[rows])


def label_data(
    features: npt.NDArray[np.float32], classes: IntArray, num_classes: int
) -> LabelledData:
    """Features and class numbers as a data set."""
    kept = np.ascontiguousarray(features, dtype=np.float32)
    labels: Labels = classes.astype(np.float32) if num_classes == 2 else classes.astype(np.int64)
    return LabelledData(Examples(kept, labels), classes, num_classes)


def describe_public(
    data: LabelledData, settings: DataSettings, generator: np.random.Generator
) -> PublicSet:
    """The public set that the settings ask for; which classes are good is drawn."""
    counts = np.bincount(data.classes, minlength=data.num_classes)
    if data.num_classes == 2:
        if settings.public_classes is not None:
            raise InvalidInput(
                f"public_classes is for more than two classes, task {settings.task} has two: "
                "use public_positive_share"
            )
        order = np.arange(2)
        shares: tuple[float, ...] = (
            1.0 - settings.public_positive_share,
            settings.public_positive_share,
        )
    else:
        order = generator.permutation(data.num_classes)
        shares = share_good_classes(
            counts, order, settings.public_classes, settings.public_class_share
        )
    reserve = reserve_any(order) if settings.same_clients else None
    return PublicSet(settings.public_size, shares, reserve)


def divide(data: LabelledData, settings: DataSettings, validation_size: int) -> Division:
    """Rows of clients, public set and validation set."""
    generator = np.random.default_rng([STREAM, settings.seed])
    return divide_rows(
        data.classes,
        clients=settings.clients,
        concentration=None if isinstance(settings.split, str) else settings.split,
        validation_size=validation_size,
        public=describe_public(data, settings, generator),
        generator=generator,
    )


def make_labelled_task(
    data: LabelledData,
    settings: DataSettings,
    make_model: ImageModel,
    *,
    validation_size: int,
    validation: Examples | None = None,
) -> TrainingTask:
    """A task from a data set.

    Parameters
    ----------
    validation_size : rows to keep for validation; 0 where `validation` is given
    """
    division = divide(data, settings, validation_size)
    return TrainingTask(
        name=settings.task,
        make_model=make_model,
        loss=data.loss,
        train=data.examples,
        clients=division.clients,
        public=data.take(division.public),
        validation=data.take(division.validation) if validation is None else validation,
    )
