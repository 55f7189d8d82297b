"""What a declaration says about a source. Contradictions are refused when it is built, with the way out."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator

from tidemark.collections.schema.types import Columns, columns_text, parse_columns

FILE_FORMATS = ("parquet", "csv", "json")
FORMATS = (*FILE_FORMATS, "iceberg", "jdbc")

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLACEHOLDER = re.compile(r"\{(start|end)\}")
_CREDENTIAL_IN_URL = re.compile(  # as most write it, as parameters, and as Oracle does
    r"://[^/@?]*:[^/@?]*@|[?&;(,](user|password|passwd|pwd)=|:[^/@:?;]+/[^/@?]+@", re.IGNORECASE
)
_PARTITIONED_READ = frozenset({"partitioncolumn", "lowerbound", "upperbound", "numpartitions", "predicates"})
_CREDENTIALS = frozenset({"user", "password", "url"})


class Strict(BaseModel):
    """A frozen part of a declaration; unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


OptionValue = str | bool | int | float


class Source(Strict):
    """What every source that is read by itself has."""

    where: str | None = None  # a Spark SQL condition; {start} and {end} are the run's data interval, UTC

    @field_validator("where")
    @classmethod
    def _is_not_empty(cls, where: str | None) -> str | None:
        if where is not None and not where.strip():
            raise ValueError("is empty: leave it out")
        return where

    @property
    def needs_interval(self) -> bool:
        return self.where is not None and _PLACEHOLDER.search(self.where) is not None


class SourceWithOptions(Source):
    """A source that Spark takes options for."""

    options: dict[str, OptionValue] = Field(default_factory=dict)

    @property
    def spark_options(self) -> dict[str, str]:
        """The options as Spark takes them: text, and `true`/`false` in lower case."""
        return {
            key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in self.options.items()
        }

    def option(self, name: str, default: str) -> str:
        """Return one option, whose name Spark compares without case."""
        return {key.lower(): value for key, value in self.spark_options.items()}.get(name.lower(), default)


class FileSource(SourceWithOptions):
    """Files of one format: a file, a folder (read recursively, with `name=value` folders as columns) or a pattern."""

    format: Literal["parquet", "csv", "json"]
    path: str
    columns_text: str | None = Field(default=None, alias="schema")

    @field_validator("path")
    @classmethod
    def _is_absolute(cls, path: str, info: ValidationInfo) -> str:
        return absolute_path(path, info)

    @field_validator("columns_text")
    @classmethod
    def _parses(cls, text: str | None) -> str | None:
        if text is not None:
            parse_columns(text)
        return text

    @model_validator(mode="after")
    def _names_its_columns(self) -> FileSource:
        if self.format == "csv" and not self.has_header and self.columns_text is None:
            raise ValueError(
                "csv without a header has no column names: set `options: {header: true}`, or give a `schema`"
            )
        return self

    @property
    def has_header(self) -> bool:
        """Whether the first line of each CSV file names the columns."""
        return self.option("header", "false").lower() == "true"

    @property
    def columns(self) -> Columns | None:
        """The declared columns, if there are any."""
        return None if self.columns_text is None else parse_columns(self.columns_text)

    def with_columns(self, columns: Columns) -> FileSource:
        """Return the source with its columns fixed, so that later reads need not guess them again."""
        return self.model_copy(update={"columns_text": columns_text(columns)})


class IcebergSource(SourceWithOptions):
    """An Iceberg table, by its name in Spark's catalogs or by its folder; read at one snapshot."""

    format: Literal["iceberg"]
    table: str | None = None
    path: str | None = None

    @field_validator("path")
    @classmethod
    def _is_absolute(cls, path: str | None, info: ValidationInfo) -> str | None:
        return None if path is None else absolute_path(path, info)

    @model_validator(mode="after")
    def _names_one_table(self) -> IcebergSource:
        if (self.table is None) == (self.path is None):
            raise ValueError("needs exactly one of `table` (its name in a Spark catalog) and `path` (its folder)")
        return self

    @property
    def place(self) -> str:
        return self.table or self.path or ""


class JdbcSource(SourceWithOptions):
    """One statement on a database, so that it sees one state of it. Who logs in is never part of a declaration."""

    format: Literal["jdbc"]
    connection: str | None = None  # TIDEMARK_SOURCE_<NAME>_URL, _USER, _PASSWORD, or AIRFLOW_CONN_<NAME>
    url: str | None = None
    driver: str | None = None
    table: str | None = Field(default=None, alias="dbtable")
    query: str | None = None

    @field_validator("connection")
    @classmethod
    def _is_a_name(cls, name: str | None) -> str | None:
        if name is not None and not _IDENTIFIER.fullmatch(name):
            raise ValueError(f"{name!r} cannot be part of an environment variable: use letters, digits and underscores")
        return name

    @field_validator("url")
    @classmethod
    def _holds_no_secret(cls, url: str | None) -> str | None:
        if url is None:
            return None
        if _CREDENTIAL_IN_URL.search(url):
            raise ValueError("must not hold a user or a password: name a `connection` that has them")
        if not url.startswith("jdbc:"):
            raise ValueError("must start with jdbc:, for example jdbc:postgresql://host:5432/database")
        return url

    @field_validator("options")
    @classmethod
    def _is_one_statement(cls, options: dict[str, OptionValue]) -> dict[str, OptionValue]:
        for name in options:
            if name.lower() in _PARTITIONED_READ:
                raise ValueError(
                    f"{name!r} would split the read into several statements, which do not see one state of the "
                    "database: leave it out"
                )
            if name.lower() in _CREDENTIALS:
                raise ValueError(f"{name!r} does not belong here: name a `connection` that has it")
        return options

    @model_validator(mode="after")
    def _is_complete(self) -> JdbcSource:
        if self.url is None and self.connection is None:
            raise ValueError("needs a `url`, or a `connection` that has one")
        if (self.table is None) == (self.query is None):
            raise ValueError("needs exactly one of `dbtable` and `query`")
        return self


