"""Databases, read by one statement. A database cannot be pinned: the next statement may see another state."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import unquote

from pydantic import Field, StringConstraints, ValidationInfo, field_validator, model_validator

from tidemark.collections.sources.database_version import Rows, answer_text, ask, can_ask, failed
from tidemark.collections.sources.formats.source import IDENTIFIER, OptionValue, SourceWithOptions, path_in_folder
from tidemark.collections.sources.logins import EXAMPLE_URL, JDBC, SQLITE, Login, find_login, is_relative
from tidemark.collections.sources.pins import VersionPin
from tidemark.errors import ConfigurationInvalid
from tidemark.interval import has_interval
from tidemark.secrets.redaction import holds_secret, is_secret_name, know
from tidemark.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemark.collections.sources.opened_source import OpenedSource, Opening
    from tidemark.collections.sources.pins import Looking, Pin

_DRIVERS = {
    "postgresql": "org.postgresql.Driver",
    "sqlite": "org.sqlite.JDBC",
    "mysql": "com.mysql.cj.jdbc.Driver",
    "mariadb": "org.mariadb.jdbc.Driver",
    "sqlserver": "com.microsoft.sqlserver.jdbc.SQLServerDriver",
    "oracle": "oracle.jdbc.OracleDriver",
}
_FETCH_ROWS = 10_000  # PostgreSQL's driver otherwise keeps the whole result in memory
_READ_ONLY_SQLITE = "1"  # SQLITE_OPEN_READONLY: a missing file is an error; otherwise SQLite would create it
_CREDENTIAL_IN_URL = re.compile(  # user:password@host, parameters, and the form of Oracle
    r"://[^/@?]*:[^/@?]*@|[?&;(,](user|password|passwd|pwd)=|:[^/@:?;]+/[^/@?]+@", re.IGNORECASE
)
_PARTITIONED_READ = frozenset({"partitioncolumn", "lowerbound", "upperbound", "numpartitions", "predicates"})
_OF_SPARK = frozenset({"fetchsize", "pushdownpredicate", "pushdownaggregate", "pushdownlimit"})  # not of the driver
_CREDENTIALS = frozenset({"user", "password", "url"})


class JdbcSource(SourceWithOptions):
    """One statement on a database, so that it sees one state. The login is never part of a declaration."""

    form = "jdbc"
    is_database = True

    format: Literal["jdbc"]
    connection: str | None = None  # TIDEMARK_SOURCE_<NAME>_URL, _USER, _PASSWORD, or AIRFLOW_CONN_<NAME>
    url: str | None = None
    driver: str | None = None
    table: str | None = Field(default=None, alias="dbtable")
    query: str | None = None
    # A query whose answer changes with the rows: with the same answer, a run does not read the rows again.
    version: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)] | None = None

    @field_validator("connection")
    @classmethod
    def _is_a_name(cls, name: str | None) -> str | None:
        if name is not None and not IDENTIFIER.fullmatch(name):
            raise ValueError("cannot be part of an environment variable: use letters, digits and underscores")
        return name

    @field_validator("url")
    @classmethod
    def _holds_no_secret(cls, url: str | None, info: ValidationInfo) -> str | None:
        if url is None:
            return None
        # What an earlier version stored stays readable; a file is read more strictly.
        is_strict = bool(info.context)
        if _CREDENTIAL_IN_URL.search(unquote(url) if is_strict else url) or (is_strict and holds_secret(url)):
            raise ValueError("must not hold a user or a password: name a `connection` that has them")
        if not url.startswith(JDBC):
            raise ValueError(f"must start with {JDBC}, for example {EXAMPLE_URL}")
        if not (is_strict and is_relative(url)):
            return url
        file = url.removeprefix(SQLITE)
        if not file.strip() or file.startswith("file:"):
            raise ValueError(
                f"names no file by its path: write {SQLITE}FILE, relative to the YAML file, or its whole path"
            )
        return f"{SQLITE}{path_in_folder(file, info)}"

    @field_validator("options")
    @classmethod
    def _is_one_statement(cls, options: dict[str, OptionValue], info: ValidationInfo) -> dict[str, OptionValue]:
        for name in options:
            if name.lower() in _PARTITIONED_READ:
                raise ValueError(
                    f"{name!r} would split the read into several statements, which do not see one state of the "
                    "database: leave it out"
                )
            if name.lower() in _CREDENTIALS or (info.context and is_secret_name(name)):
                raise ValueError(f"{name!r} does not belong here: name a `connection` that has it")
        return options

    @model_validator(mode="after")
    def _is_complete(self) -> JdbcSource:
        if self.url is None and self.connection is None:
            raise ValueError("needs a `url`, or a `connection` that has one")
        if (self.table is None) == (self.query is None):
            raise ValueError("needs exactly one of `dbtable` and `query`")
        return self

    @property
    def connection_name(self) -> str | None:
        return self.connection

    @property
    def needs_interval(self) -> bool:
        return super().needs_interval or (self.version is not None and has_interval(self.version))

    def find_state(self, looking: Looking, where: str) -> tuple[Pin, ...] | None:
        if self.version is None:
            return None
        url, login = self._login(looking.settings, where)
        # What is told to the driver, Python cannot tell.
        if can_ask(url) and self.driver is None and {name.lower() for name in self.options} <= _OF_SPARK:
            asking: Callable[[str], Rows | None] = partial(
                ask, url, login, timeout_s=looking.settings.connect_timeout_s, where=where
            )
        elif looking.spark is not None:
            asking = partial(self._ask_with_spark, looking, where)
        else:
            return None
        query = looking.fill(self.version)

        def answer() -> str | None:
            text = answer_text(asking(query), where, query)
            return None if text is None else f"{url}\n{login.user}\n{text}"  # who asks decides which rows there are

        found = answer()
        return None if found is None else (VersionPin(found, answer),)

    def open_whole(self, opening: Opening, where: str) -> OpenedSource:
        """Return the rows of the declared table or query; each Spark action sends the statement again."""
        from tidemark.collections.sources.opened_source import OpenedSource

        state = self.find_state(opening.looking, where)  # before any row is read
        options = self._options(opening.settings, where)
        what = {"dbtable": self.table} if self.table is not None else {"query": self.query or ""}
        desired = opening.spark.read.format("jdbc").options(**options, **what).load()
        return OpenedSource(where=where, desired=desired, pinnable=False, state=state)

    def _ask_with_spark(self, looking: Looking, where: str, query: str) -> Rows:
        assert looking.spark is not None  # noqa: S101 - the caller has looked
        from tidemark.collections.sources.errors import SPARK_ERRORS, first_line, why_unreached

        options = self._options(looking.settings, where)
        try:
            return [*map(tuple, looking.spark.read.format("jdbc").options(**options, query=query).load().collect())]
        except SPARK_ERRORS as error:
            raise (why_unreached(error, where) or failed(where, query, first_line(error))) from error

    def _login(self, settings: Settings, where: str) -> tuple[str, Login]:
        """Return the URL of the database, and who logs in. Raises ``ConfigurationInvalid`` if there is no URL."""
        login = Login() if self.connection is None else find_login(self.connection, settings.connections)
        url = self.url or login.url
        if url is None:
            raise ConfigurationInvalid(
                f"{where}: neither the source nor its connection {self.connection!r} has a URL",
                hint=f"set TIDEMARK_SOURCE_{(self.connection or '').upper()}_URL",
            )
        return url, login

    def _options(self, settings: Settings, where: str) -> dict[str, str]:
        """Return what Spark needs to reach the database."""
        url, login = self._login(settings, where)
        database = url.removeprefix(JDBC).partition(":")[0]
        driver = self.driver or _DRIVERS.get(database)
        if driver is None:
            raise ConfigurationInvalid(
                f"{where}: no driver is known for {database!r}", hint="declare the class as `driver`"
            )
        declared = tuple(value for name, value in self.spark_options.items() if is_secret_name(name))
        know(url, secrets=declared)  # of declarations that an earlier version took
        return {
            "url": url,
            "driver": driver,
            "fetchsize": str(_FETCH_ROWS),
            **_connection_options(database, settings.connect_timeout_s),
            **self.spark_options,
            **({"user": login.user} if login.user else {}),
            **({"password": login.password} if login.password else {}),
        }


def _connection_options(database: str, timeout_s: float) -> dict[str, str]:
    if database == "postgresql":
        return {"connectTimeout": str(max(1, int(timeout_s))), "ApplicationName": "tidemark"}
    if database == "sqlite":
        return {"open_mode": _READ_ONLY_SQLITE}
    return {}
