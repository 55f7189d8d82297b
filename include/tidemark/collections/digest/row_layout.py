"""The columns of one collection, under the names that they have while rows are compared.

Comparisons name columns by position (``new_0``, ``old_0``), because a user's column may have any name, even a name that
the comparison itself uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidemark.collections.digest.digest import layout_of
from tidemark.collections.digest.row_hash import NO_BUCKET, bucket, key_hash, row_hash, same, second_row_hash

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NEW, OLD = "new_", "old_"


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

    def key_columns(self, prefix: str) -> list[Column]:
        return [F.col(f"{prefix}{n}") for n in self.key_indexes]

    def hash(self, prefix: str) -> Column:
        """Return the hash of the row under ``prefix``."""
        return row_hash(self.schema, self.columns(prefix))

    def position(self, prefix: str) -> Column:
        """Return the 64-bit hash that decides the bucket of a row: a hash of the key, or of the row without a key.

        Without a key this is not the hash that a digest sums: else all hashes of a bucket would share their low bits.
        """
        if self.is_keyed:
            return key_hash(self._key_schema, self.key_columns(prefix))
        return second_row_hash(self.schema, self.columns(prefix))

    def bucket(self, prefix: str, bucket_count: int) -> Column:
        """Return the bucket of a row; ``NO_BUCKET`` if its key has a NULL."""
        number = bucket(self.position(prefix), bucket_count)
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

    @cached_property
    def _key_schema(self) -> StructType:
        return StructType([self.schema.fields[n] for n in self.key_indexes])


def quoted(name: str) -> str:
    """Return ``name`` as an identifier of Spark SQL, with any characters."""
    return "`" + name.replace("`", "``") + "`"
