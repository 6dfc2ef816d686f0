"""Settings of a server app pass through its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from covertfl.engines.flower.deployment.server import ServerSettings, read_server_settings
from covertfl.errors import InvalidInput


def test_settings_pass_through_the_environment(tmp_path: Path) -> None:
    settings = ServerSettings(
        tmp_path / "run.toml", tmp_path / "out", True, False, 7.5, tmp_path / "n"
    )
    assert read_server_settings(settings.as_environment()) == settings
    assert ServerSettings(Path("r"), Path("o")) == read_server_settings(
        {"COVERTFL_RUN": "r", "COVERTFL_OUT": "o"}
    )
    with pytest.raises(InvalidInput, match="COVERTFL_OUT must be set"):
        read_server_settings({"COVERTFL_RUN": "r"})
    for wrong in ("soon", "0", "nan", "inf"):
        with pytest.raises(InvalidInput, match=f"COVERTFL_TIMEOUT .* got '{wrong}'"):
            read_server_settings(
                {"COVERTFL_RUN": "r", "COVERTFL_OUT": "o", "COVERTFL_TIMEOUT": wrong}
            )
