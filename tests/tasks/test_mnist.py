"""MNIST: finding and checking its files, division, models."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import struct
import urllib.request
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest

from covertfl.errors import InvalidInput, Missing
from covertfl.tasks import mnist
from covertfl.tasks.models import make_paper_cnn, make_small_cnn
from covertfl.tasks.task import DataSettings

NAME = "t10k-labels-idx1-ubyte.gz"
FOLDER = Path(os.environ.get("COVERTFL_DATA", ".")) / "mnist"
needs_files = pytest.mark.skipif(
    not all((FOLDER / name).is_file() for name in mnist.MD5),
    reason="COVERTFL_DATA has no mnist folder with the four files",
)


def make_idx(shape: tuple[int, ...], content: bytes) -> bytes:
    head = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
    return gzip.compress(head + content)


@pytest.fixture
def fake_file(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A file of three labels that passes for the official one."""
    content = make_idx((3,), b"\x01\x02\x03")
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    monkeypatch.setattr(mnist, "MD5", {NAME: digest})
    return content


def test_idx_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "some.gz").write_bytes(make_idx((2, 1, 3), bytes(range(6))))
    assert mnist.read_idx(tmp_path / "some.gz").tolist() == [[[0, 1, 2]], [[3, 4, 5]]]


@pytest.mark.parametrize(
    "content",
    [
        b"not gzip",
        gzip.compress(b""),
        make_idx((4,), b"abc"),
        gzip.compress(b"\x00\x00\x0d\x01\x00\x00\x00\x01a"),
        make_idx((3,), b"abc")[:-9],
    ],
    ids=["not gzip", "nothing in it", "too short", "other numbers", "cut off"],
)
def test_bad_idx_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "some.gz").write_bytes(content)
    with pytest.raises(InvalidInput, match=r"some\.gz (cannot be read as a gzipped|is not an) idx"):
        mnist.read_idx(tmp_path / "some.gz")


def test_file_is_taken_from_the_first_folder_that_has_it(tmp_path: Path, fake_file: bytes) -> None:
    second = tmp_path / "second"
    second.mkdir()
    (second / NAME).write_bytes(fake_file)
    assert mnist.find_file(NAME, [tmp_path / "first", second, tmp_path]) == second / NAME


def test_file_with_another_checksum_is_refused(tmp_path: Path, fake_file: bytes) -> None:
    (tmp_path / NAME).write_bytes(fake_file + b" ")
    with pytest.raises(InvalidInput, match=f"{NAME} is not MNIST's .* md5 must be"):
        mnist.find_file(NAME, [tmp_path])


def test_missing_file_is_downloaded_once(
    tmp_path: Path, fake_file: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answer(address: str, timeout: float) -> io.BytesIO:
        asked.append(address)
        # the first address has the wrong file, the second the right one
        return io.BytesIO(b"moved" if len(asked) == 1 else fake_file)

    monkeypatch.setattr(urllib.request, "urlopen", answer)
    cache = tmp_path / "cache" / "mnist"
    for _ in range(2):
        path = mnist.find_file(NAME, [tmp_path, cache])
        assert path == cache / NAME
        assert path.read_bytes() == fake_file
    assert asked == [address + NAME for address in mnist.ADDRESSES]


def test_no_network_gives_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(address: str, timeout: float) -> io.BytesIO:
        raise URLError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", fail)
    monkeypatch.setenv("HOME", os.fspath(tmp_path))
    monkeypatch.setenv("COVERTFL_DATA", os.fspath(tmp_path / "data"))
    with pytest.raises(Missing, match=r"put the four official files .* into .*COVERTFL_DATA"):
        mnist.make_mnist_task(DataSettings(task="mnist"))


def test_folders_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    cache = Path("/home/somebody/.cache/covertfl/mnist")
    monkeypatch.setenv("COVERTFL_DATA", "/data")
    assert mnist.list_folders("/mine") == [Path("/mine"), Path("/data/mnist"), cache]
    monkeypatch.delenv("COVERTFL_DATA")
    assert mnist.list_folders(None) == [cache]


def test_unknown_model_is_refused() -> None:
    with pytest.raises(
        InvalidInput, match="small-cnn, paper-cnn, mlp or logistic with task = mnist, got big"
    ):
        mnist.make_mnist_task(DataSettings(task="mnist", model="big"))


def test_networks_are_as_described() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    layers = (5 * 5 * 32 + 32, 25 * 32 * 32 + 32, 25 * 32 * 64 + 64, 576 * 256 + 256, 2570)
    for make, size in ((make_paper_cnn, sum(layers)), (make_small_cnn, 208 + 3216 + 2570)):
        network = make().eval()
        assert sum(parameter.numel() for parameter in network.parameters()) == size
        assert network(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.slow
@needs_files
def test_task_has_training_images_and_balanced_test_images() -> None:
    settings = DataSettings(
        task="mnist", public_classes=2, public_class_share=0.99, public_size=0.4
    )
    task = mnist.make_mnist_task(settings)
    assert task.train.features.shape == (60_000, 1, 28, 28)
    assert task.num_examples + len(task.public) == 60_000
    assert np.bincount(task.validation.labels).tolist() == [892] * 10
    counts = np.sort(np.bincount(task.public.labels, minlength=10))
    assert counts[-2:].sum() == pytest.approx(0.99 * counts.sum(), abs=1)
    assert abs(float(task.train.features.mean())) < 1e-3
    assert float(task.train.features.std()) == pytest.approx(1.0, abs=1e-3)


@needs_files
def test_shapes_fit_the_models_and_share_their_pixels() -> None:
    image = mnist.make_mnist_task(DataSettings(task="mnist", seed=1))
    flat = mnist.make_mnist_task(DataSettings(task="mnist", model="logistic"))
    again = mnist.make_mnist_task(DataSettings(task="mnist", seed=2))
    assert flat.train.features.shape == (60_000, 784)
    assert flat.validation.features.shape == (8920, 784)
    assert np.shares_memory(image.train.features, flat.train.features)
    assert image.train is again.train
