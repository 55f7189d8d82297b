"""The names of the columns that Tidemark adds to the user's; without pyiceberg, which Spark's tasks do without."""

from __future__ import annotations

TIME, DIFF = "_time", "_diff"
# The producer and the start of the range name a batch: two batches of a producer never start alike.
PRODUCER, BATCH = "_producer", "_batch"
# The number of the entry of a write buffer that a row came in, above it the turn of the log; NULL for any other row.
ENTRY = "_entry"
