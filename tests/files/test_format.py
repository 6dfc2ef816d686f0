"""Format versions: present ones are read, all others are refused in one sentence."""

from __future__ import annotations

import pytest

import covertfl as cf
from covertfl.files.text import FORMATS, Kind, require_format


@pytest.mark.parametrize("kind", FORMATS)
def test_only_present_formats_are_accepted(kind: Kind) -> None:
    present = FORMATS[kind]
    require_format(kind, present, "file")
    require_format(kind, str(present), "file")
    for found, said in (
        (present + 1, f"got {present + 1}: a newer version wrote the file"),
        (str(present + 1), f"got {present + 1}: a newer version wrote the file"),
        (None, "got nothing: an older version wrote the file"),
        *((older, f"got {older}: an older version") for older in range(1, present)),
    ):
        with pytest.raises(
            cf.InvalidInput, match=rf"^file: the format of .* {present} .*{said}"
        ) as e:
            require_format(kind, found, "file")
        assert e.value.exit_status == 2
        assert "\n" not in str(e.value)


@pytest.mark.parametrize("found", [0, -1, 3.0, "three", True, [3], "3" * 1000])
def test_what_is_not_a_version_is_refused(found: object) -> None:
    with pytest.raises(
        cf.InvalidInput, match=r"file: the format of a run must be 3 .*, got [^:]*$"
    ):
        require_format("run", found, "file")
