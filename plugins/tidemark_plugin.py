"""The status page: what needs a person, and everything else; for whoever may see plugins in Airflow.

``/tidemark/`` is the page, ``/tidemark/api/v1`` the same as JSON (docs/page.md). State is read without a JVM, and only
what has changed is read again.
"""

from __future__ import annotations

from typing import Any, ClassVar

from airflow.plugins_manager import AirflowPlugin


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Hand over to the web application; imported at the first request, because plugins are loaded by every task too."""
    from tidemark.orchestration.status_page.app import status_app  # noqa: PLC0415

    await status_app()(scope, receive, send)


class TidemarkPlugin(AirflowPlugin):
    """Puts the status page into Airflow's user interface."""

    name = "tidemark"
    fastapi_apps: ClassVar[list[Any]] = [{"app": app, "url_prefix": "/tidemark", "name": "Tidemark"}]
    external_views: ClassVar[list[Any]] = [
        {
            "name": "Collections",
            "href": "tidemark/",
            "destination": "nav",
            "category": "browse",
            "url_route": "tidemark-collections",
        }
    ]
