"""Results on the console: tables with the numbers of the page, and nothing of its Markdown."""

from __future__ import annotations

import json

import pytest
from paper.page.console import render_result
from rich.console import Console

from tests import ROOT


@pytest.mark.parametrize("name", ["table-main", "theory", "figure-spga"])
def test_a_result_is_shown_as_tables(name: str) -> None:
    result = json.loads((ROOT / "results" / f"{name}.json").read_text())
    console = Console(width=110, highlight=False, no_color=True)
    with console.capture() as capture:
        console.print(render_result(result, "out"))
    shown = capture.get()
    assert shown.startswith(f"{name}: {result['title']}")
    assert f"in full in out/{name}.json" in shown
    assert not any(mark in shown for mark in ("|", "**", "`", "##", "![", "…"))
    if name == "table-main":
        row = result["rows"][0]
        assert f"{row['eavesdropper']['mean']:.3f}" in shown
        assert f"{row['paper']['learner']:.3f}" in shown
