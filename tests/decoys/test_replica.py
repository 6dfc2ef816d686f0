"""Replicas: an exact group of images, and flips that decoys need."""

from __future__ import annotations

import numpy as np
import pytest
from covertfl.decoys.replica import Replicas
from hypothesis import given, strategies as st

from covertfl.errors import InvalidInput
from covertfl.kernels.job import Examples, LocalJob, LocalOptimizer
from covertfl.kernels.weights import Layout
from covertfl.schemes.flips import draw_generators, span

LAYOUT = Layout(("0.weight", "0.bias", "2.weight", "2.bias"), ((3, 6), (3,), (1, 3), (1,)))


def make_replicas(count: int = 2, choice: int = 0) -> Replicas:
    generator = np.random.default_rng(5)
    flips = draw_generators(np.ones(6, dtype=bool), count, generator=generator)
    return Replicas(LAYOUT, "0.weight", span(flips), choice)


def draw_vector(seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.random.default_rng(seed).normal(size=LAYOUT.size).astype(np.float32)


@given(count=st.integers(1, 3), seed=st.integers(0, 1000))
def test_images_form_a_group(count: int, seed: int) -> None:
    replicas, weights = make_replicas(count), draw_vector(seed)
    for one in range(replicas.size):
        image = replicas.reflect(weights, one)
        assert np.array_equal(replicas.reflect(image, one), weights)
        for other in range(replicas.size):
            twice = replicas.reflect(image, other)
            assert np.array_equal(twice, replicas.reflect(weights, one ^ other))


def test_an_image_flips_columns_of_the_pivot_and_nothing_else() -> None:
    replicas, weights = make_replicas(1), draw_vector()
    parts, image = LAYOUT.split(weights), LAYOUT.split(replicas.reflect(weights, 1))
    np.testing.assert_array_equal(image["0.weight"], parts["0.weight"] * replicas.signs[1])
    for name in LAYOUT.names[1:]:
        np.testing.assert_array_equal(image[name], parts[name])


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("work", ["train", "gradient"])
def test_training_on_reflected_inputs_gives_the_image_to_the_bit(optimizer: str, work: str) -> None:
    torch = pytest.importorskip("torch")
    from torch import nn

    from covertfl.kernels.choose import choose_kernel, draw_weights

    def make_model() -> nn.Sequential:
        return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Dropout(0.2), nn.Linear(5, 1))

    options = LocalOptimizer(optimizer, lr=0.05, weight_decay=0.01)  # type: ignore[arg-type]
    for maker in (make_model, lambda: nn.Sequential(*make_model(), nn.Identity())):
        kernel = choose_kernel(maker, "binary", options)  # by hand-written loops, and by autograd
        generator = np.random.default_rng(0)
        features = generator.normal(size=(40, 6)).astype(np.float32)
        labels = (features[:, 0] > 0.0).astype(np.float32)
        weights = draw_weights(maker, seed=1)
        signs = span(draw_generators(np.ones(6, dtype=bool), 1, generator=generator))
        replicas = Replicas(kernel.layout, "0.weight", signs, 0)
        rows = generator.permutation(40)
        [result] = kernel.run([LocalJob(weights, Examples(features, labels), rows, 8, 3, work)])  # type: ignore[arg-type]
        reflected = Examples(features * signs[1], labels)
        start = replicas.reflect(weights, 1)
        [image] = kernel.run([LocalJob(start, reflected, rows, 8, 3, work)])  # type: ignore[arg-type]
        assert np.array_equal(image, replicas.reflect(result, 1))
    assert torch.get_num_threads() > 0


def test_the_truth_is_in_the_slot_of_the_choice() -> None:
    drawn = draw_vector()
    for choice in range(4):
        replicas = make_replicas(2, choice)
        assert replicas.find_trajectory(choice) == 0
        true = replicas.start(drawn)
        for slot in range(4):
            trajectory = replicas.find_trajectory(slot)
            shown = replicas.reflect(true, trajectory)
            # What a slot shows does not depend on the choice.
            assert np.array_equal(shown, make_replicas(2, 0).reflect(drawn, slot))
            # Replies are taken back to the truth in place, one or many, also none.
            assert np.array_equal(replicas.restore(shown, trajectory), true)
            assert np.array_equal(shown, true)
    nothing = np.empty((0, LAYOUT.size), dtype=np.float32)
    assert replicas.restore(nothing, 1).shape == nothing.shape


