"""The tables of the system's collections: made when they are needed, and given the columns that this version declares.

A table that an older version made gets the new columns before the next append; its rows have NULL there. A table of a
newer version has columns that this version does not know: these stay NULL, and nobody reads them here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyiceberg.exceptions import CommitFailedException

from tidemark.collections.append.forward import user_columns
from tidemark.collections.apply.execute import alter_columns, read_stored
from tidemark.collections.apply.plan import Add
from tidemark.collections.schema.convert import to_iceberg
from tidemark.collections.system.declarations import SYSTEM_DECLARATIONS
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.arrow_values import to_rows
from tidemark.iceberg.files.newest_rows import find_newest
from tidemark.iceberg.files.stored_rows import StoredRows
from tidemark.iceberg.shard.column_names import BATCH
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shards import SYSTEM, Shards
from tidemark.retry import retrying

ATTEMPTS = 5


def open_table(shards: Shards, name: str, *, generation: int) -> Shard:
    """Return the table of a collection of the system, with at least the declared columns.

    Raises:
        FencedByGeneration: If a newer deployment owns the table, and columns are missing.
        ConflictsUnsettled: If other commits kept winning against the new columns.
    """
    declared = SYSTEM_DECLARATIONS[name].known_columns or ()
    shard = shards.create(name, schema=to_iceberg(declared), layout=ShardKind.APPEND_ONLY, namespace=SYSTEM)
    retrying(CommitFailedException, attempts=ATTEMPTS, what=f"the new columns of {name!r}")(
        _add_missing, shard, generation
    )
    return shard


def _add_missing(shard: Shard, generation: int) -> None:
    present = {column.name for column in read_stored(shard.load().table).columns}
    declared = SYSTEM_DECLARATIONS[shard.name].known_columns or ()
    if missing := [Add(shard.name, column) for column in declared if column.name not in present]:
        Writer.join(shard, generation)
        alter_columns(shard, missing)


def read_newest(shards: Shards, name: str, *, key: Sequence[str], keep: int) -> list[dict[str, Any]]:
    """Return the rows of each key that were recorded last, with all declared columns, the last one first.

    The order is that of the commits: of one deployment by the numbers of its batches, whatever its clocks said.
    """
    if not shards.exists(name, SYSTEM):
        return []
    head = shards.open(name, SYSTEM).load()
    declared = [column.name for column in SYSTEM_DECLARATIONS[name].known_columns or ()]
    present = [column for column in declared if column in user_columns(head.table).names]
    recorded = [column for column in ("generation",) if column in present]  # a table of an older version lacks it
    pieces, complete = StoredRows.in_contents(head).by_age(present, [*recorded, BATCH])
    newest = find_newest(pieces, key=key, order=complete, keep=keep)
    return [] if newest is None else [dict.fromkeys(declared) | row for row in to_rows(newest.select(present))]
