"""A user's own Flower project is found from the options of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from covertfl.engines.flower.deployment.own_app import find_own_app
from covertfl.errors import InvalidInput
from tests import ROOT

EXAMPLE = ROOT / "examples" / "flower_toxicity"


def test_own_apps_are_found(tmp_path: Path) -> None:
    found = find_own_app(EXAMPLE / "app", EXAMPLE / "server", None)
    assert found.eavesdropper is None
    file = EXAMPLE / "eavesdropper" / "eavesdropper_app.py"
    found = find_own_app(EXAMPLE / "app", None, f"{file}:app")
    assert (found.eavesdropper, found.eavesdropper_path) == ("eavesdropper_app:app", file.parent)
    with pytest.raises(InvalidInput, match="no such folder"):
        find_own_app(tmp_path / "nothing", None, None)
    for wrong in ("app", f"{file}", f"{file}:", "nothing.py:app", f"{EXAMPLE / 'run.toml'}:app"):
        with pytest.raises(InvalidInput, match=r"must be FILE\.PY:APP"):
            find_own_app(EXAMPLE / "app", None, wrong)
