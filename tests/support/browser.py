"""Pages in a browser: Chromium, which tests look for on the path and otherwise skip."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium to load the page with")

NARROW = """<body style="margin:0"><iframe style="width:390px;height:900px;border:0" srcdoc="%s">
</iframe><script>addEventListener("load", () => {
  const page = document.querySelector("iframe").contentDocument;
  const outside = [...page.querySelectorAll("body *")].filter(element =>
    !element.closest(".scroll:not(.stacked), .stacked thead") &&
    element.getBoundingClientRect().right > 390.5);
  const found = { width: page.documentElement.scrollWidth, outside: outside.length };
  document.body.dataset.found = JSON.stringify(found);
});</script>"""


def load(page: Path, *options: str) -> tuple[str, list[str]]:
    """Return the document after loading, and the console's messages."""
    command = [
        str(CHROMIUM),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--enable-logging=stderr",
        f"--user-data-dir={page.parent / 'browser'}",
        *options,
        "--dump-dom",
        page.resolve().as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def find_measured(document: str) -> dict[str, Any]:
    """Return what a script of a page has measured."""
    match = re.search(r'data-found="([^"]*)"', document)
    assert match is not None
    found: dict[str, Any] = json.loads(html.unescape(match[1]))
    return found


def check_narrow(page: Path) -> None:
    """Nothing of a page sticks out of a screen of 390 pixels, except tables that scroll."""
    wrapper = page.with_name("narrow.html")
    wrapper.write_text(NARROW % html.escape(page.read_text("utf-8")), "utf-8")
    found = find_measured(load(wrapper)[0])
    assert found["width"] <= 390 and found["outside"] == 0
