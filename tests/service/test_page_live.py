"""The page of a running service, in a browser: a request is added, served and released."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api")

from tests.service.test_crash import GREEDY, keep_trying, start_service, write_service
from tests.support.browser import needs_chromium
from tests.support.service_page import (
    add_request,
    cancel_request,
    check_fits,
    check_wrong_token,
    expect_cell,
    expect_served,
    open_browser,
    open_page,
    watch,
)
from tests.support.small_runs import merge

pytestmark = [pytest.mark.browser, needs_chromium]
EXCHANGEABLE = {"policy": None, "scheme": "exchangeable"}


@pytest.mark.parametrize("changes", [{}, EXCHANGEABLE])
def test_a_request_is_added_on_the_page_served_and_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    content = merge(GREEDY, {"service": {"round_seconds": 0.1}, **changes})
    folder = tmp_path / "service"
    with start_service(write_service(tmp_path, content), folder) as service:
        address = keep_trying(lambda one: one.get("/status") and one.address, folder)
        token = (folder / "token").read_text().strip()
        with open_browser() as browser:
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            check_wrong_token(page, address)
            seen = watch(page)
            open_page(page, address, token)
            first = add_request(page, 3, "<b>forget</b> & go on")
            expect_cell(page, first, "note", "<b>forget</b> & go on")
            long = add_request(page, 500)
            waiting = add_request(page, 2)
            cancel_request(page, waiting)
            assert expect_served(page, first, 3, seconds=60.0) == 1
            expect_cell(page, long, "updates made", " of 500")
            check_fits(page)
        assert seen.hosts == {address.removeprefix("http://")}
        assert seen.messages == []
        service.send_signal(signal.SIGTERM)
        service.communicate()
        assert service.returncode == 0