@given(axes=st.integers(1, 12), count=st.integers(1, 3), seed=st.integers(0, 500))
def test_generators_flip_free_axes_only_and_generate_a_group(
    axes: int, count: int, seed: int
) -> None:
    free = np.random.default_rng(seed).random(12) < axes / 12
    generator = np.random.default_rng(seed)
    if free.sum() < count:
        with pytest.raises(InvalidInput, match=f"at least {count} axes"):
            draw_generators(free, count, generator=generator)
        return
    flips = draw_generators(free, count, generator=generator)
    signs = span(flips)
    assert np.all(signs[:, ~free] == 1.0)
    assert len(np.unique(signs, axis=0)) == 2**count
    for one in range(2**count):
        for other in range(2**count):
            np.testing.assert_array_equal(signs[one] * signs[other], signs[one ^ other])


def make_known(rows: int = 800, axes: int = 24) -> Examples:
    generator = np.random.default_rng(4)
    labels = (np.arange(rows) % 2).astype(np.float32)
    features = generator.normal(size=(rows, axes))
    features += 0.6 * labels[:, np.newaxis] * generator.normal(size=axes)
    return Examples(features.astype(np.float32), labels)


def separate(known: Examples, signs: np.ndarray[tuple[int], np.dtype[np.float32]]) -> float:
    """Distance of the classes' means along the reflected difference of the means itself."""
    positive = known.features[known.labels == 1.0].mean(axis=0)
    difference = positive - known.features[known.labels == 0.0].mean(axis=0)
    return abs(float(difference @ (difference * signs)) / float(difference @ difference))


def test_labelled_rows_of_the_server_choose_flips_that_hide_the_classes() -> None:
    known, free = make_known(), np.ones(24, dtype=bool)
    drawn: list[float] = []
    chosen: list[float] = []
    for seed in range(20):
        for found, rows in ((drawn, None), (chosen, known)):
            generator = np.random.default_rng(seed)
            flips = draw_generators(free, 2, generator=generator, known=rows)
            found += [separate(known, signs) for signs in span(flips)[1:]]
    assert np.mean(chosen) < 0.6 * np.mean(drawn)


def test_the_choice_of_flips_does_not_depend_on_the_frame() -> None:
    """Reflecting all labelled rows leaves the flips as they are: the theorem needs this."""
    known, free = make_known(), np.ones(24, dtype=bool)
    signs = np.where(np.random.default_rng(8).random(24) < 0.5, -1.0, 1.0).astype(np.float32)
    public = np.random.default_rng(9).gamma(2.0, size=(300, 24)).astype(np.float32) - 2.0
    one, other = (
        draw_generators(
            free,
            3,
            generator=np.random.default_rng(2),
            known=Examples(known.features * flipped, known.labels),
            public=public * flipped,
        )
        for flipped in (np.ones_like(signs), signs)
    )
    np.testing.assert_array_equal(one, other)


def test_flips_leave_the_shape_of_answers_on_the_public_set_alone() -> None:
    """Public inputs are skewed in half of the axes: those are flipped less."""
    known, free = make_known(), np.ones(24, dtype=bool)
    generator = np.random.default_rng(7)
    public = generator.normal(size=(800, 24)).astype(np.float32)
    weights = known.features[known.labels == 1.0].mean(axis=0)
    weights -= known.features[known.labels == 0.0].mean(axis=0)
    public[:, ::2] = np.sign(weights[::2]) * (generator.exponential(size=(800, 12)) - 1.0)

    def skew(signs: np.ndarray[tuple[int], np.dtype[np.float32]]) -> float:
        outputs = public @ (weights * signs)
        return float(np.mean(((outputs - outputs.mean()) / outputs.std()) ** 3))

    plain = np.ones(24, dtype=np.float32)
    changes: dict[bool, list[float]] = {False: [], True: []}
    for seed in range(12):
        for uses, found in changes.items():
            [flips] = draw_generators(
                free,
                1,
                generator=np.random.default_rng(seed),
                known=known,
                public=public if uses else None,
            )
            found.append(abs(skew(flips) - skew(plain)))
    assert np.mean(changes[True]) < 0.7 * np.mean(changes[False])


def test_fewer_trajectories_have_a_subgroup() -> None:
    free = np.ones(24, dtype=bool)
    flips = [
        draw_generators(free, count, generator=np.random.default_rng(2), known=make_known())
        for count in (1, 2, 3)
    ]
    np.testing.assert_array_equal(flips[0], flips[2][:1])
    np.testing.assert_array_equal(flips[1], flips[2][:2])


def test_a_zero_has_the_same_sign_in_all_images() -> None:
    """A weight that is exactly zero, as of a column that never moves, must not name the truth."""
    replicas, weights = make_replicas(2), draw_vector()
    weights[:4], weights[4:8] = 0.0, -0.0
    for trajectory in range(4):
        image = replicas.reflect(weights, trajectory)
        assert not np.signbit(image[:8]).any()
