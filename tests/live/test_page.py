"""The page in a real Chromium, as an operator uses it: questions answered by looking, by keyboard, in light and dark.

The application is served alone, to one who is logged in; that Airflow lets in nobody else, tests/plugins tells.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import settings_in
from tests.support.page_home import PageHome
from tidemark.clock import SystemClock
from tidemark.settings import PROJECT_ROOT
from tools.local_airflow.settings import AirflowSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: run tools/setup as root"),
]

IMAGES = PROJECT_ROOT / "docs" / "images"
MOST_IMAGE_BYTES = 200_000
VIEWS = {
    "overview": "#/",
    "collection": "#/collections/planes",
    "refused": "#/collections/flights",
    "staged": "#/staged",
    "buffers": "#/buffers",
    "catalog": "#/catalog",
    "deployments": "#/deployments",
}
PICTURED = ("overview", "collection", "buffers", "deployments")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> PageHome:
    """An installation of which everything has gone wrong that can."""
    folder = tmp_path_factory.mktemp("page")
    now_ms = SystemClock().now_ms()
    page = PageHome(settings_in(folder / "home"), now_ms=now_ms, days=12)
    page.declare_late("airports", days_ago=5)
    page.ingest_events()
    page.carry_planes()
    page.change_planes()
    page.refuse_flights()
    page.stage_weather()
    return page


@contextmanager
def served(home: PageHome, **environ: str) -> Iterator[str]:
    """The address of the page, for somebody who may see it."""
    import uvicorn
    from airflow.api_fastapi.app import create_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.api_fastapi.core_api.security import get_user
    from fastapi import FastAPI

    from tidemark.orchestration.status_page.app import status_app

    more = {**AirflowSettings.read().environment(), "TIDEMARK_HOME": str(home.settings.home), **environ}
    before = dict(os.environ)
    os.environ.update(more)
    create_auth_manager()
    page = status_app()
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
        page.dependency_overrides.clear()
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
def opened(browser: Browser, address: str, theme: Any = "light", width: int = 1280) -> Iterator[Page]:
    """A page of a browser of its own; anything that the console complains about fails the test."""
    context = browser.new_context(color_scheme=theme, viewport={"width": width, "height": 900})
    page = context.new_page()
    complaints: list[str] = []
    page.on(
        "console", lambda message: complaints.append(message.text) if message.type in {"error", "warning"} else None
    )
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


def go(page: Page, view: str) -> str:
    """Open a view by its address, and return what it says."""
    page.evaluate("view => { location.hash = view }", view)
    page.wait_for_function(
        "view => document.querySelector('nav a[aria-current]')?.hash === view || view.includes('collections')", arg=view
    )
    page.wait_for_load_state("networkidle")
    return page.inner_text("main")


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
def test_screenshots_for_the_docs(browser: Browser, address: str, view: str) -> None:
    IMAGES.mkdir(exist_ok=True)
    with opened(browser, address + VIEWS[view]) as page:
        page.wait_for_load_state("networkidle")
        path = IMAGES / f"page-{view}.png"
        page.screenshot(path=path)
        assert path.stat().st_size < MOST_IMAGE_BYTES
