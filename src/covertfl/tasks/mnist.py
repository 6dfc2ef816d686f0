"""MNIST, the paper's image benchmark (Appendix A).

The four official files are looked up in the folder that the settings name, in the folder `mnist` of
the environment variable COVERTFL_DATA, and in ~/.cache/covertfl/mnist, where missing ones are
downloaded to.  Their checksums are verified.  Clients and public set hold the 60,000 training
images; the validation set is a balanced part of the 10,000 test images.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from covertfl.errors import InvalidInput, Missing
from covertfl.files.disk import read_bytes, write_atomically
from covertfl.tasks.data import LabelledData, label_data, make_labelled_task
from covertfl.tasks.models import CONVOLUTIONS, choose_image_model
from covertfl.tasks.task import DataSettings, Inputs, Standardisation, TrainingTask

MD5: Mapping[str, str] = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
ADDRESSES = "http://yann.lecun.com/exdb/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/"
TIMEOUT = 30.0  # seconds
IMAGE: tuple[int, ...] = (1, 28, 28)
CLASSES = 10
DIGITS = tuple(str(digit) for digit in range(CLASSES))
# The usual constants, published with the data: those of the training images, pixels in [0, 1].
PIXEL_MEAN, PIXEL_DEVIATION = 0.1307, 0.3081
INPUTS = Inputs(
    "pixels of an image of 28 x 28, divided by 255, in [0, 1]",
    standardisation=Standardisation(np.array([PIXEL_MEAN]), np.array([PIXEL_DEVIATION])),
)
VALIDATION_SEED = 0  # of the choice of test images for the balanced validation set


def make_mnist_task(settings: DataSettings) -> TrainingTask:
    """Make the MNIST task; models are small-cnn (default), paper-cnn, mlp and logistic."""
    name = settings.model or next(iter(CONVOLUTIONS))
    make_model, shape = choose_image_model(CONVOLUTIONS, name, settings.task, IMAGE, CLASSES)
    data, validation = load_mnist(settings.path, shape)
    return make_labelled_task(
        data,
        settings,
        make_model,
        validation_size=0,
        validation=validation.examples,
        is_balanced=True,
    )


def load_mnist(
    path: str | None = None, shape: tuple[int, ...] = IMAGE
) -> tuple[LabelledData, LabelledData]:
    """Return the training images and the balanced part of the test images, standardised."""
    return _load_shaped(tuple(os.fspath(folder) for folder in list_folders(path)), shape)


def list_folders(path: str | None) -> list[Path]:
    """Return the folders to search; downloads go to the last."""
    folders = [] if path is None else [Path(path)]
    if os.environ.get("COVERTFL_DATA"):
        folders.append(Path(os.environ["COVERTFL_DATA"]) / "mnist")
    return [*folders, Path.home() / ".cache" / "covertfl" / "mnist"]


def find_file(name: str, folders: list[Path]) -> Path:
    """Return the path of a file, verified, and downloaded if no folder has it."""
    for folder in folders:
        path = folder / name
        if path.is_file():
            _verify(path.read_bytes(), name, os.fspath(path))
            return path
    return _download(name, folders[-1])


@lru_cache(maxsize=2)
def _load_shaped(
    folders: tuple[str, ...], shape: tuple[int, ...]
) -> tuple[LabelledData, LabelledData]:
    """Return data sets with images of a shape; cached, and views of the same pixels."""
    train, validation = _load(folders)
    return train.reshape(shape), validation.reshape(shape)


@lru_cache(maxsize=1)
def _load(folders: tuple[str, ...]) -> tuple[LabelledData, LabelledData]:
    paths = {name: find_file(name, [Path(folder) for folder in folders]) for name in MD5}
    arrays = {name: read_idx(path) for name, path in paths.items()}
    train_images, train_labels, test_images, test_labels = (arrays[name] for name in MD5)
    rows = _balance(test_labels)
    return _prepare(train_images, train_labels), _prepare(test_images[rows], test_labels[rows])


def _balance(labels: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Return equally many rows of every digit, the same in every run."""
    generator = np.random.default_rng(VALIDATION_SEED)
    each = int(np.bincount(labels).min())
    digits = (np.flatnonzero(labels == digit) for digit in range(CLASSES))
    return np.sort(np.concatenate([generator.permutation(rows)[:each] for rows in digits]))


def _prepare(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]) -> LabelledData:
    pixels = images.reshape(len(images), -1).astype(np.float32)
    pixels /= np.float32(255.0)
    pixels -= np.float32(PIXEL_MEAN)
    pixels /= np.float32(PIXEL_DEVIATION)
    return label_data(pixels, labels.astype(np.int64), DIGITS, INPUTS)


def read_idx(path: str | os.PathLike[str]) -> npt.NDArray[np.uint8]:
    """Return the bytes of a gzipped idx file, in the shape given by its header."""
    name = os.fspath(path)
    try:
        content = gzip.decompress(read_bytes(path, "a gzipped idx file"))
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInput(f"{name} cannot be read as a gzipped idx file: {error}") from error
    dimensions = content[3] if len(content) >= 4 else 0
    start = 4 + 4 * dimensions
    shape = tuple(np.frombuffer(content[4:start], dtype=">u4").tolist())
    if content[:3] != b"\x00\x00\x08" or len(content) - start != np.prod(shape, dtype=np.int64):
        raise InvalidInput(f"{name} is not an idx file of unsigned bytes")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def _verify(content: bytes, name: str, origin: str) -> None:
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if digest != MD5[name]:
        raise InvalidInput(
            f"{origin} is not MNIST's {name}: its md5 must be {MD5[name]}, got {digest}"
        )


def _download(name: str, folder: Path) -> Path:
    """Download a file from the first address that has it."""
    from urllib.error import URLError
    from urllib.request import urlopen

    for address in ADDRESSES:
        try:
            with urlopen(address + name, timeout=TIMEOUT) as response:
                content = response.read()
            _verify(content, name, address + name)
        except (URLError, OSError, InvalidInput):
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(f"{folder} cannot be created: {error.strerror}") from error
        write_atomically(folder / name, content)
        return folder / name
    raise Missing(
        f"MNIST's {name} was not found and cannot be downloaded: put the four official files "
        f"({', '.join(MD5)}) into {folder}, or into the folder mnist of COVERTFL_DATA"
    )
