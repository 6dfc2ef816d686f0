"""Format versions: present ones are read, newer ones are refused in one sentence."""

from __future__ import annotations

import pytest

from covertfl.errors import InvalidInput
from covertfl.files.format import FORMATS, require_format


@pytest.mark.parametrize("kind", ["run", "policy", "model"])
def test_present_formats_are_accepted_and_newer_ones_refused(kind: str) -> None:
    for version in range(1, FORMATS[kind] + 1):
        require_format(kind, version, "file")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"^file: .*a newer version wrote the file") as caught:
        require_format(kind, FORMATS[kind] + 1, "file")  # type: ignore[arg-type]
    assert caught.value.exit_status == 2
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("found", [0, -1, 1.0, "1", True, None, [1], "x" * 1000])
def test_what_is_not_a_version_is_refused(found: object) -> None:
    with pytest.raises(InvalidInput, match=r"file: format must be a whole number from 1, got"):
        require_format("run", found, "file")
