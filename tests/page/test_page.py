"""The page in a real browser, against a server that answers the REST contract with generated figures.

Nothing here waits for a time: each step waits for what it expects to see. Every page that a test opens must end without
an error in the console and without a request to another origin.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright", reason="the page is tested with playwright: pip install 'penstock[dev]'")

from playwright.sync_api import Browser, Page, expect

from tests.page.fake_pipeline import HOSTILE, TOKEN, FakePipeline
from tests.page.fake_server import FakeServer, serving

VIEWS = ("Graph", "Checkpoints", "Watermarks", "State", "Recovery", "Metrics", "Profiler", "Configuration")
SWEEP = (Path(__file__).parent / "sweep.js").read_text(encoding="utf-8").split("\n", 1)[1]
SCROLL_UNTIL_ALL_IS_LOADED = """async (table) => {
    while (document.querySelector(".view > .bar:last-child button").checkVisibility()) {
        table.scrollTo(0, table.scrollHeight);
        await new Promise(requestAnimationFrame);
    }
    table.scrollTo(0, table.scrollHeight);
}"""
# Far above the time that a step takes: reached only when the page hangs.
HANG_MS = 20_000

expect.set_options(timeout=HANG_MS)


@contextlib.contextmanager
def opened(
    browser: Browser, server: FakeServer, path: str = "", *, loses_server: bool = False, **options: Any
) -> Iterator[Page]:
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}, **options})
    context.set_default_timeout(HANG_MS)
    page = context.new_page()
    errors: list[str] = []
    foreign: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith(server.address) else foreign.append(request.url))
    page.goto(f"{server.address}/{path}")
    expect(page.get_by_role("heading", level=1)).to_contain_text("orders-per-minute")
    yield page
    context.close()
    # The browser itself writes a line for each request that fails, and for each answer 403.
    expected = ("net::ERR_", "403") if loses_server else ("403",)
    assert [error for error in errors if not any(each in error for each in expected)] == []
    assert foreign == []


@pytest.fixture(scope="module")
def calm() -> Iterator[FakeServer]:
    """A pipeline that nobody disturbs, for the tests that only look."""
    with serving(FakePipeline()) as server:
        yield server


def tab(page: Page, view: str) -> None:
    page.get_by_role("tab", name=view).click()


def test_the_page_shows_the_pipeline_and_names_its_bottleneck(browser: Browser, calm: FakeServer) -> None:
    with opened(browser, calm) as page:
        expect(page.locator("#phase")).to_have_text("running")
        expect(page.locator(".card")).to_have_count(5)
        expect(page.locator(".verdict")).to_contain_text("totals is the bottleneck")
        expect(page.locator(".card.is-bottleneck")).to_contain_text("totals")
        expect(page.locator(".edge.overtakes")).to_have_count(3)  # Two edges, and one in the legend.
        card = page.locator(".card", has_text="totals")
        card.focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="totals: 4 subtasks")).to_be_visible()
        expect(page.get_by_text("Subtask 2 gets 2.4× the rows of the mean")).to_be_visible()
        rows = page.get_by_role("region", name="Subtasks").locator("tbody tr:not(.spacer)")
        expect(rows).to_have_count(4)
        widths = rows.locator("td:nth-child(5) .meter-bar").evaluate_all("bars => bars.map((bar) => bar.offsetWidth)")
        assert max(widths) == widths[2] and widths[2] > 1.5 * sorted(widths)[1]
        page.get_by_role("button", name="Rows in", exact=True).click()
        expect(rows.first.locator("th")).to_have_text("2")


LOAD = """() => {
    const all = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
    const loaded = all.filter((each) => !each.name.endsWith("/events"));
    const bytes = loaded.reduce((sum, each) => sum + each.transferSize, 0);
    return { requests: loaded.length, bytes };
}"""
ALL_MODULES = """() => {
    const names = performance.getEntriesByType("resource").map((each) => each.name.split("/").pop());
    return ["flame.js", "line_chart.js", "recovery.js"].every((each) => names.includes(each));
}"""


def test_the_page_is_loaded_in_one_round_of_requests_and_a_second_time_from_the_browser(
    browser: Browser, calm: FakeServer, record_property: Callable[[str, object], None]
) -> None:
    asked = len(calm.requests)
    with opened(browser, calm) as page:
        found = {}
        for visit in ("first", "again"):
            expect(page.locator(".card")).to_have_count(5)
            # How long it takes depends on the machine: it is reported, and not judged.
            ms = page.evaluate("() => Math.round(performance.now())")
            # The modules of the other views come when the first one is there.
            page.wait_for_function(ALL_MODULES)
            found[visit] = {**page.evaluate(LOAD), "ms": ms, "asked": len(calm.requests) - asked}
            record_property(f"page_load_{visit}", found[visit])
            print(f"page load, {visit}: {found[visit]}")
            asked = len(calm.requests)
            page.reload()
        requests = [each for each in calm.requests if "/static/" not in each]
    assert found["first"]["bytes"] < 70_000
    # The page, its overview, its graph and its events; the icon of a tab is fetched by the browser as it likes.
    assert found["again"]["asked"] <= 6 and found["again"]["bytes"] < 10_000
    assert requests.count("GET /api/v1/graph") <= requests.count("GET /")


def test_the_keyboard_reaches_every_view_and_everything_in_it_has_a_name_and_can_be_read(
    browser: Browser, calm: FakeServer
) -> None:
    with opened(browser, calm, color_scheme="dark") as page:
        page.keyboard.press("Tab")
        expect(page.locator(".skip")).to_be_focused()
        while page.evaluate("document.activeElement.role") != "tab":
            page.keyboard.press("Tab")
        found = []
        for view in VIEWS:
            expect(page.get_by_role("tab", name=view)).to_be_focused()
            expect(page.get_by_role("tabpanel", name=view)).to_be_visible()
            _open_details(page, view)
            for theme in ("light", "dark"):
                page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
                found += [f"{view}, {theme}: {each}" for each in page.evaluate(SWEEP)]
            page.get_by_role("tab", name=view).focus()
            page.keyboard.press("ArrowRight")
        expect(page.get_by_role("tab", name="Graph")).to_be_focused()  # The row of tabs is a ring.
        page.get_by_role("button", name="Orders… (read-only)").press("Enter")
        expect(page.get_by_label("Token", exact=True)).to_be_focused()
        found += [f"Orders: {each}" for each in page.evaluate(SWEEP)]
        page.keyboard.press("Escape")
        assert found == []
        page.get_by_role("tab", name="Graph").focus()
        page.keyboard.press("End")
        expect(page.get_by_role("tab", name="Configuration")).to_have_attribute("aria-selected", "true")


CONTROLS = """() => {
    const all = "a[href], button, input, select, summary, [tabindex='0'], [role='treeitem'][tabindex='0']";
    const shown = (each) => each.checkVisibility({ visibilityProperty: true }) && !each.disabled && each.tabIndex >= 0;
    const found = [...document.querySelectorAll(all)].filter(shown);
    found.forEach((each, number) => (each.dataset.walked = String(number)));
    return found.map((each) => each.ariaLabel || each.textContent.trim().slice(0, 40) || each.id || each.tagName);
}"""


def test_the_tab_key_reaches_every_control_of_every_view_and_is_caught_by_none(
    browser: Browser, calm: FakeServer
) -> None:
    for view in VIEWS:
        # Each in a page that nobody has clicked in: the first press of the key begins at the top.
        with opened(browser, calm, f"#/{view.lower()}") as page:
            expect(page.get_by_role("tabpanel", name=view)).to_be_visible()
            _open_details(page, view)
            controls = page.evaluate(CONTROLS)
            page.locator(".skip").focus()
            reached = set()
            # A field for a time takes one press for each of its parts.
            for _ in range(len(controls) + 12):
                reached.add(page.evaluate("document.activeElement.dataset.walked ?? null"))
                page.keyboard.press("Tab")
            missed = [f"{name!r}" for number, name in enumerate(controls) if str(number) not in reached]
            assert controls and missed == [], f"{view}: the tab key does not reach {missed}"


def _open_details(page: Page, view: str) -> None:
    """Opens the part of a view that only shows on demand, by the keyboard where it has a button."""
    if view in ("Checkpoints", "Watermarks", "State"):
        page.locator("tbody .opener").first.press("Enter")
        expect(page.locator(".details h2").first).to_be_visible()
    if view == "Profiler":
        expect(page.locator("#worker option")).to_have_count(4)
        page.get_by_role("button", name="Sample").press("Enter")
        expect(page.locator(".flame .frame").first).to_be_visible()
    if view == "Metrics":
        expect(page.locator(".line-busy")).to_have_attribute("d", re.compile("M.*L"))


def test_a_kill_and_the_recovery_are_seen_without_a_reload(browser: Browser) -> None:
    with serving(FakePipeline()) as server, opened(browser, server) as page:
        page.evaluate("window.isSamePage = true")
        expect(page.locator(".verdict")).to_contain_text("bottleneck")
        server.pipeline.kill()
        expect(page.locator("#phase")).to_have_text("waiting to restart, 1 s")
        expect(page.locator(".notice.warn summary")).to_contain_text("ZeroDivisionError")
        expect(page.locator(".figure", has_text="Rows in")).to_contain_text("0/s")
        page.locator(".notice.warn summary").click()
        expect(page.locator(".notice pre")).to_contain_text('return row["amount"] / row["items"]')
        page.get_by_role("button", name="Show its recovery").click()
        expect(page.locator(".generation")).to_have_count(1)
        server.pipeline.claim()
        expect(page.locator(".generation.coming")).to_contain_text("next generation")
        expect(page.locator(".generation.coming")).not_to_contain_text("checkpoint")
        server.pipeline.restore()
        expect(page.locator("#phase")).to_have_text("restoring 40 %")
        expect(page.locator(".generation.coming")).to_contain_text("generation 2")
        expect(page.locator(".generation.coming .legend li")).to_have_count(2)
        expect(page.locator(".generation").first).to_contain_text("Not up after")
        # It counts on without a word from the server, from whatever a slow machine shows first.
        told = re.search(r"Not up after [\d.,]+ \w+", page.locator(".generation.coming").text_content() or "")
        assert told is not None
        expect(page.locator(".generation.coming")).not_to_contain_text(told.group())
        server.pipeline.recover()
        expect(page.locator("#phase")).to_have_text("running")
        expect(page.locator(".generation")).to_have_count(2)
        expect(page.locator(".generation").first).to_contain_text("restored checkpoint 60")
        expect(page.locator(".generation").first).to_contain_text("Up after 2.54 s")
        expect(page.locator(".figure", has_text="Restarts")).to_contain_text("1")
        tab(page, "Checkpoints")
        expect(page.get_by_text("59 completed, 1 failed")).to_be_visible()
        server.pipeline.complete_checkpoint()
        expect(page.get_by_role("button", name="checkpoint 61, completed")).to_be_visible()
        expect(page.get_by_text("60 completed, 1 failed")).to_be_visible()
        assert page.evaluate("window.isSamePage") is True


def test_a_server_that_is_gone_is_said_and_found_again(browser: Browser) -> None:
    with serving(FakePipeline()) as server, opened(browser, server, loses_server=True) as page:
        expect(page.locator(".card")).to_have_count(5)
        server.stop()
        expect(page.locator("#connection")).to_have_text(re.compile(r"disconnected since \d\d:\d\d:\d\d, trying again"))
        server.pipeline.kill()
        server.start()
        expect(page.locator("#connection")).to_have_text("")
        expect(page.locator("#phase")).to_have_text("waiting to restart, 1 s")


def test_hostile_names_are_text_and_no_script_of_them_runs(browser: Browser) -> None:
    pipeline = FakePipeline(is_hostile=True)
    pipeline.kill()
    with serving(pipeline) as server, opened(browser, server) as page:
        expect(page.get_by_role("heading", level=1)).to_have_text(f"orders-per-minute {HOSTILE}")
        expect(page.locator(".card-name").first).to_have_text(f"orders {HOSTILE}")
        for view in VIEWS:
            tab(page, view)
            _open_details(page, view)
            if view == "Recovery":
                page.locator(".generation summary").click()
            if view == "Configuration":
                expect(page.get_by_role("row", name="Spark's page javascript:window.hacked=true")).to_be_visible()
            else:
                expect(page.get_by_text("window.hacked").first).to_be_attached()
            assert page.locator("main script, main img, a[href^='javascript']").count() == 0
        assert page.evaluate("window.hacked") is None


def test_an_order_without_the_token_is_refused_and_said(browser: Browser) -> None:
    with serving(FakePipeline()) as server, opened(browser, server, "#/checkpoints") as page:
        page.get_by_role("button", name="Take a savepoint").click()
        dialog = page.get_by_role("dialog", name="Orders")
        expect(dialog.get_by_role("alert")).to_contain_text("Refused: orders need the token of the pipeline")
        expect(dialog.get_by_role("alert")).to_contain_text("Enter the token that the start has printed")
        dialog.get_by_label("Token", exact=True).fill("a guess")
        page.keyboard.press("Enter")
        expect(dialog.get_by_text("The token is not accepted")).to_be_visible()
        assert server.pipeline.orders == []

        dialog.get_by_label("Token", exact=True).fill(TOKEN)
        page.keyboard.press("Enter")
        expect(dialog.get_by_text("The token is accepted")).to_be_visible()
        dialog.get_by_role("button", name="Take a savepoint").click()
        expect(page.get_by_text("Savepoint ordered")).to_be_visible()
        assert server.pipeline.orders == ["savepoints"]
        # The stream of events carries no token; its overview must not take the permission back.
        expect(page.get_by_role("button", name="Orders…", exact=True)).to_be_visible()
        stored = page.evaluate("[JSON.stringify(localStorage), JSON.stringify(sessionStorage)]")
        assert TOKEN not in stored[0] and TOKEN in stored[1]
        page.reload()
        expect(page.get_by_role("button", name="Orders…", exact=True)).to_be_visible()


def test_a_thousand_subtasks_and_ten_thousand_checkpoints_stay_usable(browser: Browser) -> None:
    rows_max, elements_max = 60, 3000
    with (
        serving(FakePipeline(subtasks=1000, checkpoints=10_000)) as server,
        opened(browser, server, "#/graph/totals") as page,
    ):
        expect(page.get_by_role("heading", name="totals: 1000 subtasks")).to_be_visible()
        table = page.get_by_role("region", name="Subtasks")
        expect(table.locator("table")).to_have_attribute("aria-rowcount", "1001")
        assert table.locator("tbody tr").count() < rows_max
        table.evaluate("element => element.scrollTo(0, element.scrollHeight)")
        expect(table.get_by_role("rowheader", name="999", exact=True)).to_be_visible()
        assert table.locator("tbody tr").count() < rows_max

        tab(page, "Checkpoints")
        table = page.get_by_role("region", name="Checkpoints", exact=True)
        expect(
            page.get_by_text("500 checkpoints loaded; older ones are loaded at the end of the table")
        ).to_be_visible()
        table.evaluate(SCROLL_UNTIL_ALL_IS_LOADED)
        expect(page.get_by_text("10,000 checkpoints loaded, all that are kept in the history")).to_be_visible()
        expect(page.get_by_role("button", name="checkpoint 1, completed")).to_be_visible()
        expect(page.get_by_role("button", name="Load older checkpoints")).to_be_hidden()
        assert table.locator("tbody tr").count() < rows_max
        assert page.locator(".drawing rect").count() < elements_max
        page.get_by_role("button", name="checkpoint 1, completed").click()
        waterfall = page.get_by_role("region", name="Subtasks of checkpoint 1")
        expect(waterfall.locator("table")).to_have_attribute("aria-rowcount", "4003")
        assert page.locator("main *").count() < elements_max


def test_a_failed_checkpoint_says_its_reason_and_cure_and_charts_can_be_heard(
    browser: Browser, calm: FakeServer
) -> None:
    with opened(browser, calm, "#/checkpoints/31") as page:
        expect(page.locator(".details")).to_contain_text(
            "timed out after 600 s: 3 subtasks of totals have not acknowledged"
        )
        expect(page.locator(".details")).to_contain_text(
            "Lower alignment_timeout, or give the window more parallelism."
        )
        expect(page.locator(".failed-mark")).to_have_count(2)
        chart = page.get_by_role("group", name="Duration by phase. Newest")
        chart.focus()
        page.keyboard.press("Home")
        readout = page.locator(".chart", has_text="Duration by phase").locator(".readout")
        expect(readout).to_contain_text(re.compile(r"Checkpoint 1, .* completed: \d+ ms \(start delay .* commit"))
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Checkpoint 1: completed")).to_be_visible()
        parts = page.locator(".waterfall").first.get_attribute("aria-label")
        assert parts is not None and parts.startswith("wait 0 ms, start delay ")
        page.go_back()
        expect(page.get_by_role("heading", name="Checkpoint 31: failed")).to_be_visible()


def test_the_size_of_a_checkpoint_counts_records_in_flight_once(browser: Browser, calm: FakeServer) -> None:
    unaligned = next(each for each in calm.pipeline.history if each["inflight_bytes"])
    with opened(browser, calm, f"#/checkpoints/{unaligned['id']}") as page:
        state = unaligned["checkpointed_size"] - unaligned["inflight_bytes"]
        shown = page.evaluate(
            "async (sizes) => { const { bytes } = await import('/static/format.js'); return sizes.map(bytes); }",
            [state, unaligned["inflight_bytes"]],
        )
        expect(page.locator(".details")).to_contain_text(f"{shown[0]} of state · {shown[1]} in flight")


class Starting(FakePipeline):
    """No worker has reported."""

    def graph(self) -> Any:
        graph = FakePipeline.graph(self)
        unknown = {"busy": None, "idle": None, "backpressured": None}
        return {**graph, "vertices": [{**vertex, **unknown} for vertex in graph["vertices"]]}


def test_a_graph_without_figures_claims_nothing(browser: Browser) -> None:
    with serving(Starting()) as server, opened(browser, server) as page:
        expect(page.locator(".verdict")).to_have_text("No worker has reported yet: there are no figures.")


class Timeless(FakePipeline):
    """A pipeline without event time."""

    def watermarks(self) -> Any:
        unknown = {"watermark_ms": None, "lag_ms": None, "held_by": None, "subtasks": [], "splits": []}
        return {"operators": [{**each, **unknown} for each in FakePipeline.watermarks(self)["operators"]]}


def test_a_pipeline_without_event_time_is_told_so(browser: Browser, calm: FakeServer) -> None:
    told = "No operator has a watermark: the pipeline has no event time"
    with serving(Timeless()) as server, opened(browser, server, "#/watermarks") as page:
        expect(page.locator(".verdict")).to_contain_text(told)
        expect(page.locator(".verdict")).to_be_visible()
    with opened(browser, calm, "#/watermarks") as page:
        expect(page.get_by_role("button", name="totals", exact=True)).to_be_visible()
        expect(page.locator(".verdict")).to_be_hidden()


def test_a_window_that_is_not_emitted_says_who_holds_it_back(browser: Browser, calm: FakeServer) -> None:
    with opened(browser, calm, "#/watermarks") as page:
        expect(page.locator(".answers li").first).to_have_text(
            re.compile(r"totals: not yet\. .* to go, held back by split orders-2")
        )
        page.get_by_label("A window that ends at").fill("2020-01-01T00:00:00")
        expect(page.locator(".answers li").first).to_contain_text("totals: emitted.")
        page.get_by_role("button", name="orders", exact=True).click()
        splits = page.get_by_role("region", name="Splits of orders").locator("tbody tr:not(.spacer)")
        expect(splits.first).to_contain_text("orders-2")  # The furthest behind.
        expect(splits.last).to_contain_text("idle: holds nothing back")


def test_the_flame_graph_tells_own_code_from_the_engine_and_is_walked_by_keys(
    browser: Browser, calm: FakeServer
) -> None:
    with opened(browser, calm, "#/profiler") as page:
        page.get_by_label("for").select_option("10")
        page.get_by_role("button", name="Sample").click()
        expect(page.get_by_text("500 samples in 10 seconds")).to_be_visible()
        # Of the calls within Penstock, which all stacks begin with, the innermost stands for all.
        own = page.locator('.frame[aria-label^="price_per_item"]')
        expect(own).to_have_attribute(
            "aria-label", "price_per_item (/home/ada/penstock/pipeline.py:41): 230 samples, 46 %; 34 % in itself"
        )
        expect(own.locator("rect")).to_have_class("fill-own")
        expect(own).to_have_attribute("aria-level", "4")
        expect(page.locator('.frame[aria-label="operator prices: 230 samples, 46 %"]')).to_be_visible()
        expect(page.locator('.frame[aria-label^="mailbox (no operator): 120 samples"]')).to_be_visible()
        before = own.locator("rect").bounding_box()
        own.click()
        after = own.locator("rect").bounding_box()
        assert before is not None and after is not None and after["width"] > 2 * before["width"]
        page.keyboard.press("ArrowDown")
        expect(page.locator(":focus")).to_have_attribute("aria-label", re.compile("^loads "))
        page.keyboard.press("Escape")
        expect(page.locator(":focus")).to_have_attribute("aria-label", "all: 500 samples, 100 %")

        functions = page.get_by_role("region", name="Functions by samples").locator("tbody tr:not(.spacer)")
        expect(functions.first).to_contain_text("your code")
        page.get_by_label("Find").fill("JSON/decoder")
        expect(page.get_by_text("12 % of the samples")).to_be_visible()
        expect(page.locator(".frame.found")).to_have_count(1)
        expect(functions).to_have_count(1)
        page.get_by_label("Find").fill("")
        expect(page.locator(".frame.faded")).to_have_count(0)

        frames = page.locator(".frame").count()
        page.get_by_label("Fold calls within Penstock").press("Space")
        expect(page.locator('.frame[aria-label^="process "]').first).to_be_visible()
        assert page.locator(".frame").count() > frames
        expect(page.locator('.frame[aria-label^="all: "]')).to_have_attribute(
            "aria-label", "all: 500 samples, 100 %; the 1 outermost call, the same in all of them, left out"
        )


def test_a_phone_shows_every_view_without_scrolling_sideways(browser: Browser, calm: FakeServer) -> None:
    with opened(browser, calm, viewport={"width": 360, "height": 740}) as page:
        for view in VIEWS:
            tab(page, view)
            _open_details(page, view)
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, view
        tab(page, "Graph")
        cards = page.locator(".card")
        expect(cards.first).to_be_visible()
        assert max(cards.evaluate_all("cards => cards.map((card) => card.getBoundingClientRect().right)")) <= 360


def test_the_theme_follows_the_system_until_one_is_chosen(browser: Browser, calm: FakeServer) -> None:
    with opened(browser, calm, color_scheme="dark") as page:
        dark = ground_of(page)
        page.get_by_role("button", name="Theme: auto").click()
        light = ground_of(page)
        assert light != dark
        page.reload()
        expect(page.get_by_role("button", name="Theme: light")).to_be_visible()
        assert ground_of(page) == light


def ground_of(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))
