"""Makes the rows of a quarantine, in this process and in Spark's tasks: bad rows with places and headers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemark.write_buffer.formats.arrow_messages import TYPES

if TYPE_CHECKING:
    from tidemark.ingest.decoding.messages import PlacedBadRow

QUARANTINE_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("place", pa.int32()),
        ("time_ms", pa.int64()),
        ("headers", TYPES["headers"]),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("raw", pa.binary()),
    ]
)


def quarantined_rows(
    bad: Sequence[PlacedBadRow], messages: pa.RecordBatch, *, topic: str, sequencer_id: int
) -> pa.Table:
    """Return ``bad`` as rows of the quarantine, with the headers that ``messages`` have."""
    headers = dict(zip(messages.column("number").to_pylist(), messages.column("headers").to_pylist(), strict=True))
    return pa.table(
        {
            "topic": [topic] * len(bad),
            "partition": [sequencer_id] * len(bad),
            "offset": [placed.number for placed in bad],
            "place": [placed.place for placed in bad],
            "time_ms": [placed.time_ms for placed in bad],
            "headers": [headers[placed.number] for placed in bad],
            "reason": [str(placed.row.reason) for placed in bad],
            "detail": [placed.row.detail for placed in bad],
            "raw": [placed.row.raw for placed in bad],
        },
        schema=QUARANTINE_SCHEMA,
    )
