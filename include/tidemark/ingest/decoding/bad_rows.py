"""The rows of a quarantine, as this process and tasks of Spark make them: bad rows with places and headers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tidemark.write_buffer.formats.arrow_messages import TYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidemark.ingest.decoding.messages import PlacedBadRow

ARROW = pa.schema(
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
    """Return ``bad`` as rows of the quarantine; ``messages`` have their headers."""
    headers = dict(zip(messages.column("number").to_pylist(), messages.column("headers").to_pylist(), strict=True))
    return pa.table(
        {
            "topic": pa.array([topic] * len(bad), pa.string()),
            "partition": pa.array([sequencer_id] * len(bad), pa.int32()),
            "offset": pa.array([placed.number for placed in bad], pa.int64()),
            "place": pa.array([placed.place for placed in bad], pa.int32()),
            "time_ms": pa.array([placed.time_ms for placed in bad], pa.int64()),
            "headers": pa.array([headers[placed.number] for placed in bad], TYPES["headers"]),
            "reason": pa.array([str(placed.row.reason) for placed in bad], pa.string()),
            "detail": pa.array([placed.row.detail for placed in bad], pa.string()),
            "raw": pa.array([placed.row.raw for placed in bad], pa.binary()),
        },
        schema=ARROW,
    )
