"""What has to hold in every shard.

In a differential one the contents at since, and the updates after it, add up to main. In an append-only one the ledgers
have the batch of every row.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table.snapshots import Snapshot

from tidemark.iceberg.files.arrow_values import to_rows
from tidemark.iceberg.files.stored_rows import StoredRows
from tidemark.iceberg.reading.arrow import consolidate_arrow, negated, scan_snapshot, scan_updates
from tidemark.iceberg.shard.column_names import BATCH, DIFF, PRODUCER, TIME
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.layout import user_column_names
from tidemark.iceberg.shard.ledger import FORWARDED, Range
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shard.time_travel import pin_contents

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SAMPLE = 5
_ROWS = ".rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class InvariantCheck:
    """The result; ``wrong_rows`` counts rows with a wrong multiplicity, ``sample`` has a few, with their difference.

    ``grounded`` is False if the snapshot at since is lost, so that only the signs could be checked.
    """

    wrong_rows: int
    grounded: bool
    sample: list[dict[str, object]] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return self.wrong_rows == 0


def check_ledgers(head: ShardHead) -> tuple[Counter[str], list[str]]:
    """Return the rows by producer whose batches its ledger lacks, and the published ranges of which no row is stored.

    A producer without a ledger is another engine's. A ledger ``PRODUCER.rows`` has single rows of that producer's
    batches, by numbers that the rows do not tell; of batches that were forwarded no row is here.
    """
    stored = StoredRows.in_contents(head)
    batches: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for file in stored.files:
        for placed in stored.scan(file, [PRODUCER, BATCH]):
            for row in placed.rows.group_by([PRODUCER, BATCH]).aggregate([([], "count_all")]).to_pylist():
                batches[row[PRODUCER]][row[BATCH]] += row["count_all"]
    unknown, without_rows = Counter[str](), list[str]()
    ledgers = head.state.ledgers
    for producer, ledger in ledgers.items():
        if producer.removesuffix(_ROWS) + _ROWS in ledgers or producer.endswith(FORWARDED):
            continue
        starts = sorted(batches[producer])
        lacking = [start for start in starts if not ledger.covers(Range(start, start + 1))]
        unknown[producer] = sum(batches[producer][start] for start in lacking)
        empty = (each for each in ledger.ranges if bisect_left(starts, each.start) == bisect_left(starts, each.end))
        without_rows += [f"{each} of {producer!r}" for each in empty]
    return +unknown, without_rows


def check_invariant(shard: Shard, *, spark: SparkSession | None = None) -> InvariantCheck:
    """Check that main at ``upper - 1`` is the contents at since plus the updates at times in ``(since, upper)``.

    The contents at since hold the updates at since already. A shard that is not differential, or is sealed, passes
    without a check. ``spark`` does the work for a large table; without Spark this process does it.
    """
    head = shard.load()
    since = head.state.since
    if head.state.layout is not ShardKind.DIFFERENTIAL or not isinstance(since, int) or head.state.upper == 0:
        return InvariantCheck(wrong_rows=0, grounded=True)
    pinned = pin_contents(head, since, shard=shard.name)
    base = pinned.snapshot if pinned.undo_above is None else None
    grounded = base is not None
    columns = user_column_names(head.table.schema(), head.state.layout)
    if spark is None:
        wrong = _wrong_in_arrow(head, since, columns, base=base)
        return InvariantCheck(wrong_rows=wrong.num_rows, grounded=grounded, sample=to_rows(wrong.slice(0, SAMPLE)))
    frame = _wrong_in_spark(spark, shard, head, since, columns, base=base)
    sample = to_rows(frame.limit(SAMPLE).toArrow())
    return InvariantCheck(wrong_rows=frame.count() if sample else 0, grounded=grounded, sample=sample)


def _wrong_in_arrow(head: ShardHead, since: int, columns: list[str], *, base: Snapshot | None) -> pa.Table:
    main = scan_snapshot(head, head.contents)
    updates = scan_updates(head, since + 1, None)
    parts = [main, negated(updates, main.schema)]
    if base is not None:
        parts.append(negated(scan_snapshot(head, base), main.schema))
    totals = consolidate_arrow(pa.concat_tables(parts), columns)
    if base is not None:
        return totals
    # Without a snapshot of since's time: main less the updates must at least not be negative anywhere.
    return totals.filter(pc.less(totals.column(DIFF), 0))


def _wrong_in_spark(
    spark: SparkSession, shard: Shard, head: ShardHead, since: int, columns: list[str], *, base: Snapshot | None
) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: PLC0415 - the driver alone checks small tables, without Spark

    from tidemark.iceberg.reading import spark as reading  # noqa: PLC0415

    rows = reading.read_snapshot(spark, shard, head, head.contents)
    rows = rows.unionByName(reading.negated(reading.read_updates(spark, shard, head, since + 1, None)))
    if base is not None:
        rows = rows.unionByName(reading.negated(reading.read_snapshot(spark, shard, head, base)))
    totals = reading.consolidate(rows.drop(TIME), columns)
    return totals.where(F.col(DIFF) < 0) if base is None else totals
