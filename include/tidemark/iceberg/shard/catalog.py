"""Opens the one Iceberg SQL catalog that Spark's JdbcCatalog and pyiceberg share."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from copy import copy
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl
from uuid import uuid4
from weakref import finalize

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import ICEBERG_TABLE_TYPE, IcebergTables, SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io import PY_IO_IMPL, FileIO, load_file_io
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import MetadataLogEntry, Snapshot, SnapshotLogEntry
from pyiceberg.table.sorting import SortOrder
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier
from sqlalchemy import URL, Connection, Row, bindparam, or_, select, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from tidemark.errors import Unreachable
from tidemark.iceberg.files import arrow_projection, avro_schemas
from tidemark.iceberg.files.checked_io import CheckedFileIO
from tidemark.iceberg.shard.state_reader import CATALOG_NAME, check_reachable
from tidemark.locations import is_read_only, reading_uri, to_path
from tidemark.secrets.redaction import first_line
from tidemark.settings import Settings

# Here, because whoever reads or writes a table has it from a catalog.
arrow_projection.mend()
avro_schemas.mend()

SQLITE_TIMEOUT_S = 30
_CACHED = 16  # parsed metadata files; to parse a file of 200 snapshots takes 12 ms
_Model = TypeVar("_Model")
_Entry = TypeVar("_Entry", SnapshotLogEntry, MetadataLogEntry)


def _uncopied(model: _Model, _memo: object) -> _Model:
    return model


# With each commit pyiceberg copies all metadata deeply: with a thousand snapshots that takes longer than all else that
# an append does. Nobody changes what the metadata consist of, so that old and new metadata can share it.
for _shared in (Snapshot, SnapshotLogEntry, SnapshotRef, MetadataLogEntry, Schema, PartitionSpec, SortOrder):
    _shared.__deepcopy__ = _uncopied  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class StagedCommit:
    """New metadata of ``table`` in a file that the catalog does not name yet."""

    table: Table
    metadata: TableMetadata
    location: str


class CachingCatalog(SqlCatalog):
    """Asks the database every time, and parses each metadata file once: no metadata file is ever written twice.

    A commit needs the same file at least twice: when the commit is decided and when its requirements are checked. What
    the last commit of this process wrote is not parsed at all.
    """

    settings: Settings | None = None  # that named it, for questions that no table answers

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        # Built once: building takes longer than SQLite's answer. Spark may keep views beside the tables.
        self._question = select(IcebergTables.metadata_location).where(
            IcebergTables.catalog_name == name,
            IcebergTables.table_namespace == bindparam("namespace"),
            IcebergTables.table_name == bindparam("name"),
            or_(IcebergTables.iceberg_type == ICEBERG_TABLE_TYPE, IcebergTables.iceberg_type.is_(None)),
        )
        self._replacement = (
            update(IcebergTables)
            .where(
                IcebergTables.catalog_name == name,
                IcebergTables.table_namespace == bindparam("namespace"),
                IcebergTables.table_name == bindparam("name"),
                IcebergTables.metadata_location == bindparam("old"),
            )
            .values(metadata_location=bindparam("new"), previous_metadata_location=bindparam("old"))
        )
        self.forget()

    def forget(self) -> None:
        """Forget what was parsed."""
        self._written: dict[str, TableMetadata] = {}
        # Not a method: a catalog that refers to itself would keep its connections until the garbage collector runs.
        self._parse = lru_cache(maxsize=_CACHED)(partial(_parse_metadata, self.properties, self._written))

    def beside(self) -> CachingCatalog:
        """Return a catalog for another thread: with a memory of its own, over the pooled connections of this one."""
        other = copy(self)
        other.forget()
        return other

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        try:
            present = self.load_table(table.name())
        except NoSuchTableError:
            return super().commit_table(table, requirements, updates)
        staged = self.stage_commit(present, requirements, updates)
        if staged.location == present.metadata_location:
            return CommitTableResponse(metadata=present.metadata, metadata_location=present.metadata_location)
        if self.land([staged]):
            raise CommitFailedException(f"Table has been updated by another process: {'.'.join(table.name())}")
        self._written.clear()
        self._written[staged.location] = staged.metadata
        return CommitTableResponse(metadata=staged.metadata, metadata_location=staged.location)

    def stage_commit(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> StagedCommit:
        """Write the metadata with ``updates`` to a new file, unless nothing changes.

        Raises ``CommitFailedException`` if a requirement fails.
        """
        staged = self._update_and_stage_table(table, table.name(), requirements, updates)
        if staged.metadata == table.metadata:
            return StagedCommit(table, table.metadata, table.metadata_location)
        metadata = in_order(staged.metadata)
        self._write_metadata(metadata, staged.io, staged.metadata_location)
        return StagedCommit(table, metadata, staged.metadata_location)

    def land(self, commits: Iterable[StagedCommit]) -> list[StagedCommit]:
        """Let the catalog name the new metadata, in one transaction; return the commits that others came before."""
        with self.engine.begin() as connection:
            return [commit for commit in commits if not self._replace(connection, commit)]

    def _replace(self, connection: Connection, commit: StagedCommit) -> bool:
        *namespace, name = commit.table.name()
        values = {"namespace": ".".join(namespace), "name": name}
        values |= {"old": commit.table.metadata_location, "new": commit.location}
        return connection.execute(self._replacement, values).rowcount == 1

    def move_table(self, table: Table, target: Identifier) -> bool:
        """Give ``table`` the name ``target``, in one statement; return False if the table has changed since its load.

        Unlike ``rename_table``: by then the old name may belong to another table.

        Raises ``TableAlreadyExistsError`` if ``target`` is taken.
        """
        *namespace, name = table.name()
        *target_namespace, target_name = target
        rename = (
            update(IcebergTables)
            .where(
                IcebergTables.catalog_name == self.name,
                IcebergTables.table_namespace == ".".join(namespace),
                IcebergTables.table_name == name,
                IcebergTables.metadata_location == table.metadata_location,
            )
            .values(table_namespace=".".join(target_namespace), table_name=target_name)
        )
        try:
            with self.engine.begin() as connection:
                return connection.execute(rename).rowcount == 1
        except IntegrityError as error:
            raise TableAlreadyExistsError(f"there is a table {'.'.join(target)} already") from error

    def free_location(self, identifier: Identifier) -> str | None:
        """Return None if a new table may lie in its usual folder, else a folder of its own.

        A table that was renamed stays where it lies, and whoever removes orphans looks at whole folders.
        """
        *namespace, name = identifier
        usual = self._get_default_warehouse_location(".".join(namespace), name)
        return f"{usual}-{uuid4().hex}" if self._tables_below(usual) else None

    def lies_alone(self, table: Table) -> bool:
        """Tell whether no other table lies in the folder of ``table``."""
        return self._tables_below(table.location()) <= {table.metadata_location}

    def _tables_below(self, location: str) -> set[str]:
        """Return the metadata files below the folder ``location`` that the catalog names."""
        below = IcebergTables.metadata_location.startswith(f"{location}/", autoescape=True)
        question = select(IcebergTables.metadata_location).where(IcebergTables.catalog_name == self.name, below)
        with asking_the_catalog(), self.engine.connect() as connection:
            return {location for location in connection.execute(question).scalars() if location}

    def location_of(self, identifier: str | Identifier) -> str | None:
        """Return the metadata file of a table, which each commit replaces, with one question; None without a table."""
        row = self._row_of(identifier)
        return None if row is None else row[0]

    def load_table(self, identifier: str | Identifier) -> Table:
        row = self._row_of(identifier)
        if row is None or not row[0]:
            raise NoSuchTableError(f"there is no table {identifier!r}, or it has no metadata")
        metadata, io = self._parse(row[0])
        return Table(Catalog.identifier_to_tuple(identifier), metadata, row[0], io, self)

    def table_exists(self, identifier: str | Identifier) -> bool:
        """Ask for the row alone: a table whose metadata file is gone exists, too."""
        return self._row_of(identifier) is not None

    def _row_of(self, identifier: str | Identifier) -> Row[str | None] | None:
        *namespace, name = Catalog.identifier_to_tuple(identifier)
        with self.engine.connect() as connection:
            return connection.execute(self._question, {"namespace": ".".join(namespace), "name": name}).first()


def in_order(metadata: TableMetadata) -> TableMetadata:
    """Return new metadata whose logs never go back, and hold nothing later than the commit that makes these metadata.

    Iceberg's Java library, and so Spark and Trino, reads no table whose logs go back by more than a minute, as after a
    commit by a clock that was ahead; and Spark commits nothing to one whose logs are ahead.
    """
    logs = {
        name: _rising(getattr(metadata, name), metadata.last_updated_ms) for name in ("snapshot_log", "metadata_log")
    }
    return metadata.model_copy(update=logs)


def _rising(log: Sequence[_Entry], latest_ms: int) -> list[_Entry]:
    times = accumulate((min(entry.timestamp_ms, latest_ms) for entry in log), max)
    return [
        entry if entry.timestamp_ms == time else entry.model_copy(update={"timestamp_ms": time})
        for entry, time in zip(log, times, strict=True)
    ]


def _parse_metadata(
    properties: Mapping[str, Any], written: dict[str, TableMetadata], location: str
) -> tuple[TableMetadata, FileIO]:
    """Return the metadata, and what reads and writes the files of the table."""
    metadata = written.pop(location, None)
    if metadata is None:
        metadata = FromInputFile.table_metadata(load_file_io(dict(properties), location).new_input(location))
    return metadata, load_file_io({**properties, **metadata.properties}, location)


@contextmanager
def asking_the_catalog() -> Iterator[None]:
    """Raise ``Unreachable`` if the catalog's database fails in a query; not for commits, which may have landed."""
    try:
        yield
    except SQLAlchemyError as error:
        reason = _reason(error)
        raise Unreachable(f"the catalog did not answer: {reason}", hint="check the catalog's address") from error


