"""Opens one statement on a database. A database cannot be pinned: the next statement may see another state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.collections.sources.errors import translating
from tidemark.collections.sources.logins import Login, find_login
from tidemark.collections.sources.opened_source import OpenedSource
from tidemark.errors import ConfigurationInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from tidemark.collections.declarations.source import JdbcSource

_DRIVERS = {
    "postgresql": "org.postgresql.Driver",
    "sqlite": "org.sqlite.JDBC",
    "mysql": "com.mysql.cj.jdbc.Driver",
    "mariadb": "org.mariadb.jdbc.Driver",
    "sqlserver": "com.microsoft.sqlserver.jdbc.SQLServerDriver",
    "oracle": "oracle.jdbc.OracleDriver",
}
_FETCH_ROWS = 10_000  # PostgreSQL's driver otherwise keeps the whole result in memory
_READ_ONLY_SQLITE = "1"  # SQLITE_OPEN_READONLY: a missing file must be missed, not made


def open_database(
    spark: SparkSession, source: JdbcSource, environ: Mapping[str, str], *, where: str, timeout_s: float
) -> OpenedSource:
    """Return the rows of the declared table or query; every action sends the statement again.

    Args:
        spark: The session.
        source: What to read.
        environ: Where connections are looked up.
        where: Names the source in messages.
        timeout_s: How long to wait for the database to answer.

    Raises:
        ConfigurationInvalid: If the connection is not set, or refused.
        Unreachable: If the database does not answer.
        InputMissing: If there is no such table.
    """
    login = Login() if source.connection is None else find_login(source.connection, environ)
    url = source.url or login.url
    if url is None:
        raise ConfigurationInvalid(
            f"{where}: neither the source nor its connection {source.connection!r} has a URL",
            hint=f"set TIDEMARK_SOURCE_{(source.connection or '').upper()}_URL",
        )
    kind = url.removeprefix("jdbc:").partition(":")[0]
    driver = source.driver or _DRIVERS.get(kind)
    if driver is None:
        raise ConfigurationInvalid(f"{where}: no driver is known for {kind!r}", hint="declare the class as `driver`")
    options = {
        "url": url,
        "driver": driver,
        "fetchsize": str(_FETCH_ROWS),
        **_connection_options(kind, timeout_s),
        **source.spark_options,
        **({"user": login.user} if login.user else {}),
        **({"password": login.password} if login.password else {}),
    }
    what = {"dbtable": source.table} if source.table is not None else {"query": source.query or ""}
    with translating(where):
        desired = spark.read.format("jdbc").options(**options, **what).load()
    return OpenedSource(where=where, desired=desired, pins=(), pinnable=False, size_bytes=None)


def _connection_options(kind: str, timeout_s: float) -> dict[str, str]:
    if kind == "postgresql":
        return {"connectTimeout": str(max(1, int(timeout_s))), "ApplicationName": "tidemark"}
    if kind == "sqlite":
        return {"open_mode": _READ_ONLY_SQLITE}
    return {}
