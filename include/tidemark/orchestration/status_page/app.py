"""The status page as a web application, which the plugin adds to Airflow."""

from __future__ import annotations

from functools import cache
from typing import Any

from airflow.api_fastapi.core_api.security import get_user
from fastapi import Depends, FastAPI
from fastapi.responses import HTMLResponse, JSONResponse

from tidemark.clock import SystemClock
from tidemark.errors import TidemarkError
from tidemark.exit_codes import ExitCode
from tidemark.orchestration.connections import load_settings
from tidemark.orchestration.status_page.status import collections_status, last_reports, resting_objects, status_page
from tidemark.storage.view import read_whole_view

# The page needs no scripts and no other hosts.
HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
BAD_GATEWAY, SERVER_ERROR = 502, 500


@cache
def status_app() -> FastAPI:
    """Return the application."""
    # Airflow does not protect a plugin's routes: this dependency refuses whoever is not logged in.
    app = FastAPI(title="Tidemark", docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(get_user)])
    app.add_api_route("/", _page, response_class=HTMLResponse)
    app.add_api_route("/status", _status)
    app.add_exception_handler(TidemarkError, _explain)
    return app


def _status() -> dict[str, Any]:
    settings = load_settings()
    return {
        "collections": collections_status(settings),
        "resting": resting_objects(settings),
        "reports": last_reports(settings),
        "storage": read_whole_view(settings, clock=SystemClock()),
    }


def _page() -> HTMLResponse:
    return HTMLResponse(status_page(**_status()), headers=HEADERS)


def _explain(_request: Any, error: Exception) -> JSONResponse:
    """Return an error as the command line does: the message and the hint, never a stack trace."""
    if not isinstance(error, TidemarkError):
        raise error
    code = BAD_GATEWAY if error.exit_code is ExitCode.UNREACHABLE else SERVER_ERROR
    body = {"error": {"kind": error.kind, "message": str(error), "hint": error.hint}}
    return JSONResponse(body, status_code=code)
