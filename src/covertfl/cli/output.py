"""What commands print: JSON on standard output, remarks on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from covertfl.api.result import Result


def print_json(content: Mapping[str, Any]) -> None:
    """Print one JSON object on one line."""
    print(json.dumps(content, allow_nan=False))


def print_remark(sentence: str) -> None:
    """Print a sentence for people to standard error."""
    print(f"covertfl: {sentence}", file=sys.stderr)


def print_result(result: Result, *, as_json: bool) -> None:
    """Print a result as one JSON object or as tables."""
    if as_json:
        print_json(result.to_dict())
        return
    from covertfl.display.tables import print_tables

    print_tables(result)
