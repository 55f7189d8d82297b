"""The declaration of a sink: which collection goes where, as its contents or as its changes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, Discriminator, Field, Tag

from tidemark.collections.declarations.append_only import ColumnNames, Duration, duration_ms
from tidemark.collections.declarations.collection import Declaration, Kind, Name
from tidemark.collections.sources.formats.buffer import BufferPlace, Pace, pace_ms
from tidemark.collections.sources.formats.source import IDENTIFIER, Strict, absolute_path
from tidemark.errors import UsageError


class SinkMode(StrEnum):
    """What the target is: equal to the collection, or a log of its changes."""

    MIRROR = "mirror"
    CHANGES = "changes"


class Existing(StrEnum):
    """What the first load does with rows that are in the target already."""

    REFUSE = "refuse"
    REPLACE = "replace"


def _check_table(table: str) -> str:
    parts = table.split(".")
    if len(parts) > 2 or not all(parts):  # noqa: PLR2004 - a schema and a table
        raise ValueError(f"{table!r} is neither `TABLE` nor `SCHEMA.TABLE`")
    return table


def _check_connection(name: str) -> str:
    if not IDENTIFIER.fullmatch(name):
        raise ValueError("is no name of letters, digits and underscores")
    return name


ConnectionName = Annotated[str, AfterValidator(_check_connection)]


class Place(Strict):
    """Where the rows go."""

    form: ClassVar[str]  # the field that tells this form from the others
    keys_have_names: ClassVar[bool] = False  # whether what is there bears the names of the key columns
    existing: Existing = Existing.REFUSE

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the collection that the place names."""
        return ()

    def follow(self, renames: Mapping[str, str]) -> Self:  # noqa: ARG002 - for those that name columns
        """Return the place with the new names of columns."""
        return self

    @property
    def connections(self) -> tuple[str, ...]:
        """The names of the connections that lead there."""
        return ()

    @property
    def replaces(self) -> bool:
        """Whether the first load deletes the rows that are there."""
        return self.existing is Existing.REPLACE


class DatabaseTable(Place):
    """A table of a database; the connection is named as the connections of sources are."""

    form = "connection"
    connection: ConnectionName
    table: Annotated[str, AfterValidator(_check_table)]

    @property
    def connections(self) -> tuple[str, ...]:
        return (self.connection,)

    def __str__(self) -> str:
        return f"table {self.table} of {self.connection}"


class BufferTopic(Place):
    """A topic of Kafka, under the name or the address of a write buffer."""

    form = "buffer"
    keys_have_names = True
    buffer: BufferPlace

    @property
    def connections(self) -> tuple[str, ...]:
        return () if ":" in self.buffer else (self.buffer,)  # an address needs none

    def __str__(self) -> str:
        return f"buffer {self.buffer}"


class FileFolder(Place):
    """Parquet files in a folder; a relative path is below the folder of the declaration."""

    form = "path"
    path: Annotated[str, AfterValidator(absolute_path)]
    partition: ColumnNames = ()  # whose values name the folders inside

    @property
    def columns(self) -> tuple[str, ...]:
        return self.partition

    def follow(self, renames: Mapping[str, str]) -> Self:
        return self.model_copy(update={"partition": tuple(renames.get(name, name) for name in self.partition)})

    def __str__(self) -> str:
        return f"files in {self.path}"


class IcebergTable(Place):
    """An Iceberg table of another catalog, or of a namespace of this installation's catalog."""

    form = "catalog"
    catalog: ConnectionName
    table: Annotated[str, Field(pattern=r"^[^.]+(\.[^.]+)+$")]  # NAMESPACE.TABLE

    def __str__(self) -> str:
        return f"Iceberg table {self.table} of {self.catalog}"


PLACES: tuple[type[Place], ...] = (DatabaseTable, BufferTopic, FileFolder, IcebergTable)


def _form_of(value: Any) -> str:
    named = value if isinstance(value, dict) else {value.form} if isinstance(value, Place) else ()
    return next((place.form for place in PLACES if place.form in named), DatabaseTable.form)


if TYPE_CHECKING:
    PlaceDeclaration = Place
else:
    PlaceDeclaration = Annotated[
        Annotated[DatabaseTable, Tag(DatabaseTable.form)]
        | Annotated[BufferTopic, Tag(BufferTopic.form)]
        | Annotated[FileFolder, Tag(FileFolder.form)]
        | Annotated[IcebergTable, Tag(IcebergTable.form)],
        Discriminator(_form_of),
    ]


class SinkDeclaration(Strict):
    """One sink as its owner wants it; once applied, ``key`` is always a tuple."""

    name: Name
    collection: Name = Field(alias="from")
    to: PlaceDeclaration
    mode: SinkMode
    key: ColumnNames | None = None  # None: the key of the collection
    warn_after: Duration = "1d"  # the age of the kept history at which somebody should look
    spark_from_rows: Annotated[int, Field(ge=1)] = 100_000_000  # a first load of so many rows is for many processes
    every: Pace | None = None  # how often a storage worker runs the sink; None: the scheduled DAG alone does

    @property
    def warn_after_ms(self) -> int:
        return duration_ms(self.warn_after)

    @property
    def every_ms(self) -> int | None:
        return pace_ms(self.every)

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns that tell rows apart; none for a log of the changes of a multiset."""
        return self.key or ()

    @property
    def writes_by_key(self) -> bool:
        """Whether what is in the target depends on the key; a log of changes elsewhere than in Kafka does not."""
        return self.mode is SinkMode.MIRROR or self.to.keys_have_names

    @property
    def hold(self) -> str:
        """The name under which the sink holds history of its collection."""
        return f"sink-{self.name}"

    def resolve(self, collection: Declaration) -> SinkDeclaration:
        """Return the declaration with the key spelled out.

        Raises ``UsageError`` if the collection cannot be carried so.
        """
        key = collection.key if self.key is None else self.key
        if self.mode is SinkMode.MIRROR and collection.kind is Kind.APPEND_ONLY:
            raise UsageError(
                f"sink {self.name!r}: {collection.name!r} is append-only, and its rows have no key to mirror them by",
                hint="declare `mode: changes`, which carries its rows in the order of their commits",
            )
        if self.mode is SinkMode.MIRROR and not key:
            lacking = f"{collection.name!r} has no key" if self.key is None else "its `key` has no columns"
            raise UsageError(
                f"sink {self.name!r}: {lacking}, and a mirror tells rows apart by it",
                hint=f"declare `mode: changes`, or the columns that are unique in {collection.name!r} as the `key` of "
                "the sink; without `key` it is the key of the collection",
            )
        return self.model_copy(update={"key": key})

    def follow(self, renames: Mapping[str, str]) -> SinkDeclaration:
        """Return the declaration with the new names of the collection's columns, by the old ones."""
        key = tuple(renames.get(name, name) for name in self.key_columns)
        return self.model_copy(update={"key": key, "to": self.to.follow(renames)})

    def to_json(self) -> dict[str, Any]:
        """Return the stored form, with absolute paths and with defaults."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
