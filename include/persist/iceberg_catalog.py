"""Opens the one Iceberg SQL catalog that Spark's JdbcCatalog and pyiceberg share."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit
from weakref import finalize

from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy.exc import SQLAlchemyError

from include.errors import Unreachable
from include.persist.state_reader import check_reachable

if TYPE_CHECKING:
    from include.settings import Settings

CATALOG_NAME = "tidemark"  # the rows of the catalog's tables carry it: both sides must use the same name
SQLITE_TIMEOUT_S = 30


def open_catalog(settings: Settings) -> SqlCatalog:
    """Open the catalog, creating its tables (schema V1, which Spark adopts) if they are not there.

    Raises:
        Unreachable: If the database does not answer within ``settings.connect_timeout_s``.
    """
    check_reachable(settings)  # pyiceberg tries twice, and so would need twice the time to give up
    try:
        if settings.catalog_is_sqlite:
            _prepare_sqlite(settings.catalog_path)
        _prepare_warehouse(settings.warehouse)
        catalog = SqlCatalog(
            CATALOG_NAME,
            uri=_sqlalchemy_uri(settings),
            warehouse=settings.warehouse,
            schema_version="v1",
            pool_pre_ping="true",  # a connection that idled through a restart of the server is replaced, not trusted
        )
        finalize(catalog, catalog.engine.dispose)  # pooled connections are closed with their owner, and at exit
        return catalog
    except (SQLAlchemyError, sqlite3.Error, OSError) as error:
        raise Unreachable(
            f"the catalog at {redacted(settings.catalog_uri)} cannot be reached: {_reason(error)}",
            hint="check TIDEMARK_CATALOG_URI (or the Airflow connection tidemark_catalog) and that the server runs",
        ) from error


def redacted(uri: str) -> str:
    """Return ``uri`` without its password."""
    password = urlsplit(uri).password
    return uri.replace(f":{password}@", ":***@") if password else uri


def _sqlalchemy_uri(settings: Settings) -> str:
    if settings.catalog_is_sqlite:
        return f"{settings.catalog_uri}?timeout={SQLITE_TIMEOUT_S}"
    separator = "&" if "?" in settings.catalog_uri else "?"
    timeout = max(2, int(settings.connect_timeout_s))  # libpq takes 1 for 2
    return (
        "postgresql+psycopg" + settings.catalog_uri.removeprefix("postgresql") + f"{separator}connect_timeout={timeout}"
    )


def _prepare_sqlite(path: Path) -> None:
    """Switch the file to WAL, which sticks: readers then do not block the writer, in Python as in the JVM."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path, timeout=SQLITE_TIMEOUT_S)) as connection:
        if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
            connection.execute("PRAGMA journal_mode=WAL")


def _prepare_warehouse(uri: str) -> None:
    parts = urlsplit(uri)
    if parts.scheme == "file":
        Path(unquote(parts.path)).mkdir(parents=True, exist_ok=True)


def _reason(error: Exception) -> str:
    """Return the first line of the driver's own message; SQLAlchemy's adds the statement and a link."""
    cause = getattr(error, "orig", None) or error
    return str(cause).strip().splitlines()[0] if str(cause).strip() else type(error).__name__
