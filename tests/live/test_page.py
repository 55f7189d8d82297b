"""The page in a real Chromium, as an operator uses it: questions answered by looking, by keyboard, in light and dark.

The application is served alone, to one who is logged in; the last test goes through Airflow.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from playwright.sync_api import expect

from tests.conftest import settings_in
from tests.support.page_home import DAY_MS, PageHome
from tidemark.atomic_files import write_whole
from tidemark.catalog.opening.opening import Direction
from tidemark.catalog.opening.protocol import FENCE_STASH
from tidemark.clock import SystemClock
from tidemark.collections.deployment import Mode
from tidemark.interval import time_text
from tidemark.settings import PROJECT_ROOT
from tools.local_airflow.settings import AirflowSettings

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, ConsoleMessage, Page, Response
    from sqlalchemy.orm import Session

    from tools.local_airflow.client import AirflowClient
    from tools.local_airflow.standalone import Standalone

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: install Debian's package of that name"),
]

IMAGES = PROJECT_ROOT / "docs" / "images"  # drawn anew with WRITE_IMAGES=1 in the environment: they show the time
WAIT_MS = 20_000
MOST_IMAGE_BYTES = 200_000
VIEWS = {
    "overview": "#/",
    "collection": "#/collections/planes",
    "refused": "#/collections/flights",
    "partitions": "#/collections/visits",
    "staged": "#/staged",
    "buffers": "#/buffers",
    "catalog": "#/catalog",
    "deployments": "#/deployments",
}
PICTURED = {"overview": 720, "collection": 1500}  # and their heights


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> PageHome:
    """An installation of which everything has gone wrong that can."""
    folder = tmp_path_factory.mktemp("page")
    now_ms = SystemClock().now_ms()
    page = PageHome(settings_in(folder / "home"), now_ms=now_ms, days=12)
    page.declare_late("airports", days_ago=5)
    page.ingest_visits()
    page.ingest_events()
    page.carry_planes()
    page.change_planes()
    page.refuse_flights()
    page.stage_weather()
    page.home.switch(Mode.READ_WRITE)  # a read-only deployment records no run, and so nothing is late
    return page


@contextmanager
def served(home: PageHome, **environ: str) -> Iterator[str]:
    """The address of the page, for somebody who may see it."""
    import uvicorn
    from airflow.api_fastapi.app import create_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.api_fastapi.common.db.common import _get_session
    from airflow.api_fastapi.core_api.security import get_user
    from fastapi import FastAPI

    from tests.support.airflow_events import airflow_events
    from tidemark.orchestration.status_page.app import status_app

    more = {**AirflowSettings.read().environment(), "TIDEMARK_HOME": str(home.settings.home), **environ}
    before, overrides = dict(os.environ), dict(status_app().dependency_overrides)
    os.environ.update(more)
    create_auth_manager()
    page = status_app()
    page.dependency_overrides[_get_session] = airflow_events
    page.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="operator", role="VIEWER")
    whole = FastAPI()
    whole.mount("/tidemark", page)
    server = uvicorn.Server(uvicorn.Config(whole, port=0, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.02)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/tidemark/"
    finally:
        server.should_exit = True
        thread.join()
        page.dependency_overrides = overrides
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="module")
def address(home: PageHome) -> Iterator[str]:
    with served(home) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(params=["light", "dark"])
def theme(request: pytest.FixtureRequest) -> Any:
    return request.param


@contextmanager
def opened(
    browser: Browser, address: str, theme: Any = "light", height: int = 900, expected: Collection[int] = ()
) -> Iterator[Page]:
    """A page of a browser of its own; what the console complains about fails the test, and so does an answer of 400
    or more that is not ``expected``.
    """
    context = browser.new_context(color_scheme=theme, viewport={"width": 1280, "height": height})
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    complaints: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"} and not message.text.startswith("Failed to load resource"):
            complaints.append(message.text)

    def see(answer: Response) -> None:
        if answer.status >= 400 and answer.status not in expected:
            complaints.append(f"{answer.status} {answer.url}")

    page.on("console", hear)
    page.on("response", see)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(address)
    page.wait_for_selector("h1")
    yield page
    context.close()
    assert not complaints


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    with opened(browser, address) as page:
        yield page


def go(page: Page, view: str, title: str) -> str:
    """Open a view by its address, and return what it says once it is there."""
    page.evaluate("view => { location.hash = view }", view)
    page.wait_for_selector(f"h1:text-is({title!r})")
    return page.inner_text("main")


def need(page: Page, what: str) -> str:
    """Return the line of the overview that says so."""
    return page.inner_text(f"table:has(caption:text('needs a person')) tr:has-text('{what}')")


# -- the questions of an operator, answered by looking -------------------------------------------------------------


def test_which_collection_is_late_and_since_when(page: Page, home: PageHome) -> None:
    line = need(page, "late")
    assert "airports" in line
    assert time_text((home.now_ms - 4 * DAY_MS) // 1000 * 1000) in line, "its next run was to be then"
    assert "no run for 5 d; usually there is one every 24 h" in line


def test_why_nothing_is_published_and_what_ends_that(page: Page, home: PageHome) -> None:
    home.home.switch(Mode.READ_ONLY)
    try:
        page.wait_for_selector("tr:has-text('deployment 1')", timeout=WAIT_MS)
        line = need(page, "read-only")
        assert "tests made it read-only: a test" in line
        assert "tidemark mode read-write" in line
        assert page.locator("tr:has-text('airports') .badge:text-is('late')").count() == 0, "no run is recorded"
    finally:
        home.home.switch(Mode.READ_WRITE)


def test_what_changed_in_planes_last_night(page: Page) -> None:
    shown = go(page, "#/collections/planes", "collection planes")
    assert "correct: 2 came, 1 went" in shown
    rows = page.locator("h3:has-text('2 came') + div tbody tr").all_inner_texts()
    assert [row.split("\t") for row in rows] == [
        ["before", "2", "Airbus A320"],
        ["after", "2", "Airbus A321"],
        ["came", "4", "<b>Concorde</b>"],
    ]
    assert page.locator("h3:has-text('2 came') + div mark").all_inner_texts() == ["Airbus A320", "Airbus A321"]


def test_why_was_flights_refused(page: Page) -> None:
    line = need(page, "flights")
    assert "3 of 4 rows would go, and max_delete_ratio is 0.5" in line
    assert "--max-delete-ratio 1" in line, "and what to do about it"
    page.click("text=flights")
    page.wait_for_selector("h2:text('Why it was refused')")
    assert "<b>AA 7</b>" in page.inner_text("table:has(caption:text('refused'))")


def test_may_i_promote(browser: Browser, home: PageHome, page: Page) -> None:
    assert "There is nothing to promote: this deployment (1) leads." in go(page, "#/deployments", "Deployments")
    with served(home, TIDEMARK_GENERATION="2") as address, opened(browser, f"{address}#/deployments") as beside:
        answer = beside.inner_text(".answer")
        assert answer == "Not yet: 6 of 7 objects are not caught up."
        assert "no run of this deployment has looked at it yet" in beside.inner_text("tr:has-text('planes')")


def test_each_answer_to_that(browser: Browser, tmp_path: Path) -> None:
    page = PageHome(settings_in(tmp_path / "home"), now_ms=SystemClock().now_ms())
    page.stand_by()

    def answer(generation: int) -> str:
        address = served(page, TIDEMARK_GENERATION=str(generation))
        with address as url, opened(browser, f"{url}#/deployments") as shown:
            return shown.inner_text("main")

    leading, newer = answer(1), answer(2)
    assert "2\tstands by\tread-only" in leading
    assert "Yes: this deployment (2) is ready to take over from 1." in newer
    assert "→ run promote_deployment, or tidemark deployment promote" in newer
    page.home.die_after(Direction.MIGRATE, FENCE_STASH)
    opening = answer(2)
    assert "Nobody can tell now" in opening
    assert "the catalog's stash is being opened at epoch" in opening
    assert "run `tidemark catalog open`" in opening
    page.home.of_generation(2).open()
    assert "A promotion of this deployment (2) is under way, or died: run it again." in answer(2)
    assert "No: deployment 2 leads, and has replaced this one (1) for good." in answer(1)


def test_what_is_staged_and_for_how_long(page: Page) -> None:
    go(page, "#/staged", "Staged")
    (first, _) = page.locator("tbody tr").all_inner_texts()
    assert "weather" in first
    assert "ago" in first
    assert "wait until deployment 1 flushes" in first


def test_what_holds_history_back(page: Page) -> None:
    assert "the hold of 'sink-copies' on 'planes' keeps" in need(page, "overdue hold")
    go(page, "#/collections/planes", "collection planes")
    line = page.inner_text("tr:has-text('sink-copies')")
    assert "overdue" in line
    assert "tidemark sink run copies" in line


# -- how it is used ------------------------------------------------------------------------------------------------


def test_names_and_texts_with_markup_are_shown_as_text(browser: Browser, address: str) -> None:
    with opened(browser, address, expected={404}) as page:
        go(page, "#/collections/planes", "collection planes")
        assert page.locator("main b").count() == 0
        assert "<b>Concorde</b>" in page.inner_text("main")
        shown = go(page, "#/collections/%3Cimg%20src%3Dx%3E", "<img src=x>")
        assert "no collection or sink is named '<img src=x>'" in shown
        assert page.locator("main img").count() == 0


@pytest.mark.parametrize("view", VIEWS)
def test_the_keyboard_reaches_everything(page: Page, address: str, view: str) -> None:
    page.goto(address + VIEWS[view])
    page.reload()
    page.wait_for_selector("h1")
    wanted = page.locator("a, button, input, [tabindex='0']").count()
    reached = set()
    for _ in range(wanted + 15):  # a time has a stop for each of its parts
        page.keyboard.press("Tab")
        reached.add(page.evaluate("[...document.querySelectorAll('*')].indexOf(document.activeElement)"))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none" or page.evaluate("document.activeElement === document.body"), "the focus is visible"
    body = page.evaluate("[...document.querySelectorAll('*')].indexOf(document.body)")
    assert len(reached - {body}) == wanted


def test_a_view_is_opened_and_used_by_keyboard_alone(page: Page, home: PageHome) -> None:
    page.focus("#search")
    page.keyboard.type("flight")
    assert page.locator("table:has(caption:text('All objects')) tbody tr").all_inner_texts()[0].startswith("flights")
    assert "1 of 7 match" in page.inner_text("main")
    assert page.evaluate("location.hash") == "#/?search=flight", "which can be sent to others"
    page.focus("table:has(caption:text('All objects')) a")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('flights')")
    assert page.evaluate("document.activeElement.id") == "main", "where a screen reader goes on"
    go(page, "#/collections/planes", "collection planes")
    page.focus("#limit")
    page.keyboard.press("Control+A")
    page.keyboard.type("1")
    page.keyboard.press("Enter")
    expect(page.locator("[aria-label='Contents'] tbody tr")).to_have_count(1)


def test_contents_are_those_of_a_time(browser: Browser, address: str, home: PageHome) -> None:
    then = time_text((home.now_ms - 5 * DAY_MS) // 1000 * 1000).replace(" ", "T")
    with opened(browser, address, expected={400}) as page:
        go(page, f"#/collections/planes?as_of={then}", "collection planes")
        assert "Embraer 190" in page.inner_text("[aria-label='Contents']")
        assert page.input_value("#as-of").startswith(then[:16])
        page.fill("#as-of", "2099-01-01T00:00:00")
        page.evaluate("document.querySelector('form').noValidate = true")
        page.click("button")
        expect(page.locator("main")).to_contain_text("are not final")
        assert "Airbus A321" in page.inner_text("main"), "an error of the contents leaves the rest of the view"


def test_rows_that_could_not_be_read_are_read_again(browser: Browser, address: str) -> None:
    away = {"error": {"kind": "Unreachable", "message": "no answer", "hint": "wait"}}
    with opened(browser, address, expected={502}) as page:
        page.route("**/contents?*", lambda route: route.fulfill(status=502, json=away), times=1)
        assert "no answer" in go(page, "#/collections/visits", "ingestion visits")
        expect(page.locator("[aria-label='Contents'] tbody tr")).to_have_count(3, timeout=WAIT_MS)
        assert "no answer" not in page.inner_text("main")


def test_tasks_that_tell_of_a_change_after_its_commit_are_shown(browser: Browser, tmp_path: Path) -> None:
    from airflow.api_fastapi.common.db.common import _get_session

    from tests.support.airflow_events import add_event, airflow_events
    from tidemark.orchestration.status_page.app import status_app

    def with_another() -> Iterator[Session]:
        for session in airflow_events():
            add_event(session, "manual__later")
            yield session

    home = PageHome(settings_in(tmp_path / "home"), now_ms=SystemClock().now_ms())  # nothing holds planes there
    with served(home) as address, opened(browser, f"{address}#/collections/planes") as page:
        assert "manual__later" not in page.inner_text("main")
        status_app().dependency_overrides[_get_session] = with_another
        expect(page.locator("main")).to_contain_text("manual__later", timeout=WAIT_MS)


def test_each_dag_that_failed_keeps_its_reason(page: Page, home: PageHome) -> None:
    reconciled = home.settings.reports / "reconcile_collections.json"
    maintained = reconciled.with_name("maintain_collections.json")

    def fail(message: str) -> None:
        report = json.loads(reconciled.read_text()) | {"operation": "maintain"}
        report["collections"]["flights"]["error"]["message"] = message
        write_whole(maintained, json.dumps(report))

    fail("the first try")
    try:
        assert "the first try" in go(page, "#/collections/flights", "collection flights")
        fail("the second try")
        expect(page.locator("main")).to_contain_text("the second try", timeout=WAIT_MS)
        assert page.locator("h2:text('Why it was refused')").count() == 2
        assert "3 of 4 rows would go" in page.inner_text("main")
    finally:
        maintained.unlink()
    expect(page.locator("main")).not_to_contain_text("the second try", timeout=WAIT_MS)
    assert "3 of 4 rows would go" in page.inner_text("main")


def test_it_keeps_itself_up_to_date_and_leaves_the_focus_where_it_is(page: Page, home: PageHome) -> None:
    page.focus("table:has(caption:text('All objects')) >> text=planes")
    page.evaluate("document.activeElement.marked = true")
    home.home.deployment.objects.pause(["airports"], why="a <b>check</b>")
    try:
        page.wait_for_selector("tr:has-text('a <b>check</b>')", timeout=WAIT_MS)
    finally:
        home.home.deployment.objects.resume(["airports"])
    assert page.evaluate("document.activeElement.marked"), "the same element, with the focus"
    page.wait_for_selector("tr:has-text('a <b>check</b>')", state="detached", timeout=WAIT_MS)


def test_an_outage_is_told_and_what_was_shown_stays(browser: Browser, home: PageHome) -> None:
    with served(home) as address:
        context = browser.new_context()
        page = context.new_page()
        page.goto(address)
        page.wait_for_selector("h1")
    expect(page.locator("#notice")).to_contain_text("Airflow does not answer", timeout=WAIT_MS)
    assert "planes" in page.inner_text("main")
    context.close()


def test_the_theme_is_the_one_chosen_in_airflow(page: Page) -> None:
    page.evaluate("localStorage.setItem('theme', 'dark')")
    page.reload()
    page.wait_for_selector("h1")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 29)"


def test_links_leave_the_frame_in_which_airflow_shows_the_page(browser: Browser, address: str) -> None:
    frame = (
        f"<iframe src='{address}#/collections/planes' sandbox='allow-scripts allow-same-origin allow-forms'></iframe>"
    )
    context = browser.new_context()
    page = context.new_page()
    page.route("**/around", lambda route: route.fulfill(content_type="text/html", body=frame))
    page.goto(address.replace("/tidemark/", "/around"))
    page.frame_locator("iframe").locator("text=reconcile_collections").first.click()
    page.wait_for_url("**/dags/reconcile_collections")
    context.close()


# -- how it looks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS)
def test_each_view_is_accessible_in_light_and_dark(browser: Browser, address: str, view: str, theme: Any) -> None:
    from axe_playwright_python.sync_playwright import Axe

    with opened(browser, address + VIEWS[view], theme) as page:
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.dataset.theme") == theme
        page.evaluate("scrollTo(0, 0)")
        found = Axe().run(page)
        assert not found.response["violations"], found.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing hangs over the edge"


@pytest.mark.parametrize("view", PICTURED)
def test_screenshots_for_the_docs(browser: Browser, address: str, view: str, tmp_path: Path) -> None:
    path = (IMAGES if "WRITE_IMAGES" in os.environ else tmp_path) / f"page-{view}.png"
    with opened(browser, address + VIEWS[view], height=PICTURED[view]) as page:
        page.wait_for_load_state("networkidle")
        page.screenshot(path=path)
    assert path.stat().st_size < MOST_IMAGE_BYTES
    assert (IMAGES / path.name).exists()


# -- in Airflow itself ---------------------------------------------------------------------------------------------


def test_airflow_shows_it_to_its_own_users_alone(browser: Browser, airflow: Standalone, client: AirflowClient) -> None:
    forged = {"Authorization": "Bearer forged"}  # without one, this Airflow takes everybody for an administrator
    for path in ("", "status", "api/v1/overview", "static/page.js"):
        assert httpx.get(f"{airflow.url}/tidemark/{path}", headers=forged).status_code == 403
        assert client.get_page(f"/tidemark/{path}").status_code == 200
    context = browser.new_context(base_url=airflow.url)
    page = context.new_page()
    page.goto("/plugin/tidemark-collections")
    inside = page.frame_locator("iframe")
    inside.locator("table:has(caption:text('All objects')) >> text=planes").click(timeout=3 * WAIT_MS)
    inside.locator("text=reconcile_collections").first.click()
    page.wait_for_url("**/dags/reconcile_collections**", timeout=WAIT_MS)
    context.close()
