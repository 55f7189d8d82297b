"""How many CPU seconds the tests of a folder may take: 1.5 times what they took when last measured, and 5 more.

Two levels below ``tests``, in a whole run (`make test`). A folder that grows beyond its budget fails the run: make its
tests cheaper, or raise the number here, where everybody sees it. Where nothing else runs,
`PYTEST_ADDOPTS=--write-cpu-budgets make test` measures anew and writes this table.
"""

from __future__ import annotations

UNMARKED_TEST_S = 1.0
YARDSTICK_S = 0.016  # what `yardstick_s()` took there: all limits grow on a machine that is slower

BUDGETS_S: dict[str, int] = {
    "tests": 83,
    "tests/catalog/deployment": 21,
    "tests/catalog/items": 8,
    "tests/catalog/migration": 198,
    "tests/catalog/opening": 124,
    "tests/catalog/persist": 26,
    "tests/catalog/stash": 30,
    "tests/cli": 135,
    "tests/collections": 29,
    "tests/collections/append": 149,
    "tests/collections/apply": 43,
    "tests/collections/declarations": 10,
    "tests/collections/digest": 45,
    "tests/collections/maintenance": 32,
    "tests/collections/objects": 47,
    "tests/collections/quality": 13,
    "tests/collections/reconcile": 266,
    "tests/collections/schema": 11,
    "tests/collections/sources": 35,
    "tests/collections/staged": 109,
    "tests/collections/system": 38,
    "tests/dags": 163,
    "tests/examples": 56,
    "tests/iceberg": 6,
    "tests/iceberg/commit": 101,
    "tests/iceberg/files": 13,
    "tests/iceberg/leases": 15,
    "tests/iceberg/maintenance": 114,
    "tests/iceberg/reading": 24,
    "tests/iceberg/shard": 14,
    "tests/iceberg/staging": 44,
    "tests/ingest": 130,
    "tests/ingest/latest": 61,
    "tests/ingest/partitions": 23,
    "tests/ingest/persist": 96,
    "tests/ingest/replay": 51,
    "tests/lifecycle": 14,
    "tests/live": 434,
    "tests/orchestration": 12,
    "tests/orchestration/sensors": 13,
    "tests/orchestration/tasks": 20,
    "tests/plugins": 13,
    "tests/secrets": 6,
    "tests/sinks": 75,
    "tests/sinks/kafka": 65,
    "tests/sinks/postgres": 85,
    "tests/sinks/targets": 110,
    "tests/spark": 33,
    "tests/spark_apps": 122,
    "tests/tools": 23,
    "tests/write_buffer": 31,
    "tests/write_buffer/batches": 12,
    "tests/write_buffer/file": 9,
    "tests/write_buffer/formats": 8,
    "tests/write_buffer/kafka": 9,
}
