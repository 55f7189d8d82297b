"""The declaration of a collection; refuses contradictions, and says what to change."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)

from tidemark.collections.declarations.append_only import (
    ColumnName,
    ColumnNames,
    Duration,
    Expectations,
    Intervals,
    Retention,
    StagedRetention,
    StatusHistory,
    duration_ms,
    given,
)
from tidemark.collections.declarations.columns import ColumnUse, Need, check_columns
from tidemark.collections.declarations.lifecycle import Chunks, LifecycleRules, Merge, PartitionUnit
from tidemark.collections.schema.ddl import parse_columns
from tidemark.collections.schema.types import Columns, stored_columns
from tidemark.collections.sources.formats.asset import NamedAsset
from tidemark.collections.sources.formats.buffer import BufferPlace, BufferSource
from tidemark.collections.sources.formats.files import FileSource, SchemaText
from tidemark.collections.sources.formats.frame import FrameSource
from tidemark.collections.sources.formats.registry import UNTYPED_FORMATS
from tidemark.collections.sources.formats.source import EVENT_FIELDS, Source, Strict
from tidemark.collections.sources.formats.sql import SourceDeclaration
from tidemark.interval import Interval, Unit

DECLARATION_VERSION = 1
MAX_BUCKETS = 4096
QUARANTINE_SUFFIX = "_quarantine"  # appends create such collections; they are never declared

_MIRROR_FIELDS = ("guards", "scope", "on_stale_input", "verify_after", "cluster_by")
_DIFFERENTIAL_FIELDS = ("buckets", "on_foreign_commit", *_MIRROR_FIELDS)
_APPEND_ONLY_FIELDS = (
    "writes_to", "intervals", "retention", "on_read_only", "on_schema_change", "staged_retention", "expect", "status",
    "event_time", "partition", "lifecycle"
)  # fmt: skip
_EVENT_FIELDS = ("partition", "lifecycle")
_LATEST_FIELDS = ("delete_when", "on_key_spread")

_NO_EVENTS: Final[dict[str, Any]] = dict.fromkeys(EVENT_FIELDS, True)
# For ``exclude`` of a dump: what says when to look at a source, or how rows lie in files, and nothing about the rows.
NOTHING_ABOUT_ROWS: Final[dict[str, Any]] = {
    "source": {**_NO_EVENTS, "inputs": {"__all__": _NO_EVENTS}},
    "cluster_by": True,
}
_FOR_LATEST = "is for `latest` collections"


def _as_sequence(values: Any) -> Any:
    found = values if isinstance(values, list | tuple) else (values,)
    if other := [value for value in found if not isinstance(value, bool | int | str)]:
        raise ValueError(f"a value is a text, a whole number, or true or false{given(other[0])}")
    return found


def _refuse_mixed(values: tuple[bool | int | str, ...]) -> tuple[bool | int | str, ...]:
    if len({type(value) for value in values}) > 1:
        raise ValueError("the values of one member have one type: texts, whole numbers, or true and false")
    return values


Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
VERIFY_AFTER_MS = 7 * 24 * 3_600_000
VerifyAfter = Annotated[Literal[0] | Duration, Field(union_mode="left_to_right")]  # 0: always
DeletingValues = Annotated[
    tuple[bool | int | str, ...], BeforeValidator(_as_sequence), AfterValidator(_refuse_mixed), Field(min_length=1)
]


class Kind(StrEnum):
    """Whether a collection mirrors a desired state, records events, or keeps the latest row of each key."""

    DIFFERENTIAL = "differential"
    APPEND_ONLY = "append-only"
    LATEST = "latest"


class OnForeignCommit(StrEnum):
    """What a reconcile does about rows that another engine wrote to ``main``."""

    RESET = "reset"
    FAIL = "fail"


class OnNullKey(StrEnum):
    """What a reconcile does about source rows without a key."""

    REFUSE = "refuse"
    DROP = "drop"


class OnReadOnly(StrEnum):
    """What an append does while the deployment is read-only."""

    STAGE = "stage"
    REJECT = "reject"


class OnSchemaChange(StrEnum):
    """What an append does with a file whose columns are not the collection's."""

    FAIL = "fail"
    EVOLVE = "evolve"


class OnStaleInput(StrEnum):
    """What a reconcile does about a collection that reads one which failed in the same run."""

    SKIP = "skip"
    GO_ON = "go-on"


class OnKeySpread(StrEnum):
    """What an ingest does with changes of a key that lie in another sequencer than its first ones."""

    QUARANTINE = "quarantine"
    REFUSE = "refuse"


