"""The base classes of all sources: how a source is declared, and how a run opens it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from tidemark.collections.sources.formats.asset import NamedAsset, read_asset
from tidemark.errors import UsageError
from tidemark.interval import Interval, has_interval

if TYPE_CHECKING:
    from tidemark.collections.sources.opened_source import OpenedSource, Opening
    from tidemark.collections.sources.pins import Looking, Pin

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


class Strict(BaseModel):
    """A frozen part of a declaration; unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


EVENT_FIELDS = ("asset", "watch")  # they say when to look at a source, and nothing about its rows


class Source(Strict):
    """Where the rows of a collection come from."""

    form: ClassVar[str]  # the name of the class, by which a mapping finds its class
    is_database: ClassVar[bool] = False  # whether each statement of a run sees another state
    takes_no_events: ClassVar[str] = ""  # why the form has none of ``EVENT_FIELDS``, and what to do

    @model_validator(mode="before")
    @classmethod
    def _says_why_it_takes_no_events(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for field in EVENT_FIELDS:
                if cls.takes_no_events and field in data and field not in cls.model_fields:
                    raise ValueError(f"`{field}` {cls.takes_no_events}")
        return data

    @property
    def connection_name(self) -> str | None:
        """The name of the connection that has the login, which an operator provides; None if the source needs none."""
        return None

    @property
    def collection_name(self) -> str | None:
        """The name of the collection that is read; None if the source is outside Tidemark."""
        return None

    @property
    def event_asset(self) -> NamedAsset | None:
        """The asset whose events say that the source has changed; None if no one is named."""
        return None

    @property
    def watched_path(self) -> str | None:
        """The path at which a watcher looks every ``watch_ms``; None without one."""
        return None

    @property
    def watch_ms(self) -> int | None:
        return None

    @property
    def needs_interval(self) -> bool:
        """Whether a run needs a data interval because the source uses {start} or {end}."""
        return False

    @property
    def inputs_read(self) -> tuple[Source, ...]:
        """The sources that a run opens to read this one: itself, or the inputs of a query."""
        return (self,)

    def find_state(self, looking: Looking, where: str) -> tuple[Pin, ...] | None:
        """Return the present state, without reading rows; None if nothing names it, or only Spark could find it.

        ``open`` gives its rows the same state. Raises as ``open``.
        """
        raise NotImplementedError

    def find_size(self, looking: Looking, where: str) -> int | None:  # noqa: ARG002 - for subclasses
        """Return how many bytes ``open`` would read, without Spark; None if that is not known. Raises as ``open``."""
        return None

    def open(self, opening: Opening, where: str) -> OpenedSource:
        """Pin the present state if possible, and return the rows; ``where`` names the source in messages."""
        raise NotImplementedError


class InputSource(Source):
    """A source that can be read alone, or as an input of a query."""

    where: str | None = None  # a Spark SQL condition; {start} and {end} are the run's data interval, UTC

    @field_validator("where")
    @classmethod
    def _is_not_empty(cls, where: str | None) -> str | None:
        if where is not None and not where.strip():
            raise ValueError("is empty: leave it out")
        return where

    @property
    def needs_interval(self) -> bool:
        return self.where is not None and has_interval(self.where)

    def open(self, opening: Opening, where: str) -> OpenedSource:
        from tidemark.collections.sources.errors import translating
        from tidemark.collections.sources.query_plans import count_relations, is_repeatable, rests_on_rows

        with translating(where):
            opened = self.open_whole(opening, where)
            if self.where is None:
                return opened
            condition = opening.fill(self.where)
            desired = opened.desired.where(condition)
        # A subquery may read other tables, which nobody pins.
        reads_more = count_relations(desired) > count_relations(opened.desired)
        is_named = not reads_more and rests_on_rows(opening.spark, desired, self.where)
        return replace(
            opened,
            desired=desired,
            pinnable=opened.pinnable and not reads_more and is_repeatable(opening.spark, desired),
            state=opened.state if is_named else None,
            followed=opened.followed and replace(opened.followed, condition=condition) if is_named else None,
        )

    def open_whole(self, opening: Opening, where: str) -> OpenedSource:
        """Open the source without its condition."""
        raise NotImplementedError


def open_source(source: Source, opening: Opening, *, collection: str) -> OpenedSource:
    """Open the ``source`` of ``collection``, and pin its present state as far as possible.

    Raises:
        InputMissing: If a file, folder or table does not exist.
        UnknownCollection: If the source reads a collection that does not exist.
        Refused: If a file is corrupt.
        SchemaMismatch: If the columns of files differ, or a query names a missing column.
        ConfigurationInvalid: If a query or a connection is wrong.
        Unreachable: If a database does not answer.
        SourceMoved: If a file changed meanwhile.
        UsageError: If the source needs an interval and none is given.
    """
    return source.open(opening, _named(source, collection, opening.interval))


def find_state(source: Source, looking: Looking, *, collection: str) -> tuple[Pin, ...] | None:
    """Return the present state of the ``source`` of ``collection``; None if nothing names it, or only Spark finds it.

    Raises as ``open_source``.
    """
    return source.find_state(looking, _named(source, collection, looking.interval))


def find_size(source: Source, looking: Looking, *, collection: str) -> int | None:
    """Return how many bytes a run reads of the ``source`` of ``collection``; None if that is not known without Spark.

    Raises as ``open_source``.
    """
    return source.find_size(looking, _named(source, collection, looking.interval))


def _named(source: Source, collection: str, interval: Interval | None) -> str:
    where = f"the source of {collection!r}"
    if source.needs_interval and interval is None:
        raise UsageError(f"{where} is cut by a data interval", hint="give one: --interval START END")
    return where


OptionValue = str | bool | int | float


class SourceWithOptions(InputSource):
    """A source whose options go to Spark."""

    takes_no_events = "looks at files and folders: name an `asset`, whose events say that the source has changed"

    options: dict[str, OptionValue] = Field(default_factory=dict)
    # None is not stored: a program that does not know the field reads all other declarations.
    asset: Annotated[NamedAsset, BeforeValidator(read_asset)] | None = None

    @property
    def event_asset(self) -> NamedAsset | None:
        return self.asset

    @property
    def spark_options(self) -> dict[str, str]:
        """The options as text, with `true` and `false` in lower case."""
        return {
            key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in self.options.items()
        }

    def option(self, name: str, default: str) -> str:
        """Return one option; Spark compares the names of options without case."""
        return {key.lower(): value for key, value in self.spark_options.items()}.get(name.lower(), default)

    def is_set(self, name: str) -> bool:
        """Say whether an option that is off by default is on."""
        return self.option(name, "false").lower() == "true"


def absolute_path(path: str, info: ValidationInfo) -> str:
    """Return ``path`` relative to the folder of the declaring file; URIs and absolute paths stay unchanged."""
    if not path.strip():
        raise ValueError("is empty")
    return path if _SCHEME.match(path) else path_in_folder(path, info)


def path_in_folder(path: str, info: ValidationInfo) -> str:
    """Return ``path`` relative to the folder of the declaring file, whatever letters it begins with."""
    folder = Path((info.context or {}).get("folder", "/"))
    # Not resolve(): each run must follow a link, which may be switched to the next release of the data.
    return str(folder / Path(path).expanduser())
