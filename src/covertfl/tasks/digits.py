"""Handwritten digits of 8 x 8 pixels that come with scikit-learn; nothing is downloaded."""

from __future__ import annotations

from functools import cache

import numpy as np

from covertfl.errors import Missing
from covertfl.tasks.data import LabelledData, label_data, make_labelled_task
from covertfl.tasks.models import DIGIT_CONVOLUTIONS, choose_image_model
from covertfl.tasks.task import DataSettings, Inputs, TrainingTask

VALIDATION_SIZE = 300
IMAGE = (1, 8, 8)
DEFAULT_MODEL = "mlp"
WHITE = 16.0  # the largest pixel value
CLASSES = tuple("0123456789")
INPUTS = Inputs("pixels of an image of 8 x 8, row by row, divided by 16, in [0, 1]")


def make_digits_task(settings: DataSettings) -> TrainingTask:
    """Make the digits task: 1,797 images, of which 30 of each class are for validation."""
    make_model, shape = choose_image_model(
        DIGIT_CONVOLUTIONS, settings.model or DEFAULT_MODEL, settings.task, IMAGE, len(CLASSES)
    )
    return make_labelled_task(
        load_digits().reshape(shape),
        settings,
        make_model,
        validation_size=VALIDATION_SIZE,
        is_balanced=True,
    )


@cache
def load_digits() -> LabelledData:
    """Return all digits, with pixels in [0, 1]."""
    try:
        from sklearn import datasets
    except ImportError as error:
        raise Missing(
            "the digits task needs scikit-learn: "
            "install the extra with pip install 'covertfl[train]'"
        ) from error
    pixels, labels = datasets.load_digits(return_X_y=True)
    return label_data(pixels / WHITE, labels.astype(np.int64), CLASSES, INPUTS)
