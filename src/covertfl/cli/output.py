"""What commands print: JSON on standard output, remarks on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any


def print_json(content: Mapping[str, Any]) -> None:
    """Print one JSON object on one line."""
    print(json.dumps(content, allow_nan=False))


def print_remark(sentence: str) -> None:
    """Print a sentence for people to standard error."""
    print(f"covertfl: {sentence}", file=sys.stderr)
