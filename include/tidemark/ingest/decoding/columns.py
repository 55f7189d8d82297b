"""The columns that rows of a buffer are decoded for: the collection's own, without the stamps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tidemark.iceberg.files.data_files import arrow_schema
from tidemark.iceberg.shard.layout import BATCH, PRODUCER

if TYPE_CHECKING:
    from pyiceberg.table import Table


def user_columns(table: Table) -> pa.Schema:
    """Return the user columns of an append-only collection; every one may be NULL."""
    kinds = [field for field in arrow_schema(table) if field.name not in {PRODUCER, BATCH}]
    return pa.schema([field.with_nullable(nullable=True) for field in kinds])
