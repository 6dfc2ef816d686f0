"""Code blocks of the documents."""

from __future__ import annotations

import re


def find_blocks(language: str, text: str) -> list[str]:
    """Return the code blocks of one language."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    return [body for name, body in fences if name == language]