class CollectionSource(Source):
    """Another collection, at one snapshot of its `main`."""

    collection: str


class OnLost(StrEnum):
    """What an ingest does about entries that it can never read."""

    FAIL = "fail"
    EARLIEST = "earliest"


class BufferSource(Strict):
    """The rows that arrive through a write buffer; an ingest appends them, and nobody else."""

    buffer: str  # an address, or the name of a connection
    table: str | None = Field(default=None, min_length=1)  # None: every row, whatever table it names, or none
    on_expired: OnLost = OnLost.FAIL  # entries that retention removed before they were ingested
    on_recreated: OnLost = OnLost.FAIL  # another log of the same name, whose numbers begin anew

    @field_validator("buffer")
    @classmethod
    def _holds_no_secret(cls, buffer: str) -> str:
        if ":" not in buffer:
            if not _IDENTIFIER.fullmatch(buffer):
                raise ValueError(f"{buffer!r} is neither an address nor a name of letters, digits and underscores")
        elif "@" in buffer.partition("?")[0] or "password" in buffer.lower():
            raise ValueError("must not hold a user or a password: give the name of a connection that has them")
        return buffer

    @property
    def connection(self) -> str | None:
        """The name of the connection; None for an address."""
        return None if ":" in self.buffer else self.buffer

    @property
    def needs_interval(self) -> bool:
        return False


def _form_of_input(value: Any) -> str:
    if isinstance(value, dict):
        if "collection" in value:
            return "collection"
        form = value.get("format")
        return form if form in {"iceberg", "jdbc"} else "files"
    return {"CollectionSource": "collection", "IcebergSource": "iceberg", "JdbcSource": "jdbc"}.get(
        type(value).__name__, "files"
    )


def _form_of_source(value: Any) -> str:
    if isinstance(value, BufferSource) or (isinstance(value, dict) and "buffer" in value):
        return "buffer"
    is_sql = "sql" in value or "inputs" in value if isinstance(value, dict) else isinstance(value, SqlSource)
    return "sql" if is_sql else _form_of_input(value)


InputDeclaration = Annotated[
    Annotated[FileSource, Tag("files")]
    | Annotated[IcebergSource, Tag("iceberg")]
    | Annotated[JdbcSource, Tag("jdbc")]
    | Annotated[CollectionSource, Tag("collection")],
    Discriminator(_form_of_input),
]


class SqlSource(Strict):
    """One Spark SQL query over named inputs, and over nothing else."""

    sql: str
    inputs: dict[str, InputDeclaration] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_inputs(self) -> SqlSource:
        if not self.sql.strip():
            raise ValueError("`sql` is empty")
        if not self.inputs:
            raise ValueError(
                "`sql` needs `inputs`: every table that it reads is declared there, so that it can be pinned"
            )
        for name in self.inputs:
            if not _IDENTIFIER.fullmatch(name):
                raise ValueError(f"the input name {name!r} is no identifier: use letters, digits and underscores")
        if len({name.lower() for name in self.inputs}) < len(self.inputs):
            raise ValueError("two input names differ only in case, which SQL does not see")
        if (databases := sorted(name for name, each in self.inputs.items() if isinstance(each, JdbcSource)))[1:]:
            raise ValueError(
                f"the inputs {', '.join(databases)} are read by one database statement each, which see two states: "
                "join in the database with one input that has a `query`, or make each a collection of its own"
            )
        return self

    @property
    def needs_interval(self) -> bool:
        return _PLACEHOLDER.search(self.sql) is not None or any(each.needs_interval for each in self.inputs.values())


SourceDeclaration = Annotated[
    Annotated[FileSource, Tag("files")]
    | Annotated[IcebergSource, Tag("iceberg")]
    | Annotated[JdbcSource, Tag("jdbc")]
    | Annotated[CollectionSource, Tag("collection")]
    | Annotated[SqlSource, Tag("sql")]
    | Annotated[BufferSource, Tag("buffer")],
    Discriminator(_form_of_source),
]


def absolute_path(path: str, info: ValidationInfo) -> str:
    """Return ``path`` seen from the folder of the declaring file; URIs and absolute paths stay as they are."""
    if not path.strip():
        raise ValueError("is empty")
    if _SCHEME.match(path):
        return path
    folder = Path((info.context or {}).get("folder", "/"))
    # Not resolve(): a link that is switched from one release of the data to the next must be followed at each run.
    return str(folder / Path(path).expanduser())


def fill_interval(text: str, start: str, end: str) -> str:
    """Return ``text`` with `{start}` and `{end}` filled in; other braces are left alone."""
    return _PLACEHOLDER.sub(lambda match: start if match[1] == "start" else end, text)
