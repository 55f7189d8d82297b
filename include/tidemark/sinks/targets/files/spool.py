"""The rows of a first load, kept aside until it is known into how many buckets they are split."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import IO

import pyarrow as pa

from tidemark.sinks.targets.batches import as_table
from tidemark.sinks.targets.files.partitions import Layout, count_buckets, count_directories
from tidemark.sinks.targets.keys import UniqueKeys


def keep_aside(spool: IO[bytes], schema: pa.Schema, rows: Iterable[pa.Table], *, layout: Layout, where: str) -> int:
    """Write the rows, which have the columns of ``schema``, to ``spool``; return the number of buckets for them.

    Raises ``Refused`` if two rows have the same key; ``where`` names the target in the message.
    """
    directories, count = set[str](), 0
    unique = UniqueKeys(layout.key, where=where)
    with pa.ipc.new_stream(spool, schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
        for table in rows:
            directories |= count_directories(table, layout.partition)
            count += table.num_rows
            unique.add(table)
            stream.write_table(table)
    unique.check(read_aside(spool))
    return count_buckets(count, len(directories))


def read_aside(spool: IO[bytes]) -> Iterator[pa.Table]:
    """Yield the rows that were kept aside, from the first one on."""
    spool.seek(0)
    with pa.ipc.open_stream(spool) as stream:
        for batch in stream:
            yield as_table(batch)