def open_catalog(settings: Settings) -> CachingCatalog:
    """Open the catalog, creating its tables (schema V1, which Spark adopts) if they are not there.

    Raises ``Unreachable`` if the database does not answer within ``settings.connect_timeout_s``.
    """
    check_reachable(settings)  # pyiceberg tries twice, and so would need twice the time to give up
    try:
        if settings.catalog_is_sqlite and not is_read_only(settings.catalog_path):
            _prepare_sqlite(settings.catalog_path)
        if (warehouse := to_path(settings.warehouse)) is not None:
            warehouse.mkdir(parents=True, exist_ok=True)
        catalog = CachingCatalog(
            CATALOG_NAME,
            uri=_sqlalchemy_uri(settings),
            warehouse=settings.warehouse,
            schema_version="v1",
            **{PY_IO_IMPL: f"{CheckedFileIO.__module__}.{CheckedFileIO.__name__}"},
            pool_pre_ping="true",  # a connection that idled through a restart of the server is replaced, not trusted
        )
        catalog.settings = settings
        finalize(catalog, catalog.engine.dispose)  # pooled connections are closed with their owner, and at exit
        return catalog
    except (SQLAlchemyError, sqlite3.Error, OSError) as error:
        raise Unreachable(
            f"the catalog at {settings.catalog_uri} cannot be reached: {_reason(error)}",
            hint="check TIDEMARK_CATALOG_URI (or the Airflow connection tidemark_catalog) and that the server runs",
        ) from error


def _sqlalchemy_uri(settings: Settings) -> str:
    if settings.catalog_is_sqlite:
        path, query = settings.catalog_path, {"timeout": str(SQLITE_TIMEOUT_S)}
        if is_read_only(path):
            database, _, options = reading_uri(path).partition("?")
            address = URL.create(
                "sqlite", database=database, query={**dict(parse_qsl(options)), **query, "uri": "true"}
            )
        else:
            address = URL.create("sqlite", database=str(path), query=query)
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
