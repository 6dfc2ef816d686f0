"""The kernel for stacks of convolutional networks: against a plain loop and the other kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from covertfl.errors import InvalidInput
from covertfl.kernels.job import Examples, LocalJob, LocalOptimizer
from covertfl.kernels.mlp import derive_dropout_key, derive_dropout_keys

pytest.importorskip("torch")
import torch
from torch import nn

from covertfl.kernels.autograd import ModelFactory, TorchKernel
from covertfl.kernels.choose import choose_kernel, draw_weights
from covertfl.kernels.cnn.blocks import describe_network
from covertfl.kernels.cnn.kernel import CnnKernel, fits_cnn_kernel
from covertfl.kernels.cnn.passes import PlainPasses
from covertfl.kernels.weights import Vector
from covertfl.tasks.models import make_mlp, make_paper_cnn, make_small_cnn
from tests.support.plain_loop import OPTIMIZERS, make_images, make_uneven_jobs, train_plainly

IMAGE = (2, 11, 11)


@pytest.fixture(autouse=True)
def _single_threaded() -> Iterator[None]:
    """Products as small as these are slower on several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_plain() -> nn.Module:
    """Two channels, a bare convolution, a pooling that leaves a border out, no dropout."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False),
        nn.ReLU(),
        nn.Conv2d(4, 6, (3, 2)),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(6 * 3 * 4, 9),
        nn.ReLU(),
        nn.Linear(9, 3),
    )


def make_dropping() -> nn.Module:
    """Dropout behind pooling, behind flattening and before a rectifier; pooling of raw values."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 4),
        nn.MaxPool2d(2),
        nn.Dropout(0.4),
        nn.ReLU(),
        nn.Conv2d(4, 5, 2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(45, 8),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(8, 3),
    )


def make_examples(num: int = 60, seed: int = 0) -> Examples:
    return make_images(num, IMAGE, seed)


def make_jobs(make_model: ModelFactory) -> list[LocalJob]:
    return make_uneven_jobs(make_model, (make_examples(), make_examples(seed=5)))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_passes_are_those_of_a_plain_loop(optimizer: str) -> None:
    """Uneven jobs together: with a last batch that is short, with one short batch, with none."""
    options = OPTIMIZERS[optimizer]
    jobs = make_jobs(make_plain)[:6]
    results = CnnKernel(make_plain, "multiclass", options, "cpu").run(jobs)
    for job, result in zip(jobs, results, strict=True):
        plain = train_plainly(make_plain, options, job)
        np.testing.assert_allclose(result, plain, rtol=0.0, atol=1e-5, err_msg=str(job.seed))
    assert np.abs(results[0] - jobs[0].weights).max() > 1e-3


@pytest.mark.parametrize("make_model", [make_plain, make_dropping])
def test_jobs_are_those_of_the_general_kernel(make_model: ModelFactory) -> None:
    """With dropout and gradients: both kernels hash the same masks."""
    jobs, options = make_jobs(make_model), OPTIMIZERS["adamw"]
    one = CnnKernel(make_model, "multiclass", options, "cpu").run(jobs)
    other = TorchKernel(make_model, "multiclass", options).run(jobs)
    for job, result, expected in zip(jobs, one, other, strict=True):
        np.testing.assert_allclose(result, expected, rtol=0.0, atol=1e-5, err_msg=str(job.seed))


def test_the_networks_of_the_images_task() -> None:
    generator = np.random.default_rng(0)
    features = generator.standard_normal((12, 1, 28, 28)).astype(np.float32)
    examples = Examples(features, generator.integers(0, 10, 12))
    for make_model in (make_small_cnn, make_paper_cnn):
        weights = draw_weights(make_model, seed=0)
        job = LocalJob(weights, examples, np.arange(12), 5, 3, "gradient")
        kernel = CnnKernel(make_model, "multiclass", LocalOptimizer(), "cpu")
        expected = TorchKernel(make_model, "multiclass", LocalOptimizer()).run([job])[0]
        np.testing.assert_allclose(kernel.run([job])[0], expected, rtol=0.0, atol=1e-6)


