"""The digits task, and through it tasks with many classes."""

from __future__ import annotations

import numpy as np
import pytest

from covertfl.tasks.digits import load_digits, make_digits_task
from covertfl.tasks.task import DataSettings, DirichletSplit

pytest.importorskip("sklearn", reason="scikit-learn is not installed")


def test_all_digits_are_used() -> None:
    task = make_digits_task(DataSettings(task="digits", clients=8, seed=2))
    assert task.loss == "multiclass"
    assert task.train.labels.dtype == np.int64
    assert np.bincount(task.validation.labels).tolist() == [30] * 10
    assert task.num_examples + len(task.public) + len(task.validation) == 1797
    features = load_digits().examples.features
    assert (features.min(), features.max(), features.shape) == (0.0, 1.0, (1797, 64))


def test_good_classes_fill_the_public_set() -> None:
    settings = DataSettings(task="digits", clients=10, public_classes=3, public_class_share=0.9)
    counts = np.sort(np.bincount(make_digits_task(settings).public.labels, minlength=10))
    assert counts[-3:].sum() == pytest.approx(0.9 * counts.sum(), abs=1)
    assert counts[-3] > 5 * counts[-4]


def test_good_classes_are_drawn_by_the_seed() -> None:
    good = set()
    for seed in range(12):
        settings = DataSettings(task="digits", seed=seed, public_classes=1, public_class_share=1.0)
        (digit,) = np.unique(make_digits_task(settings).public.labels)
        good.add(int(digit))
    assert len(good) > 3


def test_clients_stay_the_same_whatever_is_public() -> None:
    first = make_digits_task(DataSettings(task="digits", same_clients=True))
    second = make_digits_task(
        DataSettings(
            task="digits",
            same_clients=True,
            public_size=0.4,
            public_classes=2,
            public_class_share=0.99,
        )
    )
    for part, same in zip(first.clients, second.clients, strict=True):
        np.testing.assert_array_equal(part, same)


def test_dirichlet_split_makes_clients_differ() -> None:
    task = make_digits_task(
        DataSettings(task="digits", clients=5, split=DirichletSplit(dirichlet=0.1))
    )
    largest = [np.bincount(task.train.labels[rows]).max() / len(rows) for rows in task.clients]
    assert np.mean(largest) > 0.3


@pytest.mark.parametrize(
    ("model", "size", "shape"),
    [
        (None, 64 * 200 + 200 + 2010, (64,)),
        ("logistic", 650, (64,)),
        ("digit-cnn", (72 + 8) + (1152 + 16) + 650, (1, 8, 8)),
    ],
)
def test_models(model: str | None, size: int, shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    task = make_digits_task(DataSettings(task="digits", model=model))
    network = task.make_model()
    assert sum(parameter.numel() for parameter in network.parameters()) == size
    assert task.train.features.shape[1:] == task.public.features.shape[1:] == shape
    assert network(torch.zeros(2, *shape)).shape == (2, 10)
    np.testing.assert_array_equal(
        task.train.features.reshape(-1, 64), load_digits().examples.features
    )
