"""What an operator does on the service's page, as steps in a browser; any service may answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Error, Page, expect, sync_playwright

from tests.support.browser import CHROMIUM

expect.set_options(timeout=20_000)  # ms; machines that run tests may be slow

# Elements that stick out of the screen, apart from tables that scroll and what is for readers only.
STICKING_OUT = """() => [...document.querySelectorAll("body *")].filter(element =>
  !element.closest(".scroll:not(.stacked), .stacked thead, .unseen") &&
  element.getBoundingClientRect().right > innerWidth + 0.5).map(element => element.outerHTML)"""


@dataclass
class Seen:
    """What a page did: hosts it asked, messages and errors of its console."""

    hosts: set[str] = field(default_factory=set)
    messages: list[str] = field(default_factory=list)


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Run Chromium without a screen."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def watch(page: Page) -> Seen:
    """Collect what the page does from now on."""
    seen = Seen()

    def note_message(message: ConsoleMessage) -> None:
        seen.messages.append(message.text)

    def note_error(error: Error) -> None:
        seen.messages.append(str(error))

    page.on("request", lambda request: seen.hosts.add(urlsplit(request.url).netloc))
    page.on("console", note_message)
    page.on("pageerror", note_error)
    return seen


def open_page(page: Page, url: str, token: str) -> None:
    """Load the page, type the token and wait until it is live."""
    page.goto(url)
    enter_token(page, token)
    expect(page.locator("#connection-text")).to_have_text("Live")
    expect(page.locator("#round")).to_have_text(re.compile(r"^\d+$"))


def enter_token(page: Page, token: str) -> None:
    page.fill("#token", token)
    page.press("#token", "Enter")


def check_wrong_token(page: Page, url: str) -> None:
    """A wrong token is refused in words, and the form stays."""
    page.goto(url)
    enter_token(page, "not-the-token")
    expect(page.locator("#token-error")).to_contain_text("does not accept this token")
    expect(page.locator("#token-form")).to_be_visible()
    expect(page.locator("#main")).to_be_hidden()


def add_request(page: Page, updates: int, note: str = "", kind: str = "shift") -> int:
    """Send the form and return the number of the request."""
    page.select_option("#add-kind", kind)
    page.fill("#add-updates", str(updates))
    page.fill("#add-note", note)
    return submit(page)


def submit(page: Page) -> int:
    """Send the form as it is and return the number of the request."""
    page.click("#add-submit")
    done = page.locator("#add-done")
    expect(done).to_have_text(re.compile(r"^Request \d+ is \w+\.$"))
    expect(page.locator("#add-error")).to_be_empty()
    number = int((done.text_content() or "").split()[1])
    expect(page.locator(f'#requests tr[data-id="{number}"]')).to_be_visible()
    return number


def expect_cell(page: Page, request: int, label: str, text: str | re.Pattern[str]) -> None:
    """Wait until a cell of a request's row contains the text."""
    cell = page.locator(f'#requests tr[data-id="{request}"] [data-label="{label}"]')
    expect(cell).to_contain_text(text)


def expect_served(page: Page, request: int, updates: int, seconds: float = 20.0) -> int:
    """Wait until a request is done with all updates; return its version, the present one."""
    row = page.locator(f'#requests tr[data-id="{request}"]')
    expect(row).to_have_attribute("data-state", "done", timeout=1000 * seconds)
    expect_cell(page, request, "updates made", f"{updates} of {updates}")
    version = row.locator('[data-label="version"]').text_content() or ""
    expect(page.locator("#version")).to_have_text(version)
    return int(version)


def cancel_request(page: Page, request: int) -> None:
    """Cancel a waiting request; its button goes."""
    row = page.locator(f'#requests tr[data-id="{request}"]')
    row.get_by_role("button", name=f"Cancel request {request}").click()
    expect(row).to_have_attribute("data-state", "cancelled")
    expect(row.get_by_role("button")).to_have_count(0)


def check_fits(page: Page, width: int = 390) -> None:
    """Nothing sticks out of a screen of this width."""
    page.set_viewport_size({"width": width, "height": 900})
    expect(page.locator("#backlogs svg")).to_be_visible()
    # Charts are drawn again for the width, one frame later.
    page.wait_for_function("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(STICKING_OUT) == []
