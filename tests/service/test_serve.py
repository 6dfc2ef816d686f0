"""Service files, tokens and folders that `covertfl serve` refuses, in a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomli_w

from covertfl.errors import InvalidInput
from covertfl.files.token import make_token
from tests.support.commands import Run, refuse
from tests.support.played_services import SERVICE
from tests.support.small_runs import HORIZON, merge

pytest.importorskip("uvicorn")

PLACE = "[service] listen must be HOST:PORT such as 127.0.0.1:8800"
LOCAL = "[service] listen must be 127.0.0.1, [::1] or localhost unless certificate and key are"
BAD: list[tuple[dict[str, Any], str]] = [
    ({"service": None}, "a service needs a section [service]"),
    ({"queue": None, **HORIZON}, "a service needs a problem with [queue], got [horizon]"),
    ({"arrivals": "x.csv"}, "arrivals must be absent in a service"),
    ({"federation": {"log": "x.csv"}}, "[federation] log must be absent in a service"),
    ({"service": {"round_seconds": -1.0}}, "round_seconds"),
    ({"service": {"lisen": "x"}}, "[service] unknown key lisen"),
    *(
        ({"service": {"listen": place}}, PLACE)
        for place in ("", "8800", ":8800", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "::1:8800")
    ),
    *(({"service": {"listen": f"127.0.0.1:{port}"}}, PLACE) for port in ("65536", "-1", "\u00b2")),
    *(
        ({"service": {"listen": f"{host}:8800"}}, LOCAL)
        for host in ("0.0.0.0", "fl.example", "[::]", "192.168.1.2")
    ),
    ({"service": {"key": "key.pem"}}, "https needs certificate and key, got only key"),
    (
        {"service": {"certificate": "none.pem", "key": "key.pem"}},
        "needs the certificate, and there is no file",
    ),
    (
        {"service": {"certificate": "key.pem", "key": "none.pem"}},
        "needs the key, and there is no file",
    ),
]


@pytest.mark.parametrize(("changes", "said"), BAD)
def test_bad_files_are_refused_before_anything_is_made(
    run: Run, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    (tmp_path / "key.pem").touch()
    file = tmp_path / "service.toml"
    file.write_text(tomli_w.dumps(merge(SERVICE, changes)))
    assert said in refuse(run("serve", file, "--out", tmp_path / "s"), 2)
    assert not (tmp_path / "s").exists()


def test_a_token_is_made_once_for_its_owner(tmp_path: Path) -> None:
    token = make_token(tmp_path / "token")
    assert (tmp_path / "token").read_text() == token + "\n"
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert make_token(tmp_path / "token") == token
    assert len(token) >= 40


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        ("t" * 43, 0o640, r"readable by its owner alone .* got mode 640"),
        *((text, 0o600, "must be a token") for text in ("", "short", "a space " * 3, "x" * 500)),
    ],
)
def test_what_is_no_token_is_refused(tmp_path: Path, content: str, mode: int, said: str) -> None:
    (tmp_path / "token").write_text(content)
    (tmp_path / "token").chmod(mode)
    with pytest.raises(InvalidInput, match=said):
        make_token(tmp_path / "token")
