"""The public map in a file and as a torch module is the same map."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from safetensors.numpy import save_file

from covertfl.errors import InvalidInput
from covertfl.kernels.job import Examples
from covertfl.tasks.public_map import PublicMap, compute_public_map


@pytest.fixture
def public() -> Examples:
    generator = np.random.default_rng(2)
    features = generator.normal(size=(80, 5)) @ generator.normal(size=(5, 5)) + 3.0
    return Examples(features.astype(np.float32), (np.arange(80) % 4 == 0).astype(np.float32))


@pytest.fixture
def found(public: Examples) -> PublicMap:
    return compute_public_map(public, "binary")


def test_a_map_is_read_as_it_was_written(
    found: PublicMap, public: Examples, tmp_path: Path
) -> None:
    found.save(tmp_path / "map.safetensors")
    read = PublicMap.load(tmp_path / "map.safetensors")
    assert read.fingerprint == found.fingerprint
    assert np.array_equal(read.apply(public.features), found.apply(public.features))


def test_files_that_hold_no_map_are_refused(found: PublicMap, tmp_path: Path) -> None:
    file, mean = tmp_path / "map.safetensors", found.mean
    with pytest.raises(InvalidInput, match="no such file"):
        PublicMap.load(file)
    file.write_bytes(b"nothing")
    with pytest.raises(InvalidInput, match="not the file of a public map"):
        PublicMap.load(file)
    arrays = {"mean": mean, "basis": found.basis, "scale": mean[:2]}
    for version, message in (("2", "at most 1"), ("one", "whole number"), ("1", "fit together")):
        save_file(arrays, file, metadata={"covertfl_format": version})
        with pytest.raises(InvalidInput, match=message):
            PublicMap.load(file)


def test_a_module_maps_alike_and_holds_nothing_to_train_or_send(
    found: PublicMap, public: Examples
) -> None:
    module = found.as_module()
    mapped = module(torch.from_numpy(public.features))
    assert mapped.dtype == torch.float32
    np.testing.assert_allclose(mapped.numpy(), found.apply(public.features), rtol=1e-6, atol=1e-6)
    model = torch.nn.Sequential(module, torch.nn.Linear(5, 1))
    assert list(model.state_dict()) == ["1.weight", "1.bias"]
    assert not list(module.parameters())