def test_a_gradient_is_that_of_all_rows() -> None:
    job = replace(make_jobs(make_plain)[0], work="gradient")
    kernel = CnnKernel(make_plain, "multiclass", LocalOptimizer(), "cpu")
    first, whole = kernel.run([job, replace(job, batch_size=50)])
    np.testing.assert_allclose(first, whole, rtol=0.0, atol=1e-6)
    assert np.abs(first).max() > 1e-2


def test_dropout_keeps_its_rate_and_scale() -> None:
    network = describe_network(make_dropping(), IMAGE)
    assert network is not None
    block = network.blocks[0]
    ones = torch.ones((3, 200, block.out_height, block.out_width, block.outputs))
    keys = torch.tensor([[1, 2], [3, 4], [1, 2]], dtype=torch.int32)
    values = PlainPasses().finish(block, ones, keys).numpy()
    assert set(np.unique(values)) == {np.float32(0.0), np.float32(1.0 / 0.6)}
    assert abs((values[0] > 0.0).mean() - 0.6) < 0.02
    assert values[0].tobytes() == values[2].tobytes() != values[1].tobytes()
    assert (PlainPasses().finish(block, ones, None) == 1.0).all()


def test_same_seed_same_bytes() -> None:
    kernel = CnnKernel(make_dropping, "multiclass", LocalOptimizer(), "cpu")
    job = make_jobs(make_dropping)[0]
    first, other = kernel.run([job, replace(job, seed=99)])
    assert first.tobytes() == kernel.run([job, replace(job, seed=99)])[0].tobytes()
    assert first.tobytes() != other.tobytes()


def test_keys_of_many_steps_are_those_of_each() -> None:
    seeds = np.array([0, 5, 2**63 - 1], dtype=np.uint64)
    steps = np.array([0, 7, 2**31], dtype=np.uint64)
    keys = derive_dropout_keys(seeds, steps)
    expected = [
        derive_dropout_key(int(seed), int(step)) for seed, step in zip(seeds, steps, strict=True)
    ]
    assert keys.tolist() == [list(key) for key in expected]


def make_chains() -> list[list[LocalJob]]:
    jobs = make_jobs(make_dropping)
    return [[jobs[0], jobs[3], jobs[4]], [jobs[1]], [jobs[3], jobs[2], jobs[0]], [jobs[2]]]


def test_a_chain_is_its_jobs_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a stack takes only two of them, and steps are prepared two by two."""
    monkeypatch.setattr("covertfl.kernels.cnn.kernel._STACKED_JOBS", 2)
    monkeypatch.setattr("covertfl.kernels.cnn.kernel._TABLE_STEPS", 2)
    kernel = CnnKernel(make_dropping, "multiclass", OPTIMIZERS["adam"], "cpu")
    for chain, result in zip(make_chains(), kernel.run_chains(make_chains()), strict=True):
        weights = chain[0].weights
        for job in chain:
            weights = kernel.run([replace(job, weights=weights)])[0]
        np.testing.assert_allclose(result, weights, rtol=0.0, atol=1e-5)


def test_momentum_begins_anew_in_every_job_of_a_chain() -> None:
    kernel = CnnKernel(make_dropping, "multiclass", OPTIMIZERS["momentum"], "cpu")
    chain = make_chains()[0]
    middle = kernel.run_chains([chain[:2]])[0]
    expected = kernel.run([replace(chain[2], weights=middle)])[0]
    np.testing.assert_allclose(kernel.run_chains([chain])[0], expected, rtol=0.0, atol=1e-6)


def test_a_mean_is_that_of_its_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of weights and of gradients, by numbers of rows, also where a stack takes only two jobs."""
    monkeypatch.setattr("covertfl.kernels.cnn.kernel._STACKED_JOBS", 2)
    kernel = CnnKernel(make_dropping, "multiclass", OPTIMIZERS["adam"], "cpu")
    jobs = make_jobs(make_dropping)
    groups = [jobs[:3], [jobs[4], jobs[0], jobs[3]], jobs[6:8]]
    for group, mean in zip(groups, kernel.average_jobs(groups), strict=True):
        rows = [len(job.rows) for job in group]
        expected = np.average(np.stack(kernel.run(group)), axis=0, weights=rows)
        np.testing.assert_allclose(mean, expected, rtol=0.0, atol=1e-6)
    with pytest.raises(InvalidInput, match="at least one example"):
        kernel.average_jobs([jobs[:1], [jobs[2]]])


