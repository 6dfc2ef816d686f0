"""The page of a report says what it said.

Where other words are meant, `COVERTFL_STORE=1 pytest tests/report/test_page_words.py` stores them.
"""

from __future__ import annotations

import os
from pathlib import Path

from covertfl import __version__
from tests.support.reports import read_page

STORED = Path(__file__).parent / "stored" / "page.txt"


def test_the_page_says_what_it_said(folder: Path) -> None:
    words = read_page(folder).words
    for name, place in ((str(folder), "FOLDER"), (__version__, "VERSION")):
        words = words.replace(name, place)
    lines = "\n".join(filter(None, (" ".join(line.split()) for line in words.splitlines()))) + "\n"
    if os.environ.get("COVERTFL_STORE") == "1":
        STORED.write_text(lines)
    assert lines.splitlines() == STORED.read_text().splitlines()
