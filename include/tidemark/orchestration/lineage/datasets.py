"""What sources, collections and targets are called in OpenLineage, so that other tools name the same things alike.

A namespace is a system, a name is what lies in it. Neither holds a login. None stands for what has no name that
others could know.
Source: OpenLineage, spec/Naming.md.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from tidemark.collections.declarations.sink import BufferTopic, DatabaseTable, FileFolder, IcebergTable, Place
from tidemark.collections.sources.formats.buffer import BufferSource
from tidemark.collections.sources.formats.files import FileSource
from tidemark.collections.sources.formats.iceberg_tables import IcebergSource
from tidemark.collections.sources.formats.jdbc import JdbcSource
from tidemark.collections.sources.formats.source import Source
from tidemark.collections.sources.logins import JDBC, find_login
from tidemark.locations import to_path
from tidemark.settings import Settings
from tidemark.write_buffer.address import find_connection

_PATTERN = re.compile(r"/[^/]*[{}\[\]*?\\].*")  # from the first folder on that a pattern names
_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
_KEYS = frozenset({"s3", "gs"})  # whose names are keys, without a slash in front
_TABLE = re.compile(r'(\w+|"[^".]+"|`[^`.]+`)(\.(\w+|"[^".]+"|`[^`.]+`))*')  # and no query in parentheses
_DATABASES = {  # the namespace's scheme, the port, and the schema that a bare table is in
    "postgresql": ("postgres", 5432, "public"),
    "mysql": ("mysql", 3306, None),
    "mariadb": ("mysql", 3306, None),
}


class DatasetName(NamedTuple):
    """The name of a dataset in OpenLineage."""

    namespace: str
    name: str


def name_of_source(source: Source, settings: Settings) -> DatasetName | None:
    """Return the name of a source that is not a collection; None for the query of a database.

    Raises ``ConfigurationInvalid`` if a connection is not set, or its address is invalid.
    """
    if isinstance(source, FileSource):
        return name_of_path(source.path)
    if isinstance(source, IcebergSource):
        return _name_of_spark_table(source.table) if source.table else name_of_path(source.path or "")
    if isinstance(source, JdbcSource) and source.table is not None:
        url = source.url or find_login(source.connection or "", settings.connections).url
        return None if url is None else name_of_table(url, source.table)
    if isinstance(source, BufferSource):
        return name_of_buffer(source.buffer, settings)
    return None


def name_of_target(place: Place, settings: Settings) -> DatasetName | None:
    """Return the name of the target of a sink. Raises as ``name_of_source``."""
    if isinstance(place, DatabaseTable):
        url = find_login(place.connection, settings.connections).url
        return None if url is None else name_of_table(url, place.table)
    if isinstance(place, BufferTopic):
        return name_of_buffer(place.buffer, settings)
    if isinstance(place, FileFolder):
        return name_of_path(place.path)
    if isinstance(place, IcebergTable):
        return name_in_catalog(place.catalog, place.table)
    return None


def name_of_path(path: str) -> DatasetName:
    """Return the name of a file or folder, local or not; of a pattern that of the folder that has all its files."""
    if (local := to_path(path)) is not None:
        return DatasetName("file", _PATTERN.sub("", str(local)) or "/")
    parts = urlsplit(_PATTERN.sub("", path))
    scheme = _SCHEMES.get(parts.scheme, parts.scheme)
    name = parts.path.rstrip("/")
    return DatasetName(
        f"{scheme}://{_without_login(parts.netloc)}", (name.lstrip("/") if scheme in _KEYS else name) or "/"
    )


def name_of_table(url: str, table: str) -> DatasetName | None:
    """Return the name of a table of a database that drivers of JDBC, or libpq, know by ``url``.

    The spec has names for databases on a server alone; of these, only some have a URL that all drivers write alike.
    """
    parts = urlsplit(url.removeprefix(JDBC))
    host = urlsplit(f"//{parts.netloc.rpartition('@')[2].split(',')[0]}")  # the first of several
    if parts.scheme not in _DATABASES or not host.hostname or not _TABLE.fullmatch(table):
        return None
    scheme, port, schema = _DATABASES[parts.scheme]
    path = [name.strip('"`') for name in table.split(".")]
    if schema is not None and len(path) == 1:
        found = dict(parse_qsl(parts.query)).get("currentSchema", schema)
        path = [found.split(",")[0], *path]
    name = ".".join([parts.path.strip("/"), *path])
    return DatasetName(f"{scheme}://{host.hostname}:{host.port or port}", name)


def name_of_buffer(buffer: str, settings: Settings) -> DatasetName | None:
    """Return the name of a write buffer, given by its address or connection; None for one in memory."""
    found = find_connection(buffer, settings.connections)
    if found.type == "kafka":
        return DatasetName(f"kafka://{found.place.split(',')[0]}", found.topic)
    return name_of_path(found.place) if found.type == "file" else None


def name_in_catalog(catalog: str, table: str) -> DatasetName:
    """Return the name of an Iceberg table whose folder is not known."""
    return DatasetName(f"iceberg://{catalog}", table)


def _name_of_spark_table(table: str) -> DatasetName:
    catalog, _, rest = table.partition(".")
    return name_in_catalog(catalog, rest) if rest else DatasetName("iceberg://spark_catalog", table)


def _without_login(authority: str) -> str:
    """Return the authority of an object store; the container of Azure stands in front of an @, as a login would."""
    login, _, host = authority.rpartition("@")
    return host if ":" in login else authority