def count_right(kernel: CnnKernel, weights: Vector, examples: Examples) -> float:
    outputs = kernel.predict(weights, examples.features)
    return float((outputs.argmax(axis=1) == examples.labels).mean())


@pytest.mark.parametrize("enough", [1, 2, 64])
def test_ratings_are_those_of_weights_on_the_way(
    enough: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("covertfl.kernels.cnn.ratings._ENOUGH", enough)
    kernel = CnnKernel(make_dropping, "multiclass", OPTIMIZERS["sgd"], "cpu")
    coarse, full = make_examples(200, seed=9), make_examples(300, seed=10)
    chains, stops = make_chains(), [(0, 1, 3), (1,), (1, 2, 3), (0, 1)]
    for chain, places, found in zip(
        chains, stops, kernel.rate_chains(chains, stops, coarse=coarse, full=full), strict=True
    ):
        held = [
            kernel.run_chains([chain[:stop]])[0] if stop else chain[0].weights for stop in places
        ]
        expected = [count_right(kernel, weights, coarse) for weights in held]
        np.testing.assert_allclose(found.coarse, expected, atol=0.006)
        best = int(found.coarse.argmax())
        assert found.best == pytest.approx(count_right(kernel, held[best], full), abs=0.004)
        assert found.last == pytest.approx(count_right(kernel, held[-1], full), abs=0.004)


def test_chains_that_cannot_be_rated() -> None:
    kernel = CnnKernel(make_dropping, "multiclass", OPTIMIZERS["sgd"], "cpu")
    chain, examples = make_chains()[0], make_examples()
    for stops in ((), (4,)):
        with pytest.raises(InvalidInput, match="stops on its way"):
            kernel.rate_chains([chain], [stops], coarse=examples, full=examples)
    gradient = [replace(chain[0], work="gradient")]
    with pytest.raises(InvalidInput, match="must train"):
        kernel.rate_chains([gradient], [(1,)], coarse=examples, full=examples)


@pytest.mark.parametrize("steps", [1, 2])
def test_pieces_of_a_gradient_make_the_whole(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [job for job in make_jobs(make_dropping) if job.work == "gradient"]
    kernel = CnnKernel(make_dropping, "multiclass", LocalOptimizer(), "cpu")
    whole = kernel.run(jobs)
    monkeypatch.setattr("covertfl.kernels.cnn.kernel._PIECE_STEPS", steps)
    monkeypatch.setattr("covertfl.kernels.cnn.kernel._STACKED_JOBS", 3)
    for one, other in zip(whole, kernel.run(jobs), strict=True):
        np.testing.assert_allclose(one, other, rtol=0.0, atol=1e-7)
    assert np.abs(whole[0]).max() > 1e-3


def test_a_binary_loss_worked_by_hand() -> None:
    """All weights 0 but the last bias: the slope of that bias is 1/2 - label, on average."""

    def make_binary() -> nn.Module:
        return nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(243, 1))

    labels = np.array([1, 0, 0, 0], dtype=np.float32)
    examples = Examples(make_examples(4).features, labels)
    size = draw_weights(make_binary, seed=0).size
    job = LocalJob(np.zeros(size, np.float32), examples, np.arange(4), 3, 0, "gradient")
    kernel = CnnKernel(make_binary, "binary", LocalOptimizer(), "cpu")
    gradient = kernel.run([job])[0]
    np.testing.assert_allclose(gradient[-1], 0.25, atol=1e-7)
    assert not gradient[:-1].any()
    still = replace(job, rows=job.rows[:0], work="train")
    (rated,) = kernel.rate_chains([[still]], [(0, 1)], coarse=examples, full=examples)
    assert rated.coarse.tolist() == [0.75, 0.75] and rated.best == rated.last == 0.75


def test_what_is_not_finite_stays_with_its_job() -> None:
    kernel = CnnKernel(make_plain, "multiclass", LocalOptimizer(), "cpu")
    job = replace(make_jobs(make_plain)[0], rows=np.arange(1, 30))
    features = job.examples.features.copy()
    features[0] = np.nan
    examples = Examples(features, job.examples.labels)
    clean, spoiled = kernel.run(
        [replace(job, examples=examples), replace(job, examples=examples, rows=np.arange(30))]
    )
    assert np.isfinite(clean).all()
    assert not np.isfinite(spoiled).all()


def test_predictions_have_no_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covertfl.kernels.cnn.kernel._PREDICT_ROWS", 25)
    monkeypatch.setattr("covertfl.kernels.cnn.kernel._PREDICTED_WEIGHTS", 2)
    kernel = CnnKernel(make_dropping, "multiclass", LocalOptimizer(), "cpu")
    features = make_examples().features
    weights = [draw_weights(make_dropping, seed=seed) for seed in range(3)]
    found = kernel.predict_many(weights, features)
    for vector, outputs in zip(weights, found, strict=True):
        module = make_dropping().eval()
        nn.utils.vector_to_parameters(torch.tensor(vector), module.parameters())
        expected = module(torch.tensor(features)).detach().numpy()
        np.testing.assert_allclose(outputs, expected, atol=1e-5)
        np.testing.assert_allclose(kernel.predict(vector, features), expected, atol=1e-5)
    assert kernel.predict(weights[0], features[:0]).shape == (0, 3)


def test_no_jobs_and_inputs_left_alone() -> None:
    kernel = CnnKernel(make_plain, "multiclass", LocalOptimizer(), "cpu")
    assert kernel.run([]) == []
    job = make_jobs(make_plain)[0]
    before = job.weights.copy()
    job.weights.flags.writeable = False
    empty = replace(job, rows=np.zeros(0, dtype=np.int64))
    kept, zero, _ = kernel.run([empty, replace(empty, work="gradient"), job])
    assert kept.tobytes() == before.tobytes() == job.weights.tobytes()
    assert not np.shares_memory(kept, job.weights)
    assert not zero.any()


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(2 * 8 * 8, 3)],
        [nn.Conv2d(1, 2, 3, stride=2), nn.Flatten(), nn.Linear(2 * 3 * 3, 3)],
        [nn.Conv2d(1, 2, 3), nn.GELU(), nn.Flatten(), nn.Linear(72, 3)],
        [nn.Conv2d(1, 2, 3), nn.Dropout(1.0), nn.Flatten(), nn.Linear(72, 3)],
        [nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(50, 3)],
        [nn.Conv2d(1, 2, 3), nn.Dropout(0.1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 3)],
        [nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 3), nn.ReLU()],
        [nn.ReLU(), nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 3)],
    ],
)
def test_other_networks_are_left_to_the_general_kernel(layers: list[nn.Module]) -> None:
    assert not fits_cnn_kernel(nn.Sequential(*layers))
    assert describe_network(nn.Sequential(*layers), (1, 8, 8)) is None


