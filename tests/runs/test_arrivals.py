"""Files of arrivals: what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from covertfl.errors import InvalidInput
from covertfl.runs.arrivals import read_arrivals


def test_updates_are_read_by_round(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.csv"
    path.write_text("round,updates\n2,3\n5,0\n9,1\n")
    assert read_arrivals(str(path)) == {2: 3, 5: 0, 9: 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "first line must be round,updates, got nothing"),
        ("when,what\n1,2\n", "first line must be round,updates, got when,what"),
        ("round,updates\n1,two\n", "line 2: updates must be a whole number in 0.."),
        ("round,updates\n1\n", "line 2: updates must be a whole number"),
        ("round,updates\n0,2\n", "line 2: round must be a whole number in 1.."),
        ("round,updates\n1,-2\n", "line 2: updates must be"),
        ("round,updates\n1,99999999999999999999\n", "line 2: updates must be"),
        ("round,updates\n1,2\n3,1\n1,1\n", "line 4: round must occur once, got 1 again"),
    ],
)
def test_bad_files_of_arrivals_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "arrivals.csv"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=said) as caught:
        read_arrivals(str(path))
    assert "arrivals.csv" in str(caught.value)
