"""The page in a browser: nothing to complain about, in both schemes and on a phone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.support.browser import check_narrow, find_measured, load, needs_chromium
from tests.support.reports import FIGURES, Page, check_audit_table

pytestmark = pytest.mark.browser
# Added to a copy of the page: the page itself has no script.
MEASURE = """<script>
addEventListener("load", () => {
  const sizes = [...document.querySelectorAll("figure svg, image, img")].map(element => {
    const box = element.getBoundingClientRect(); return [box.width, box.height]; });
  const label = document.querySelector("figure svg text");
  const found = { sizes, plots: document.querySelectorAll("figure svg").length,
    paper: getComputedStyle(document.body).backgroundColor, ink: getComputedStyle(label).fill };
  document.body.dataset.found = JSON.stringify(found);
});
</script>"""


def find_contrast(first: str, second: str) -> float:
    """The contrast of two colours as WCAG 2 defines it."""

    def find_luminance(colour: str) -> float:
        values = np.array([int(value) for value in re.findall(r"\d+", colour)[:3]]) / 255.0
        linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    dark, light = sorted(map(find_luminance, (first, second)))
    return (light + 0.05) / (dark + 0.05)


@needs_chromium
def test_the_page_loads_without_a_complaint(reported: Path) -> None:
    page = reported / "report.html"
    document, messages = load(page)
    assert messages == []
    audit = json.loads((reported / "audit.json").read_text())
    check_audit_table(Page(document).tables["audit"], audit)


@needs_chromium
def test_a_complaint_would_be_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<!doctype html><title>x</title><script>console.error('trouble')</script>")
    assert any("trouble" in message for message in load(page)[1])


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_plot_is_drawn_in_both_schemes(reported: Path, scheme: str) -> None:
    page = reported / "report.html"
    copy = page.with_name("measured.html")
    copy.write_text(page.read_text("utf-8").replace("</body>", f"{MEASURE}</body>"), "utf-8")
    preferred = "0" if scheme == "dark" else "1"
    document, messages = load(copy, f"--blink-settings=preferredColorScheme={preferred}")
    found = find_measured(document)
    assert messages == []
    assert found["plots"] == len(FIGURES)
    assert len(found["sizes"]) > len(FIGURES)  # the actions are an image within their plot
    assert all(width > 100 and height > 30 for width, height in found["sizes"])
    dark = find_contrast(found["paper"], "rgb(0, 0, 0)") < find_contrast(
        found["paper"], "rgb(255, 255, 255)"
    )
    assert dark == (scheme == "dark")
    assert find_contrast(found["paper"], found["ink"]) > 7.0


@needs_chromium
def test_nothing_sticks_out_on_a_phone(reported: Path) -> None:
    check_narrow(reported / "report.html")