def test_which_networks_fit() -> None:
    assert fits_cnn_kernel(make_small_cnn()) and fits_cnn_kernel(make_paper_cnn())
    assert fits_cnn_kernel(make_plain()) and fits_cnn_kernel(make_dropping())
    assert not fits_cnn_kernel(make_mlp(4, 2))
    kernel = choose_kernel(make_small_cnn, "multiclass", LocalOptimizer())
    assert isinstance(kernel, TorchKernel)


def test_bad_jobs_are_refused() -> None:
    kernel = CnnKernel(make_plain, "multiclass", LocalOptimizer(), "cpu")
    job = make_jobs(make_plain)[0]
    features = job.examples.features
    wide: npt.NDArray[np.float32] = np.zeros((60, 2, 40, 40), np.float32)
    cases = [
        (replace(job, weights=job.weights[:-1]), "weights must be a vector"),
        (replace(job, rows=np.array([60])), "rows must lie between 0 and 59"),
        (replace(job, batch_size=0), "batch_size must be at least 1"),
        (replace(job, examples=Examples(features, np.full(60, 3))), "labels must lie"),
        (replace(job, examples=Examples(wide, job.examples.labels)), "images that fit the model"),
    ]
    for case, message in cases:
        with pytest.raises(InvalidInput, match=message):
            kernel.run([case])
    with pytest.raises(InvalidInput, match="at least one job"):
        kernel.run_chains([[]])
    with pytest.raises(InvalidInput, match="must train"):
        kernel.run_chains([[job, replace(job, work="gradient")]])
    with pytest.raises(InvalidInput, match="one batch size"):
        kernel.run_chains([[job, replace(job, batch_size=3)]])
    with pytest.raises(InvalidInput, match="one output"):
        binary = replace(job, examples=Examples(features, np.zeros(60, np.float32)))
        CnnKernel(make_plain, "binary", LocalOptimizer(), "cpu").run([binary])
    with pytest.raises(InvalidInput, match="precision must be tf32 or float32"):
        CnnKernel(make_plain, "binary", LocalOptimizer(), "cpu", precision="half")  # type: ignore[arg-type]


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("make_model", [make_plain, make_dropping])
def test_a_gpu_agrees_with_the_cpu(make_model: ModelFactory, optimizer: str) -> None:
    jobs, options = make_jobs(make_model), OPTIMIZERS[optimizer]
    found = CnnKernel(make_model, "multiclass", options, "cuda", precision="float32").run(jobs)
    plain = CnnKernel(make_model, "multiclass", options, "cpu").run(jobs)
    for job, one, other in zip(jobs, found, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=0.0, atol=2e-5, err_msg=str(job.seed))


