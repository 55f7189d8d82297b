"""Every route of the page is refused to visitors, and to users without permission; files come with a strict policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api.security import get_user
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from tidemark.orchestration.status_page.app import STATIC, status_app

if TYPE_CHECKING:
    from fastapi import FastAPI

ROUTES = [route.path for route in status_app().routes if isinstance(route, APIRoute)]


def addressed(path: str) -> str:
    return path.replace("{name}", "planes").replace("{path:path}", "page.js")


def test_the_page_has_no_other_kind_of_route() -> None:
    assert len(ROUTES) == len(status_app().routes), "a mounted application would be open to everybody"


@pytest.mark.parametrize("path", ROUTES)
def test_a_visitor_is_refused(app: FastAPI, path: str) -> None:
    with TestClient(app) as client:
        assert client.get(addressed(path)).status_code == 401


@pytest.mark.parametrize("path", ROUTES)
def test_a_user_without_permission_is_refused(app: FastAPI, path: str) -> None:
    app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="nobody", role=None)
    with TestClient(app) as client:
        assert client.get(addressed(path)).status_code == 403


@pytest.mark.parametrize("path", ["", *(f"static/{file.relative_to(STATIC)}" for file in STATIC.rglob("*.[cj]s*"))])
def test_files_come_with_a_policy_against_what_is_not_theirs(logged_in: TestClient, path: str) -> None:
    answer = logged_in.get(f"/{path}")
    assert answer.status_code == 200
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    again = logged_in.get(f"/{path}", headers={"If-None-Match": answer.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_the_page_holds_nothing_that_the_policy_would_refuse() -> None:
    text = (STATIC / "index.html").read_text(encoding="utf-8")
    assert "<style" not in text
    assert " style=" not in text
    assert "<script>" not in text
    for script in ("page.js", "views.js", "dom.js", "plots.js"):
        text = (STATIC / script).read_text(encoding="utf-8")
        assert "innerHTML" not in text, "texts go in as texts"
        assert "http" not in text.replace("http://www.w3.org/2000/svg", ""), "everything works offline"


@pytest.mark.parametrize("path", ["../app.py", "..%2Fapp.py", "vendor/uPlot.LICENSE", "nothing.js", ""])
def test_no_other_file_is_served(logged_in: TestClient, path: str) -> None:
    assert logged_in.get(f"/static/{path}").status_code == 404
