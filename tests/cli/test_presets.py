"""The command `presets`."""

from __future__ import annotations

import covertfl as cf
from tests.support.commands import Run, refuse


def test_presets(run: Run) -> None:
    assert run("presets").out.split() == cf.list_presets()
    assert run("presets", "--json").content == {"presets": cf.list_presets()}
    content = run("presets", "sound/queue", "--json").content
    assert content["queue"]["learning_limit"] == 25.0
    assert "got 'sound/nothing'" in refuse(run("presets", "sound/nothing"), 2)