@needs_gpu
@pytest.mark.parametrize("precision", ["tf32", "float32"])
def test_bits_of_a_gpu_depend_on_the_job_alone(precision: str) -> None:
    jobs = make_jobs(make_dropping)
    kernel = CnnKernel(make_dropping, "multiclass", LocalOptimizer(), precision=precision)  # type: ignore[arg-type]
    first, again = kernel.run(jobs), kernel.run(jobs[::-1])[::-1]
    for job, one, two in zip(jobs, first, again, strict=True):
        assert one.tobytes() == two.tobytes() == kernel.run([job])[0].tobytes()


@needs_gpu
def test_means_and_ratings_of_a_gpu_depend_on_their_group_alone() -> None:
    jobs, held_out = make_jobs(make_dropping), make_examples(200, seed=9)
    kernel = CnnKernel(make_dropping, "multiclass", LocalOptimizer())
    groups = [jobs[:2], jobs[3:5], jobs[6:8]]
    together = kernel.average_jobs(groups)
    for group, mean in zip(groups, together, strict=True):
        assert mean.tobytes() == kernel.average_jobs([group])[0].tobytes()
        rows = [len(job.rows) for job in group]
        expected = np.average(np.stack(kernel.run(group)), axis=0, weights=rows)
        np.testing.assert_allclose(mean, expected, rtol=1e-6, atol=1e-9)
    chains, stops = make_chains(), [(0, 1, 3), (1,), (1, 2, 3), (0, 1)]
    rated = kernel.rate_chains(chains, stops, coarse=held_out, full=held_out)
    for chain, places, found in zip(chains, stops, rated, strict=True):
        (alone,) = kernel.rate_chains([chain], [places], coarse=held_out, full=held_out)
        assert found.coarse.tolist() == alone.coarse.tolist()
        assert (found.best, found.last) == (alone.best, alone.last)
        assert found.best == found.coarse.max()


@needs_gpu
def test_shortened_products_are_close() -> None:
    job = replace(make_jobs(make_plain)[0], work="gradient")
    short = CnnKernel(make_plain, "multiclass", LocalOptimizer()).run([job])[0]
    exact = CnnKernel(make_plain, "multiclass", LocalOptimizer(), "cpu").run([job])[0]
    assert np.linalg.norm(short - exact) < 0.02 * np.linalg.norm(exact)
    assert isinstance(choose_kernel(make_plain, "multiclass", LocalOptimizer(), "cuda"), CnnKernel)
