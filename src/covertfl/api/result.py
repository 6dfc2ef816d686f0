"""How results show themselves: a short repr, a small table in notebooks, tables in a terminal."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any


class Result:
    """Base of everything that the public functions return.

    A subclass is a frozen dataclass without a generated repr.  It says what it is in a few facts,
    from which the repr and the notebook's table are made.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, numbers and text, ready for `json.dumps`."""
        raise NotImplementedError

    def _facts(self) -> Mapping[str, str]:
        """Return what matters most, by name; the first few make the repr."""
        raise NotImplementedError

    def __repr__(self) -> str:
        facts = ", ".join(f"{name} {text}" for name, text in self._facts().items())
        return f"<{type(self).__name__}: {facts}>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
            for name, text in self._facts().items()
        )
        return f"<table><caption>{type(self).__name__}</caption>{rows}</table>"

    def __rich__(self) -> Any:
        return repr(self)