class FirstBy(Strict):
    """Of rows that share a key, keep the one with the smallest value of ``column``; NULLs come last."""

    first_by: ColumnName


class Guards(Strict):
    """What must hold before corrections are written."""

    max_delete_ratio: float = Field(default=0.5, ge=0.0, le=1.0)
    allow_empty: bool = False
    on_duplicate_key: FirstBy | None = None  # None refuses; written `refuse` or `first_by: COLUMN`
    on_null_key: OnNullKey = OnNullKey.REFUSE

    @field_validator("on_duplicate_key", mode="before")
    @classmethod
    def _reads_words(cls, value: Any) -> Any:
        if value == "refuse":
            return None
        if isinstance(value, str):
            prefix, _, column = value.partition(":")
            if prefix.strip() != "first_by" or not column.strip():
                raise ValueError(f"{value!r} is neither `refuse` nor `first_by: COLUMN`")
            return {"first_by": column.strip()}
        return value


class Scope(Strict):
    """The slice of a collection that one run reads: all whole units ``every`` that the data interval touches."""

    column: ColumnName
    every: Unit


class Declaration(Strict):
    """One collection as its owner wants it."""

    name: Name
    renamed_from: Name | None = None
    kind: Kind
    # Empty: rows are a multiset. Of an append-only collection: rows with one key and event time are persisted once.
    key: ColumnNames = ()
    source: SourceDeclaration | None = None
    columns_text: SchemaText | None = Field(default=None, alias="schema")  # None: the source's columns
    renames: dict[ColumnName, ColumnName] = Field(default_factory=dict)  # old name: new name
    guards: Guards = Guards()
    scope: Scope | None = None
    on_foreign_commit: OnForeignCommit = OnForeignCommit.RESET
    on_stale_input: OnStaleInput = OnStaleInput.SKIP
    # How long the names of states are trusted before all rows are compared again. None, VERIFY_AFTER_MS, is not stored:
    # a program that does not know the field reads all other declarations.
    verify_after: VerifyAfter | None = None
    # What compaction sorts rows by. None, the key, is not stored, as above.
    cluster_by: Annotated[ColumnNames, Field(min_length=1)] | None = None
    tags: tuple[str, ...] = ()
    buckets: int | None = Field(default=None, ge=1, le=MAX_BUCKETS)  # None: from the size of the source
    on_read_only: OnReadOnly = OnReadOnly.STAGE
    on_schema_change: OnSchemaChange = OnSchemaChange.FAIL
    intervals: Intervals | None = None
    retention: Retention | None = None
    staged_retention: StagedRetention | None = None
    expect: Expectations | None = None
    status: StatusHistory | None = None
    writes_to: BufferPlace | None = None  # the write buffer that takes appended rows in place of the table
    event_time: ColumnName | None = None  # when the event of a row was, which tells the row's partition
    partition: PartitionUnit | None = None  # None: a day
    lifecycle: LifecycleRules | None = None  # None: all defaults
    delete_when: Annotated[dict[ColumnName, DeletingValues], Field(min_length=1)] | None = None  # members of a row
    on_key_spread: OnKeySpread | None = None  # None: quarantine

    @model_validator(mode="before")
    @classmethod
    def _reads_text_files_by_its_schema(cls, data: Any) -> Any:
        """Give files without types the schema of the collection, unless the source has its own schema."""
        if not isinstance(data, dict) or not isinstance(source := data.get("source"), dict):
            return data
        if "schema" not in data or source.get("format") not in UNTYPED_FORMATS:
            return data
        return {**data, "source": {"schema": data["schema"], **source}}

    @field_validator("tags")
    @classmethod
    def _can_be_selected(cls, tags: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        for tag in tags:
            if info.context and ("+" in tag or tag.split() != [tag]):  # what an earlier version stored stays readable
                raise ValueError(f"{tag!r} is no tag: it has at least one letter, no blank and no `+`")
        return tags

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        if self.kind is Kind.APPEND_ONLY:
            self._refuse_for_append_only()
        elif self.kind is Kind.LATEST:
            self._refuse_for_latest()
        else:
            if self.source is None:
                raise ValueError("a differential collection needs a `source` to be made equal to")
            if isinstance(self.source, BufferSource):
                raise ValueError(
                    "rows that arrive through a buffer are events, or changes: make the collection append-only, or "
                    "`latest`, which keeps the latest row of each key"
                )
            if self.is_handed_over:
                self._refuse_beside_a_frame()
            if self.needs_interval and self.scope is None:
                raise ValueError(
                    "the `source` is cut by {start} and {end}, and the collection is not: each run would retract the "
                    "rows of all other intervals; add a `scope` with the column that they cut by, or leave them out"
                )
            self._refuse_set("is for append-only collections", *_APPEND_ONLY_FIELDS)
            self._refuse_set(_FOR_LATEST, *_LATEST_FIELDS)
            if not self.inputs:
                self._refuse_set(
                    "is about the collections that the `source` reads, and it reads none", "on_stale_input"
                )
            if self.needs_interval:
                self._refuse_events("a run that events start has no data interval to fill {start} and {end} with")
        return self

    @model_validator(mode="after")
    def _has_one_name(self) -> Self:
        if self.renamed_from == self.name:
            raise ValueError("`renamed_from` is the name itself: leave it out")
        return self

    @model_validator(mode="after")
    def _guards_fit_the_key(self) -> Self:
        if not self.key:
            if self.guards.on_duplicate_key is not None:
                raise ValueError(
                    "`guards.on_duplicate_key: first_by` needs a `key`: without one, equal rows are no duplicates"
                )
            if self.guards.on_null_key is OnNullKey.DROP:
                raise ValueError("`guards.on_null_key: drop` needs a `key`")
            if self.buckets not in {None, 1}:
                raise ValueError("`buckets` needs a `key`: rows are put into buckets by it")
        if self.key and self.scope and self.scope.column not in self.key:
            raise ValueError(
                f"`scope.column` {self.scope.column!r} is not part of the key: one key could live in two slices, and "
                "each run would see only one of them; add it to `key`, or leave `key` or `scope` out"
            )
        return self

    @model_validator(mode="after")
    def _names_existing_columns(self) -> Self:
        if (columns := self.known_columns) is not None:
            check_columns(self.column_uses, columns)
            dates = {column.name for column in columns if str(column.type) == "date"}
            if self.event_time in dates and self.partition is Unit.HOUR:
                raise ValueError(
                    f"`partition: hour` cuts dates, as {self.event_time!r} has them, at midnight alone, so that a day "
                    "would be complete after its first hour: cut it by `day` or `month`"
                )
        return self

    def _refuse_beside_a_frame(self) -> None:
        if self.columns_text is None:
            raise ValueError("rows that a program hands over need a `schema`: nothing else says their columns")
        self._refuse_set("is about sources that a run looks at, and a program hands these rows over", "verify_after")

    def _refuse_for_append_only(self) -> None:
        if self.is_handed_over:
            raise ValueError(
                "`format: frame` is for differential collections: leave `source` out, and append the rows by "
                "`append_rows` or `append_frame`"
            )
        if self.intervals is not None and not self.needs_interval:
            raise ValueError("`intervals` needs a `source` that is cut by {start} and {end}")
        if self.status is not None and self.needs_interval:
            raise ValueError(
                "`status` compares each row with those before it, which intervals in any order do not allow: leave "
                "{start} and {end} out of `source`, and append files"
            )
        if isinstance(self.source, BufferSource):
            self._refuse_beside_a_buffer(self.source)
        elif self.event_time is not None:
            raise ValueError(
                "`event_time` is for rows that arrive through a write buffer: leave it out, or declare a `source` "
                "with `buffer: NAME`"
            )
        self._refuse_events("events start `reconcile_collections`, which makes differential collections alone right")
        if self.event_time is None:
            self._refuse_without_event_times()
        elif self.lifecycle is not None:
            self._refuse_beside_lifecycle(self.lifecycle)
        if self.writes_to is not None:
            self._refuse_beside_writes_to(self.writes_to)
        if self.columns_text is None and self.source is None:
            raise ValueError("an append-only collection needs a `schema`, or a `source` that it can be read from")
        self._refuse_set("is for differential collections", *_DIFFERENTIAL_FIELDS)
        self._refuse_set(_FOR_LATEST, *_LATEST_FIELDS)

    def _refuse_without_event_times(self) -> None:
        for name in (name for name in _EVENT_FIELDS if getattr(self, name) is not None):
            raise ValueError(f"`{name}` goes by event times: name their column in `event_time`, or leave `{name}` out")
        self._refuse_set("is for differential and `latest` collections, and for rows with an `event_time`", "key")

    def _refuse_beside_lifecycle(self, rules: LifecycleRules) -> None:
        if not rules.persist and rules.limits != (None, None):
            raise ValueError(
                "`soft_limit` and `hard_limit` count rows that are not persisted, and `persist: false` never persists "
                "any: leave the limits out, or persist"
            )
        if rules.chunks is Chunks.MEMORY and (not isinstance(self.source, BufferSource) or self.source.every is None):
            raise ValueError(
                "`chunks: memory` is the memory of storage workers, and none of them ingests without `every`: declare "
                "`every: 5s` in `source`, or `chunks: files`"
            )
        if not self.key and rules.merge is Merge.FIELDS:
            raise ValueError("`merge: fields` merges rows with the same `key` and event time: declare a `key`")

    def _refuse_for_latest(self) -> None:
        if not isinstance(self.source, BufferSource):
            raise ValueError("a `latest` collection needs a `source` with `buffer: NAME`, which its changes come from")
        if self.columns_text is None:
            raise ValueError("changes that arrive through a buffer need a `schema`: entries do not say their columns")
        if not self.key:
            raise ValueError("a `latest` collection needs a `key`: it keeps the latest row of each key")
        if self.source.check_keys:
            raise ValueError(
                "`source.check_keys` is for append-only collections: of a `latest` one the key of every row is "
                "looked at, and `on_key_spread` says what becomes of the row; leave it out"
            )
        self._refuse_set("is for differential collections", *_MIRROR_FIELDS)
        self._refuse_set("is for append-only collections", *_APPEND_ONLY_FIELDS)

    def _refuse_beside_a_buffer(self, source: BufferSource) -> None:
        if self.columns_text is None:
            raise ValueError("rows that arrive through a buffer need a `schema`: entries do not say their columns")
        if self.status is not None:
            raise ValueError("`status` compares rows in one order, which a buffer has in each sequencer alone")
        if self.on_schema_change is not OnSchemaChange.FAIL:
            raise ValueError("`on_schema_change: evolve` is for files: add columns to `schema`, and apply it")
        if source.envelope is not None:
            raise ValueError(f"`source.envelope` {_FOR_LATEST}: leave it out")

    def _refuse_beside_writes_to(self, buffer: str) -> None:
        if isinstance(self.source, BufferSource) and not _is_same_buffer(self.source.buffer, buffer):
            raise ValueError(
                f"`writes_to` is {buffer!r}, and the rows come out of {self.source.buffer!r}, where nothing that is "
                "appended ever arrives: name the same buffer in both, or leave `writes_to` out"
            )
        if self.status is not None:
            raise ValueError("`status` compares rows with those that are stored, and `writes_to` stores none")
        if self.on_schema_change is not OnSchemaChange.FAIL:
            raise ValueError(
                "`on_schema_change: evolve` changes this collection alone, and others read the buffer that it "
                "`writes_to`: add columns to the `schema` of each, and apply it"
            )

    def _refuse_events(self, why: str) -> None:
        for field in EVENT_FIELDS:
            if any(getattr(read, field, None) for read in self._inputs_read):
                raise ValueError(f"`source.{field}` is of no use: {why}; leave it out")

    def _refuse_set(self, why: str, *fields: str) -> None:
        # Stored declarations spell out defaults: treat a default as unset.
        for name in fields:
            if name in self.model_fields_set and getattr(self, name) != type(self).model_fields[name].get_default():
                raise ValueError(f"`{name}` {why}: leave it out")

    @property
    def verify_after_ms(self) -> int:
        """For how long, in ms, a source whose state has the same name still is not read again; 0: always."""
        if self.verify_after is None:
            return VERIFY_AFTER_MS
        return duration_ms(self.verify_after) if self.verify_after else 0

    def slice_of(self, interval: Interval | None) -> Interval | None:
        """Return the whole units of time that a run over ``interval`` corrects; None for the whole collection.

        A run corrects whole units: a source cut at the bounds of the interval would lack the rest of the unit.
        """
        return None if self.scope is None or interval is None else self.scope.every.covering(interval)

    @property
    def column_uses(self) -> tuple[ColumnUse, ...]:
        """The columns that the declaration names, with their uses."""
        uses = [ColumnUse("key", name, Need.KEY) for name in self.key]
        uses += [ColumnUse("cluster_by", name, Need.COMPARED) for name in self.cluster_by or ()]
        if retention := self.retention:
            uses += [ColumnUse("retention.key", name, Need.KEY) for name in retention.key]
            uses += [ColumnUse("retention.order_by", name, Need.COMPARED) for name in retention.order_by]
        if expect := self.expect:
            for name, limits in expect.range.items():
                bounds = tuple(bound for bound in (limits.min, limits.max) if bound is not None)
                uses.append(ColumnUse("expect.range", name, Need.COMPARED, bounds, is_range=True))
            uses += [ColumnUse("expect.one_of", name, Need.COMPARED, values) for name, values in expect.one_of.items()]
            uses += [ColumnUse("expect.unique", name, Need.COMPARED) for name in expect.unique]
            uses += [ColumnUse("expect.not_null", name) for name in expect.not_null]
        if status := self.status:
            uses += [ColumnUse("status.key", name, Need.KEY) for name in status.key]
            uses.append(ColumnUse("status.column", status.column, Need.COMPARED))
            uses.append(ColumnUse("status.time", status.time, Need.TIME))
            uses += [ColumnUse("status.changes_in", name, Need.COMPARED) for name in status.changes_in]
        if self.delete_when:
            known = {column.name for column in self.known_columns or ()}
            deleting = {
                name: values for name, values in self.delete_when.items() if name in known
            }  # others are members
            uses += [ColumnUse("delete_when", name, Need.COMPARED, values) for name, values in deleting.items()]
        if self.scope:
            uses.append(ColumnUse("scope.column", self.scope.column, Need.TIME))
        if self.event_time:
            uses.append(ColumnUse("event_time", self.event_time, Need.TIME))
        if retention and retention.column:
            uses.append(ColumnUse("retention.column", retention.column, Need.TIME))
        if self.guards.on_duplicate_key:
            uses.append(ColumnUse("guards.on_duplicate_key", self.guards.on_duplicate_key.first_by))
        uses += [ColumnUse("renames", name) for name in self.renames.values()]
        return tuple(uses)

    @property
    def known_columns(self) -> Columns | None:
        """The stored columns; None if the declaration alone does not tell them."""
        if self.columns_text is not None:
            return stored_columns(parse_columns(self.columns_text))
        source = self.source
        if isinstance(source, FileSource) and source.columns is not None and not source.has_types:
            return stored_columns(source.columns)
        return None

    @property
    def declares_columns(self) -> bool:
        """Whether the declaration lists the columns to keep; other columns of the source are then left out."""
        return self.columns_text is not None

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the collections that the source reads, sorted."""
        return tuple(sorted({read.collection_name for read in self._inputs_read if read.collection_name is not None}))

    @property
    def reads_buffer(self) -> bool:
        """Whether the rows come out of a write buffer."""
        return isinstance(self.source, BufferSource)

    @property
    def is_handed_over(self) -> bool:
        """Whether a program hands the rows over, so that no run reads the source."""
        return isinstance(self.source, FrameSource)

    @property
    def every_ms(self) -> int | None:
        """How often storage workers ingest the collection; None if they leave it alone."""
        return self.source.every_ms if isinstance(self.source, BufferSource) else None

    @property
    def needs_interval(self) -> bool:
        """Whether a run needs a data interval because the source uses {start} or {end}."""
        return self.source is not None and self.source.needs_interval

    @property
    def buffer_table(self) -> str:
        """The table that appended rows are of in the buffer that the collection writes to."""
        return (self.source.table if isinstance(self.source, BufferSource) else None) or self.name

    @property
    def written_connections(self) -> tuple[str, ...]:
        """The name of the connection that appended rows go to; empty for an address, or without a buffer."""
        return () if self.writes_to is None or ":" in self.writes_to else (self.writes_to,)

    @property
    def assets(self) -> tuple[NamedAsset, ...]:
        """The assets whose events say that the source has changed, in order of names; a watcher's own is not listed."""
        found = {read.event_asset for read in self._inputs_read if read.event_asset is not None}
        return tuple(sorted(found, key=lambda asset: (asset.name, asset.uri)))

    @property
    def watched_paths(self) -> tuple[str, ...]:
        """The paths at which a watcher looks, sorted."""
        return tuple(sorted({read.watched_path for read in self._inputs_read if read.watched_path is not None}))

    @property
    def watch_ms(self) -> int | None:
        """How often the watcher looks: as often as the input with the shortest pace wants; None without a watcher."""
        return min((read.watch_ms for read in self._inputs_read if read.watch_ms is not None), default=None)

    @property
    def connections(self) -> tuple[str, ...]:
        """Names of the connections that the source uses, sorted."""
        return tuple(sorted({read.connection_name for read in self._inputs_read if read.connection_name is not None}))

    @property
    def _inputs_read(self) -> tuple[Source, ...]:
        return () if self.source is None else self.source.inputs_read

    def to_json(self) -> dict[str, Any]:
        """Return the stored form, with absolute paths, and with defaults, so that a later default changes nothing."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def _is_same_buffer(one: str, other: str) -> bool:
    """Compare two names of connections, whose case nobody minds, or two addresses."""
    return one == other or (":" not in one and one.upper() == other.upper())
