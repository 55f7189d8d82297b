"""The columns of one collection, under the names that they have while rows are compared.

Comparisons name columns by position (``new_0``, ``old_0``), because a user's column may have any name, even a name that
the comparison itself uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidemark.collections.digest.digest import layout_of
from tidemark.collections.digest.row_hash import canonical_row, same
from tidemark.iceberg.reading.canonical import canonical
from tidemark.spark.quoting import quoted

NEW, OLD = "new_", "old_"
NO_BUCKET = -1  # the bucket of a row whose key has a NULL
_SECOND_SEED = 0x7469_6465  # any constant: makes the second hash independent of the first


@dataclass(frozen=True)
class RowShape:
    """The user's columns in the order of the table, and the names of the key columns (none: a multiset)."""

    schema: StructType
    key: tuple[str, ...] = ()

    @property
    def is_keyed(self) -> bool:
        return bool(self.key)

    @property
    def width(self) -> int:
        return len(self.schema.fields)

    @cached_property
    def key_indexes(self) -> tuple[int, ...]:
        names = self.schema.names
        return tuple(names.index(name) for name in self.key)

    @cached_property
    def layout(self) -> str:
        return layout_of([(field.name, field.dataType.simpleString()) for field in self.schema.fields], self.key)

    def number(self, frame: DataFrame, prefix: str, *also: Column) -> DataFrame:
        """Return the user's columns of ``frame`` named by position, and the columns ``also`` unchanged."""
        numbered = [F.col(quoted(field.name)).alias(f"{prefix}{n}") for n, field in enumerate(self.schema.fields)]
        return frame.select(*numbered, *also)

    def columns(self, prefix: str) -> list[Column]:
        return [F.col(f"{prefix}{n}") for n in range(self.width)]

    def named_columns(self, prefix: str) -> list[Column]:
        """Return the user's columns under their own names, of a frame that has them by position."""
        return [column.alias(name) for column, name in zip(self.columns(prefix), self.schema.names, strict=True)]

    def key_columns(self, prefix: str) -> list[Column]:
        return [F.col(f"{prefix}{n}") for n in self.key_indexes]

    def hash(self, prefix: str) -> Column:
        """Return the 64-bit hash of the whole row under ``prefix`` (bigint, never NULL)."""
        if prefix not in self._hashes:
            self._hashes[prefix] = F.xxhash64(*canonical_row(self.schema, self.columns(prefix)))
        return self._hashes[prefix]

    # Putting the hash of a wide row together takes hundreds of calls into the JVM, and every pass over the rows asks.
    @cached_property
    def _hashes(self) -> dict[str, Column]:
        return {}

    def position(self, prefix: str) -> Column:
        """Return the 64-bit hash that decides the bucket of a row: a hash of the key, or of the row without a key.

        Of a key with a NULL the hash is meaningless. Without a key the hash is independent of ``hash``: else all hashes
        of a bucket would share their low bits. Both hashes together identify a row.
        """
        if self.is_keyed:
            types = [self.schema.fields[n].dataType for n in self.key_indexes]
            return F.xxhash64(*map(canonical, self.key_columns(prefix), types))
        return F.xxhash64(F.lit(_SECOND_SEED), *canonical_row(self.schema, self.columns(prefix)))

    def hashes(self, prefix: str, name_prefix: str = "") -> tuple[Column, Column]:
        """Return both hashes of a row as the columns ``hash`` and ``position``, behind ``name_prefix``."""
        return self.hash(prefix).alias(f"{name_prefix}hash"), self.position(prefix).alias(f"{name_prefix}position")

    def bucket(self, prefix: str, bucket_count: int) -> Column:
        """Return the bucket of a row, below ``bucket_count`` (a power of two); ``NO_BUCKET`` if its key has a NULL.

        Buckets nest: bucket ``b`` of ``n`` holds the rows of buckets ``b`` and ``b + n`` of ``2 * n``.
        """
        number = self.position(prefix).bitwiseAND(F.lit(bucket_count - 1).cast("bigint"))
        if not self.is_keyed:
            return number
        return F.when(self.has_null_key(prefix), F.lit(NO_BUCKET).cast("bigint")).otherwise(number)

    def has_null_key(self, prefix: str) -> Column:
        """Return whether a key column is NULL; FALSE for a multiset."""
        null = F.lit(False)  # noqa: FBT003  a literal of Spark, not an argument that says nothing
        for column in self.key_columns(prefix):
            null |= F.isnull(column)
        return null

    def unequal(self) -> Column:
        """Return whether the new and the old row of one key differ."""
        differs = F.lit(False)  # noqa: FBT003
        for n, field in enumerate(self.schema.fields):
            if n not in self.key_indexes:
                differs |= ~same(F.col(f"{NEW}{n}"), F.col(f"{OLD}{n}"), field.dataType)
        return differs
