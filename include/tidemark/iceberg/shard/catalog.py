"""Opens the one Iceberg SQL catalog that Spark's JdbcCatalog and pyiceberg share."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from weakref import finalize

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import load_file_io
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from sqlalchemy import URL
from sqlalchemy.exc import SQLAlchemyError

from tidemark.errors import Unreachable
from tidemark.iceberg.files import arrow_projection
from tidemark.iceberg.shard.state_reader import CATALOG_NAME, check_reachable
from tidemark.locations import to_path
from tidemark.secrets.redaction import first_line
from tidemark.settings import Settings

arrow_projection.mend()  # here, because whoever reads or writes a table has it from a catalog

SQLITE_TIMEOUT_S = 30
_CACHED = 16  # parsed metadata files; to parse a file of 200 snapshots takes 12 ms


class CachingCatalog(SqlCatalog):
    """Asks the database every time, and parses each metadata file once: no metadata file is ever written twice.

    A commit needs the same file at least twice: when the commit is decided and when its requirements are checked.
    """

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        # Not a method: a catalog that refers to itself would keep its connections until the garbage collector runs.
        self._parse = lru_cache(maxsize=_CACHED)(partial(_parse_metadata, self.properties))

    def _convert_orm_to_iceberg(self, orm_table: IcebergTables) -> Table:
        location = orm_table.metadata_location
        if not (location and orm_table.table_namespace and orm_table.table_name):
            raise NoSuchTableError(f"{orm_table.table_name!r} has no metadata")
        metadata = self._parse(location)
        return Table(
            identifier=(*Catalog.identifier_to_tuple(orm_table.table_namespace), orm_table.table_name),
            metadata=metadata,
            metadata_location=location,
            io=self._load_file_io(metadata.properties, location),
            catalog=self,
        )


def _parse_metadata(properties: Mapping[str, Any], location: str) -> TableMetadata:
    return FromInputFile.table_metadata(load_file_io(dict(properties), location).new_input(location))


@contextmanager
def asking_the_catalog() -> Iterator[None]:
    """Raise ``Unreachable`` if the catalog's database fails in a query; not for commits, which may have landed."""
    try:
        yield
    except SQLAlchemyError as error:
        reason = _reason(error)
        raise Unreachable(f"the catalog did not answer: {reason}", hint="check the catalog's address") from error


def open_catalog(settings: Settings) -> SqlCatalog:
    """Open the catalog, creating its tables (schema V1, which Spark adopts) if they are not there.

    Raises ``Unreachable`` if the database does not answer within ``settings.connect_timeout_s``.
    """
    check_reachable(settings)  # pyiceberg tries twice, and so would need twice the time to give up
    try:
        if settings.catalog_is_sqlite:
            _prepare_sqlite(settings.catalog_path)
        if (warehouse := to_path(settings.warehouse)) is not None:
            warehouse.mkdir(parents=True, exist_ok=True)
        catalog = CachingCatalog(
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
            f"the catalog at {settings.catalog_uri} cannot be reached: {_reason(error)}",
            hint="check TIDEMARK_CATALOG_URI (or the Airflow connection tidemark_catalog) and that the server runs",
        ) from error


def _sqlalchemy_uri(settings: Settings) -> str:
    if settings.catalog_is_sqlite:
        address = URL.create("sqlite", database=str(settings.catalog_path), query={"timeout": str(SQLITE_TIMEOUT_S)})
        return address.render_as_string()  # percent-encoded: SQLAlchemy decodes the path
    timeout = max(2, int(settings.connect_timeout_s))  # libpq takes 1 for 2
    separator = "&" if settings.catalog_uri.options else "?"
    return settings.catalog_uri.reveal("postgresql+psycopg") + f"{separator}connect_timeout={timeout}"


def _prepare_sqlite(path: Path) -> None:
    """Switch the file to WAL, which sticks: readers then do not block the writer, in Python as in the JVM."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path, timeout=SQLITE_TIMEOUT_S)) as connection:
        if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
            connection.execute("PRAGMA journal_mode=WAL")


def _reason(error: Exception) -> str:
    """Return the first line of the driver's own message; SQLAlchemy's adds the statement and a link."""
    return first_line(getattr(error, "orig", None) or error)
