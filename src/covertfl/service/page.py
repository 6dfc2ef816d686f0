"""The page on which an operator watches the service: one file, without data of its own."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def read_page() -> bytes:
    """Return the page, HTML in UTF-8; the file is read once."""
    return Path(__file__).with_name("page.html").read_bytes()
