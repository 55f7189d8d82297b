"""The status page's application on a home of the test's own, and who asks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from airflow.api_fastapi.app import create_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.common.db.common import _get_session
from airflow.api_fastapi.core_api.security import get_user
from fastapi.testclient import TestClient

from tests.support.airflow_events import airflow_events
from tidemark.orchestration.status_page.app import status_app
from tools.local_airflow.settings import AirflowSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastapi import FastAPI

    from tidemark.settings import Settings


@pytest.fixture
def app(home: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[FastAPI]:
    for name, value in AirflowSettings.read().environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TIDEMARK_HOME", str(home.home))
    create_auth_manager()
    app = status_app()
    app.dependency_overrides[_get_session] = airflow_events
    yield app
    app.dependency_overrides.clear()


@pytest.fixture
def logged_in(app: FastAPI) -> Iterator[TestClient]:
    """Somebody with the least role that Airflow has."""
    app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="somebody", role="VIEWER")
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client
