"""The collections that the system writes about its objects: what became of each, and what each run took.

They are declared here, lie in the namespace of the system, and are made when a process first has something to record.
"""

from __future__ import annotations

from typing import Final

from tidemark.collections.declarations.collection import Declaration, Kind

STATUS, STATISTICS = "system_status", "system_statistics"
KEPT_STATUSES = 20  # of each object
KEPT_STATISTICS = "30d"

_DECLARED = (
    {
        "name": STATUS,
        "schema": (
            "occurred_at timestamp, object string, object_id bigint, kind string, status string, error string, "
            "details string, generation bigint"
        ),
        # An object that is declared under the name of a dropped one has a history of its own; sinks have their own ids.
        "status": {
            "key": ["object", "object_id", "kind"],
            "column": "status",
            "time": "occurred_at",
            "changes_in": ["status", "error"],
        },
        "retention": {"last_n": KEPT_STATUSES, "key": ["object"], "order_by": ["occurred_at"]},
        "expect": {
            "not_null": ["occurred_at", "object", "status"],
            "one_of": {"kind": ["collection", "ingestion", "sink"]},
        },
    },
    {
        "name": STATISTICS,
        "schema": (
            "measured_at timestamp, object string, object_id bigint, kind string, operation string, outcome string, "
            "error string, rows bigint, bytes bigint, lag_ms bigint, seconds double, generation bigint, "
            "sequencer_lags string"
        ),
        "retention": {"age": KEPT_STATISTICS, "column": "measured_at"},
        "expect": {"not_null": ["measured_at", "object", "operation"]},
    },
)
_EVERY: Final = {"kind": Kind.APPEND_ONLY, "on_read_only": "reject"}  # what is read-only changes nothing worth a record

SYSTEM_DECLARATIONS: Final[dict[str, Declaration]] = {
    declared.name: declared for declared in (Declaration.model_validate(_EVERY | fields) for fields in _DECLARED)
}
