"""The paper's application: classify comments as toxic or not (section 4, Appendix A).

The comments are from Wikipedia (Jigsaw), not from Civil Comments as in the paper.  They ship as
labels and standardised vectors of 128 numbers, quantised to 8 bits, without their text;
`scripts/build_toxicity.py` makes the file.  They were standardised when the file was made, over all
of its rows and without labels: the constants are in the file, the same for every run, and do not
depend on how a run divides the rows.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

import numpy as np

from covertfl.tasks.data import LabelledData, label_data, make_vector_task
from covertfl.tasks.models import TEXT_MODELS
from covertfl.tasks.task import (
    VECTORS,
    DataSettings,
    Encoder,
    Inputs,
    Standardisation,
    TrainingTask,
)

FILE = "toxicity.npz"
CLASSES = ("not toxic", "toxic")
# The encoder that the file was made with (`tasks.text: describe_encoder`).
ENCODER = Encoder(
    "wordllama",
    "0.4.0.post1",
    128,
    "11af909d010901396a7e683215b5d39fd0ad53649f71b7f01b50563602966452",
)
VALIDATION_SIZE = 2886  # the paper's balanced validation set


def make_toxicity_task(settings: DataSettings) -> TrainingTask:
    """Make the toxicity task; its default model is the paper's head, 128-128-1."""
    return make_vector_task(
        load_toxicity(), settings, TEXT_MODELS, validation_size=VALIDATION_SIZE, is_balanced=True
    )


@cache
def load_toxicity() -> LabelledData:
    """Return the 34,582 rows that ship with covertfl, dequantised; half of them are toxic."""
    path = resources.files("covertfl.data") / FILE
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        features = arrays["features"].astype(np.float32) * arrays["scale"]
        labels = arrays["labels"].astype(np.int64)
        standardisation = Standardisation(arrays["mean"], arrays["deviation"])
    inputs = Inputs(VECTORS, ENCODER, standardisation)
    return label_data(features, labels, CLASSES, inputs)
