"""The operator's page: by itself, and in Chromium on the HTTP interface of a service."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import covertfl.service
from tests.support.browser import needs_chromium
from tests.support.services import POLICY, RunningService, make_version, pack_arrays, run_service

pytest.importorskip("playwright.sync_api")
pytest.importorskip("uvicorn")

from playwright.sync_api import Browser, Page, Route, expect

from tests.support.service_page import (
    add_request,
    cancel_request,
    check_fits,
    check_wrong_token,
    enter_token,
    expect_cell,
    expect_served,
    open_browser,
    open_page,
    submit,
    watch,
)

FIGURES = ("backlogs", "waits", "exposures", "beliefs", "versions", "policy")
NEW_ROWS = pack_arrays(features=[[1.0, 2.0]], labels=[1])
OTHER_TOKEN = "another" * 6


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page()
    page.set_default_timeout(20_000)
    yield page
    page.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RunningService]:
    """A service before its first round, with a policy that has thresholds."""
    table = [
        [[float(2 * state + arrival > 16 - backlog) for backlog in range(31)] for arrival in (0, 1)]
        for state in range(3)
    ]
    with run_service(tmp_path) as service:
        service.store.keep_fact("policy", {**POLICY, "learn_prob": table})
        service.store.release(make_version(0))
        yield service


@pytest.fixture
def busy(service: RunningService) -> RunningService:
    """The service after 300 rounds, with 15 requests of all kinds and several versions."""
    bodies = (
        {"kind": "shift", "updates": 9, "note": "weekly retraining"},
        {"kind": "purge", "updates": 6, "rows": list(range(12)), "note": "data subject 18-221"},
        {"kind": "context", "client": 3, "data": NEW_ROWS, "note": "comments of May"},
        {"kind": "shift", "updates": 7, "note": "<script>alert(1)</script> & <b>bold</b>"},
        {"kind": "rollback", "updates": 0, "version": 1, "note": "complaints about version 4"},
        {"kind": "shift", "updates": 40, "patience": 5, "note": "until nothing improves"},
        {"kind": "purge", "updates": 6, "clients": [1, 3], "exact": True, "due": "2026-10-20"},
        {"kind": "shift", "due": "2026-12-01", "note": "a long note " * 9},
    )
    for turn in range(300):
        if turn % 20 == 0:
            service.ask(**bodies[turn // 20 % len(bodies)])
        service.tick(turn % 7 == 0)
    service.store.warn(100, "arrivals", "Requests arrive faster than the plan expects.")
    service.store.warn(212, "participation", "Fewer clients took part than expected.")
    return service


def find_body(service: RunningService, number: int = 1) -> dict[str, object]:
    """What the page has sent, as far as it says anything."""
    return service.store.find(number).body.model_dump(exclude_defaults=True)


def test_the_page_is_one_file_that_asks_nobody_else() -> None:
    text = Path(covertfl.service.__file__).with_name("page.html").read_text("utf-8")
    addresses = set(re.findall(r"https?://[^\"'\s]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, which is not fetched
    assert "default-src 'none'" in text and "connect-src 'self'" in text
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", text)


@pytest.mark.browser
@needs_chromium
class TestToken:
    def test_a_wrong_one_is_refused_and_the_right_one_opens(
        self, page: Page, service: RunningService
    ) -> None:
        check_wrong_token(page, service.process.address)
        enter_token(page, service.token)
        expect(page.locator("#main")).to_be_visible()
        expect(page.locator("#token-form")).to_be_hidden()
        assert page.evaluate("sessionStorage.getItem('token')") == service.token

    def test_an_address_may_carry_it_and_then_loses_it(
        self, page: Page, service: RunningService
    ) -> None:
        page.goto(f"{service.process.address}/#token={service.token}")
        expect(page.locator("#main")).to_be_visible()
        assert page.url == f"{service.process.address}/"
        page.reload()
        expect(page.locator("#main")).to_be_visible()

    def test_it_is_forgotten_on_demand(self, page: Page, service: RunningService) -> None:
        open_page(page, service.process.address, service.token)
        page.click("#forget")
        expect(page.locator("#token-form")).to_be_visible()
        expect(page.locator("#main")).to_be_hidden()
        assert page.evaluate("sessionStorage.length") == 0


@pytest.mark.browser
@needs_chromium
class TestRequests:
    def test_one_is_added_and_served(self, page: Page, service: RunningService) -> None:
        seen = watch(page)
        open_page(page, service.process.address, service.token)
        number = add_request(page, 2, "weekly")
        expect_cell(page, number, "state", "waiting")
        expect(page.locator("#backlog")).to_have_text("2")
        service.tick()
        expect_cell(page, number, "state", "serving")
        expect_cell(page, number, "updates made", "1 of 2")
        expect(page.locator("#round")).to_have_text("1")
        service.tick()
        assert expect_served(page, number, 2) == 1
        expect(page.locator("#versions tbody tr")).to_have_count(2)
        expect(page.locator("#backlogs .readout")).to_have_text("round 2: 0 updates")
        assert seen.hosts == {f"127.0.0.1:{service.port}"} and seen.messages == []

    def test_one_is_cancelled(self, page: Page, service: RunningService) -> None:
        open_page(page, service.process.address, service.token)
        number = add_request(page, 3)
        cancel_request(page, number)
        assert service.store.find(number).state == "cancelled"
        expect(page.locator("#counts")).to_contain_text("1 cancelled")

    def test_one_that_is_served_meanwhile_cannot_be_cancelled(
        self, page: Page, service: RunningService
    ) -> None:
        service.ask(updates=2)
        open_page(page, service.process.address, service.token)
        button = page.get_by_role("button", name="Cancel request 1")
        expect(button).to_be_visible()
        page.route("**/requests?**", lambda route: route.abort())  # the page does not hear of it
        service.tick()
        button.click()
        expect(page.locator("#requests-error")).to_contain_text("must be waiting to be cancelled")

    def test_the_sentence_of_the_service_is_beside_the_form(
        self, page: Page, service: RunningService
    ) -> None:
        open_page(page, service.process.address, service.token)
        page.fill("#add-updates", "0")
        page.fill("#add-note", "kept")
        page.click("#add-submit")
        expect(page.locator("#add-error")).to_have_text(
            "updates must be a whole number in 1..1000000, got 0"
        )
        expect(page.locator("#add-note")).to_have_value("kept")
        page.fill("#add-updates", "1")
        submit(page)
        assert find_body(service)["note"] == "kept"

    def test_the_keyboard_is_enough(self, page: Page, service: RunningService) -> None:
        open_page(page, service.process.address, service.token)
        page.focus("#add-note")
        page.keyboard.type("typed")
        page.keyboard.press("Enter")
        expect_cell(page, 1, "note", "typed")
        expect(page.locator("#add-note")).to_be_focused()
        expect(page.locator("#add-note")).to_have_value("")

    def test_a_purge_names_rows_and_clients(self, page: Page, service: RunningService) -> None:
        open_page(page, service.process.address, service.token)
        page.select_option("#add-kind", "purge")
        page.fill("#add-rows", "1,x")
        page.click("#add-submit")
        expect(page.locator("#add-error")).to_have_text(
            'Rows: numbers and ranges such as 1,2,5-9 are allowed, not "x".'
        )
        page.fill("#add-rows", "1, 2,5-9")
        page.fill("#add-clients", "3")
        page.check("#add-exact")
        submit(page)
        body = find_body(service)
        assert body["rows"] == [1, 2, 5, 6, 7, 8, 9] and body["clients"] == [3]
        assert body["exact"] is True and "due" not in body
        expect_cell(page, 1, "kind", "7 rows; client 3; exact")
        service.store.keep_membership(1, {"before": 0.71, "after": 0.52})
        expect_cell(page, 1, "membership", "0.71 → 0.52")

    def test_a_context_carries_a_file(
        self, page: Page, service: RunningService, tmp_path: Path
    ) -> None:
        (tmp_path / "new.npz").write_bytes(base64.b64decode(NEW_ROWS))
        open_page(page, service.process.address, service.token)
        page.select_option("#add-kind", "context")
        page.fill("#add-client", "3")
        page.click("#add-submit")
        expect(page.locator("#add-error")).to_contain_text("choose an .npz file")
        page.set_input_files("#add-file", tmp_path / "new.npz")
        page.check("#add-replace")
        submit(page)
        assert service.store.find(1).data == NEW_ROWS
        body = find_body(service)
        assert body["client"] == 3 and body["replace"] is True

    def test_a_rollback_names_a_version_and_withdrawn_ones_are_marked(
        self, page: Page, service: RunningService
    ) -> None:
        for _ in range(2):
            service.ask(updates=1)
            service.tick()
        service.store.withdraw([2], 9)
        open_page(page, service.process.address, service.token)
        expect(page.locator("#versions .legend")).to_contain_text("withdrawn")
        expect(page.locator("#versions tbody tr").nth(2)).to_contain_text("by request 9")
        page.select_option("#add-kind", "rollback")
        expect(page.locator("#add-updates")).to_have_value("0")
        page.select_option("#add-version", "1")
        submit(page)
        body = find_body(service, 3)
        assert body["version"] == 1 and body["updates"] == 0
        service.tick()
        expect(page.locator("#version")).to_have_text("3")

    def test_patience_has_a_bound_of_its_own(self, page: Page, service: RunningService) -> None:
        open_page(page, service.process.address, service.token)
        page.select_option("#add-ends", "patience")
        page.fill("#add-patience", "6")
        page.fill("#add-due", "2026-12-01")
        submit(page)
        body = find_body(service)
        assert body["patience"] == 6 and body["updates"] == 1000 and body["due"] == "2026-12-01"
        expect_cell(page, 1, "updates made", "0 of at most ")

    def test_what_is_sent_twice_counts_once(self, page: Page, service: RunningService) -> None:
        """The answer to the first is lost on its way; there is no randomUUID outside TLS."""
        page.add_init_script("delete Crypto.prototype.randomUUID")
        open_page(page, service.process.address, service.token)

        def lose(route: Route) -> None:
            route.fetch()
            route.abort()

        page.route("**/requests", lose, times=1)
        page.click("#add-submit")
        expect(page.locator("#add-error")).to_contain_text("did not answer")
        submit(page)
        submit(page)
        keys = [found.body.key or "" for found in service.store.list_requests(limit=9)]
        assert len(keys) == 2 and keys[0] != keys[1] and len(keys[0]) == 32

    def test_markup_in_a_note_is_text(self, page: Page, service: RunningService) -> None:
        note = "<script>document.title='bad'</script><img src=x onerror=alert(1)>"
        service.store.warn(1, "arrivals", note)
        seen = watch(page)
        open_page(page, service.process.address, service.token)
        number = add_request(page, 1, note)
        expect_cell(page, number, "note", note)
        expect(page.locator("#warnings")).to_contain_text(note)
        assert page.locator("main script, main img").count() == 0
        assert page.title() == "covertfl: toxicity, round 0" and seen.messages == []

    def test_older_ones_come_on_demand(self, page: Page, service: RunningService) -> None:
        for _ in range(130):
            service.ask(updates=1)
        open_page(page, service.process.address, service.token)
        rows = page.locator("#requests tbody tr")
        expect(rows).to_have_count(100)
        page.get_by_role("button", name="Show older requests").click()
        expect(rows).to_have_count(130)
        expect(page.locator("#more")).to_be_hidden()


@pytest.mark.browser
@needs_chromium
class TestLive:
    def test_it_comes_back_with_the_service(self, page: Page, service: RunningService) -> None:
        open_page(page, service.process.address, service.token)
        service.stop()
        expect(page.locator("#connection-text")).to_contain_text("Connection lost")
        for _ in range(3):
            service.tick()
        service.start()
        expect(page.locator("#connection-text")).to_have_text("Live")
        expect(page.locator("#round")).to_have_text("3")
        expect(page.locator("#backlogs .readout")).to_contain_text("round 3")

    def test_the_operator_need_not_wait_for_the_next_attempt(
        self, page: Page, service: RunningService
    ) -> None:
        page.clock.install(time=0)
        open_page(page, service.process.address, service.token)
        page.clock.pause_at(3600)  # from here on no attempt comes by itself
        service.stop()
        expect(page.locator("#connection-text")).to_contain_text("Connection lost")
        service.start()
        page.get_by_role("button", name="Try now").click()
        expect(page.locator("#connection-text")).to_have_text("Live")

    def test_it_starts_anew_with_another_run(self, page: Page, busy: RunningService) -> None:
        open_page(page, busy.process.address, busy.token)
        expect(page.locator("#backlogs .readout")).to_contain_text("round 300")
        busy.stop()
        busy.store.connection.execute("DELETE FROM rounds WHERE round > 2")
        busy.start()
        expect(page.locator("#round")).to_have_text("2")
        expect(page.locator("#backlogs .readout")).to_contain_text("round 2:")

    def test_another_token_is_asked_for(self, page: Page, service: RunningService) -> None:
        open_page(page, service.process.address, service.token)
        service.stop()
        (service.folder / "token").write_text(OTHER_TOKEN)
        service.start()
        expect(page.locator("#token-error")).to_contain_text("does not accept")
        enter_token(page, OTHER_TOKEN)
        expect(page.locator("#connection-text")).to_have_text("Live")

    def test_a_token_that_is_no_longer_right_is_noticed_at_once(
        self, page: Page, service: RunningService
    ) -> None:
        open_page(page, service.process.address, service.token)
        page.route("**/requests", lambda route: route.fulfill(status=401, json={"error": "no"}))
        page.click("#add-submit")
        expect(page.locator("#token-error")).to_contain_text("does not accept")

    def test_warnings_and_pauses_are_on_top(self, page: Page, service: RunningService) -> None:
        open_page(page, service.process.address, service.token)
        expect(page.locator("#warnings")).to_be_hidden()
        service.store.keep_fact("paused", "The disk is full.")
        service.store.warn(4, "arrivals", "Too many.")
        expect(page.locator("#warnings li")).to_have_text(
            ["Paused: The disk is full.", "Round 4: Too many."]
        )
        service.store.keep_fact("paused", None)
        expect(page.locator("#warnings li")).to_have_text(["Round 4: Too many."])


@pytest.mark.browser
@needs_chromium
class TestFigures:
    def test_all_are_drawn_without_a_complaint(self, page: Page, busy: RunningService) -> None:
        seen = watch(page)
        open_page(page, busy.process.address, busy.token)
        for figure in FIGURES:
            expect(page.locator(f"#{figure} svg[role=img]").first).to_be_visible()
        expect(page.locator("#waits .legend li")).to_have_count(2)
        expect(page.locator("#waits .legend")).to_contain_text("promised: 25.0 rounds")
        expect(page.locator("#beliefs")).to_contain_text("counts the queries")
        expect(page.locator("#beliefs .words")).to_contain_text(
            "probability 0.31: less than a guess, so it is misled"
        )
        expect(page.locator("#requests tbody tr")).to_have_count(15)
        assert seen.hosts == {f"127.0.0.1:{busy.port}"} and seen.messages == []

    def test_a_chart_reads_out_the_round_under_the_pointer(
        self, page: Page, busy: RunningService
    ) -> None:
        open_page(page, busy.process.address, busy.token)
        expect(page.locator("#backlogs .readout")).to_contain_text("round 300:")
        page.locator("#backlogs svg").hover(position={"x": 48, "y": 60})
        expect(page.locator("#backlogs .readout")).to_have_text(
            re.compile(r"^round [1-9]: \d+ updates$")
        )

    def test_a_backlog_beyond_the_table_is_in_its_last_column(
        self, page: Page, service: RunningService
    ) -> None:
        service.ask(updates=500)
        service.tick(False)
        open_page(page, service.process.address, service.token)
        expect(page.locator("#policy .grids svg .now")).to_have_count(1)
        last = page.locator("#policy .grids svg").first.locator(".cell").nth(30)
        expect(last).to_contain_text("oracle state 0, backlog 30")
        assert last.get_attribute("x") == page.locator("#policy .grids .now").get_attribute("x")
        expect(page.locator("#policy .words")).to_contain_text("Oracle state 2, backlog 500")

    def test_a_policy_without_a_table_is_a_sentence(
        self, page: Page, service: RunningService
    ) -> None:
        nothing = {"kind": "exchangeable", "learn_prob": None, "promised_wait": None}
        service.store.keep_fact("policy", {**POLICY, **nothing})
        open_page(page, service.process.address, service.token)
        expect(page.locator("#policy .words")).to_contain_text("exchangeable has no table")
        expect(page.locator("#policy svg")).to_have_count(0)
        expect(page.locator("#waits .words")).to_contain_text("promises no wait")

    @pytest.mark.parametrize("kind", ["shift", "purge", "context", "rollback"])
    def test_a_phone_shows_all_of_it(self, page: Page, busy: RunningService, kind: str) -> None:
        open_page(page, busy.process.address, busy.token)
        expect(page.locator("#requests tbody tr")).to_have_count(15)
        page.select_option("#add-kind", kind)
        check_fits(page)

    def test_dark_is_dark(self, browser: Browser, service: RunningService) -> None:
        colours = {}
        for scheme in ("light", "dark"):
            page = browser.new_page(color_scheme="dark" if scheme == "dark" else "light")
            open_page(page, service.process.address, service.token)
            colours[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
            page.close()
        assert colours == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 23, 26)"}
