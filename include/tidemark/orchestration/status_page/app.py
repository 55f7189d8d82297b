"""The status page as a web application, which the plugin adds to Airflow: a JSON interface, and files that show it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import requires_access_view
from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from tidemark.errors import AsOfBeforeSince, NotYetAvailable, TidemarkError, UnknownCollection, UsageError
from tidemark.exit_codes import ExitCode
from tidemark.interval import LATEST_MS
from tidemark.orchestration.connections import load_settings
from tidemark.orchestration.status_page.buffers import read_storage, show_buffers
from tidemark.orchestration.status_page.catalog import show_catalog
from tidemark.orchestration.status_page.collection import lineage_of, show_collection, show_contents, show_corrections
from tidemark.orchestration.status_page.deployments import show_deployments
from tidemark.orchestration.status_page.observed import Observer, observer_of
from tidemark.orchestration.status_page.overview import show_overview
from tidemark.orchestration.status_page.published import show_tasks
from tidemark.orchestration.status_page.staged import show_staged
from tidemark.orchestration.status_page.status import last_reports, show_status
from tidemark.secrets.redaction import first_line

API: Final = "/api/v1"
MOST_ROWS: Final = 200  # of contents, in one answer
STATIC: Final = Path(__file__).with_name("static")
# Nothing from other hosts, nothing inline: a text from the data that became markup by mistake could do nothing.
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-cache",  # ask each time whether it is still the same
}
_MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_NOT_FOUND, _BAD_REQUEST, _BAD_GATEWAY, _SERVER_ERROR, _UNCHANGED = 404, 400, 502, 500, 304

Rows = Annotated[int, Query(ge=0, le=MOST_ROWS)]
Time = Annotated[int | None, Query(ge=0, le=LATEST_MS)]


@cache
def status_app() -> FastAPI:
    """Return the application."""
    # Airflow does not protect a plugin's routes: this dependency refuses whoever is not logged in, or may not see
    # plugins. It holds for routes alone, not for mounted applications: files are routes, too.
    allowed = Depends(requires_access_view(AccessView.PLUGINS))
    app = FastAPI(title="Tidemark", docs_url=None, redoc_url=None, openapi_url=None, dependencies=[allowed])
    routes: dict[str, Callable[..., Any]] = {
        "/": _page,
        "/static/{path:path}": _file,
        "/status": _status,
        f"{API}/overview": _overview,
        f"{API}/collections/{{name}}": _collection,
        f"{API}/collections/{{name}}/contents": _contents,
        f"{API}/collections/{{name}}/corrections": _corrections,
        f"{API}/collections/{{name}}/tasks": _tasks,
        f"{API}/staged": _staged,
        f"{API}/buffers": _buffers,
        f"{API}/catalog": _catalog,
        f"{API}/deployments": _deployments,
        f"{API}/lineage": _lineage,
    }
    for path, answer in routes.items():
        app.add_api_route(path, answer, response_model=None)
    app.add_exception_handler(TidemarkError, _explain)
    app.add_exception_handler(RequestValidationError, _explain)
    app.add_exception_handler(_NOT_FOUND, _explain_unknown)
    app.add_exception_handler(Exception, _explain_defect)
    return app


# -- files ---------------------------------------------------------------------------------------------------------


def _page(request: Request) -> Response:
    return _file(request, "index.html")


def _file(request: Request, path: str) -> Response:
    """Return one of the files that belong to the page, and no other."""
    if (found := _files().get(path)) is None:
        return _explain_unknown(request)
    return _answer(request, found, _MEDIA_TYPES[Path(path).suffix])


@cache
def _files() -> dict[str, bytes]:
    found = (path for path in STATIC.rglob("*") if path.suffix in _MEDIA_TYPES)
    return {path.relative_to(STATIC).as_posix(): path.read_bytes() for path in found}


# -- data ----------------------------------------------------------------------------------------------------------


def _overview(request: Request) -> Response:
    observer, now_ms = _observer()
    seen = observer.look()
    storage = read_storage(observer, seen, now_ms=now_ms)
    return _json(request, show_overview(seen, storage, generation=observer.settings.generation, now_ms=now_ms))


def _collection(request: Request, name: str) -> Response:
    observer, now_ms = _observer()
    return _json(request, show_collection(observer, name, last_reports(observer.settings), now_ms=now_ms))


def _contents(request: Request, name: str, as_of: Time = None, limit: Rows = 20) -> Response:
    return _json(request, show_contents(_observer()[0], name, as_of, limit=limit))


def _corrections(request: Request, name: str) -> Response:
    return _json(request, show_corrections(_observer()[0], name))


def _tasks(request: Request, name: str, session: SessionDep) -> Response:
    return _json(request, show_tasks(session, name))


def _staged(request: Request) -> Response:
    return _json(request, show_staged(_observer()[0]))


def _buffers(request: Request) -> Response:
    observer, now_ms = _observer()
    return _json(request, show_buffers(observer, now_ms=now_ms))


def _catalog(request: Request) -> Response:
    return _json(request, show_catalog(_observer()[0]))


def _deployments(request: Request) -> Response:
    observer, now_ms = _observer()
    return _json(request, show_deployments(observer, now_ms=now_ms))


def _lineage(request: Request) -> Response:
    observer, _ = _observer()
    return _json(request, lineage_of(observer, observer.look()))


def _status(request: Request) -> Response:
    observer, now_ms = _observer()
    return _json(request, show_status(observer, now_ms=now_ms))


def _observer() -> tuple[Observer, int]:
    observer = observer_of(load_settings())
    return observer, observer.clock.now_ms()


def _json(request: Request, body: object) -> Response:
    return _answer(request, json.dumps(body, ensure_ascii=False, default=str).encode(), "application/json")


def _answer(request: Request, body: bytes, media_type: str) -> Response:
    """Return the body, or only that it is what the browser has already."""
    headers = HEADERS | {"ETag": f'"{hashlib.sha256(body).hexdigest()[:32]}"'}
    if request.headers.get("If-None-Match") == headers["ETag"]:
        return Response(status_code=_UNCHANGED, headers=headers)
    return Response(body, media_type=media_type, headers=headers)


def _explain(_request: Any, error: Exception) -> JSONResponse:
    """Return an error as the command line does: the message and the hint, never a stack trace."""
    if isinstance(error, RequestValidationError):
        told = "; ".join(f"{problem['loc'][-1]}: {problem['msg']}" for problem in error.errors())
        error = UsageError(told, hint="docs/page.md lists the parameters")
    if not isinstance(error, TidemarkError):
        raise error
    code = _BAD_GATEWAY if error.exit_code is ExitCode.UNREACHABLE else _SERVER_ERROR
    if isinstance(error, UsageError | AsOfBeforeSince | NotYetAvailable):
        code = _NOT_FOUND if isinstance(error, UnknownCollection) else _BAD_REQUEST
    return _error(code, error.kind, str(error), error.hint)


def _explain_unknown(request: Request, _error_of_route: Any = None) -> JSONResponse:
    message, hint = f"nothing is at {request.url.path!r}", "docs/page.md lists the addresses"
    return _error(_NOT_FOUND, UsageError.__name__, message, hint)


def _explain_defect(_request: Any, error: Exception) -> JSONResponse:
    """Return what nobody expected in one line; the server raises the error again, so that the log has its traceback."""
    hint = "the log of Airflow's API server has the traceback: report it with that"
    return _error(_SERVER_ERROR, type(error).__name__, first_line(error), hint)


def _error(code: int, kind: str, message: str, hint: str) -> JSONResponse:
    body = {"error": {"kind": kind, "message": message, "hint": hint}}
    return JSONResponse(body, status_code=code, headers=HEADERS)
