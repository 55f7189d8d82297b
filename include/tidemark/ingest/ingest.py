"""Ingests one collection: looks at the log, plans, delivers, and says what happened."""

from __future__ import annotations

import logging
import random
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tidemark.collections.append.append import check_append_only
from tidemark.collections.declarations.collection import OnReadOnly
from tidemark.collections.deployment import Mode
from tidemark.collections.isolation import NeedsSpark
from tidemark.collections.mode import join_to_write
from tidemark.collections.sources.formats.buffer import BufferSource, OnLost
from tidemark.errors import (
    ConflictsUnsettled,
    FencedByEpoch,
    InputsGone,
    RangeOverlap,
    TidemarkError,
    UpperMismatch,
    UsageError,
)
from tidemark.fail_points import fail_point
from tidemark.iceberg.shard.ledger import Ledger
from tidemark.ingest.buffer_log import BufferLog, check_buffer_source, look_at
from tidemark.ingest.decoding.messages import RowDecoder, user_columns
from tidemark.ingest.decoding.tally import add_up
from tidemark.ingest.delivery import SMALL_ENTRIES, SmallDelivery, SparkDelivery, TooMuchForOneProcess
from tidemark.ingest.plan import Policies, plan_ingest
from tidemark.ingest.progress import measure
from tidemark.ingest.publish import Target, drop_attempts, find_attempts, finish_pending, publish_ranges
from tidemark.ingest.quarantine import quarantine_name
from tidemark.ingest.range_rows import RowReading
from tidemark.ingest.stage import drop_useless, end_as_begun, stage_range, staged_ranges
from tidemark.report import CollectionReport, Outcome
from tidemark.write_buffer.address import find_connection
from tidemark.write_buffer.errors import NoLongerExists
from tidemark.write_buffer.registry import check_shared, open_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

    from tidemark.clock import Clock
    from tidemark.collections.declarations.collection import Declaration
    from tidemark.collections.deployment import Deployment
    from tidemark.iceberg.shard.head import ShardHead
    from tidemark.iceberg.shards import Shards
    from tidemark.ingest.decoding.tally import Tally
    from tidemark.ingest.delivery import Delivery
    from tidemark.ingest.plan import PlannedRange
    from tidemark.write_buffer.back_end import Connection
    from tidemark.write_buffer.reader import Reader

log = logging.getLogger(__name__)

FAIL_POINTS = ("ingest.after-plan",)
ATTEMPTS = 8
GROUP_PREFIX = "tidemark."  # of the consumer groups whose offsets show people how far a collection is
_BACKOFF_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How an ingest may do its work.

    ``start_spark`` is asked for a session only where there is much to do; None: then raise ``NeedsSpark``.
    """

    start_spark: Callable[[], SparkSession] | None = None
    max_entries: int | None = None  # of one run and collection
    small_entries: int = SMALL_ENTRIES  # up to so many are done in this process
    part_numbers: int | None = None  # of one task of Spark's

    def __post_init__(self) -> None:
        if self.max_entries is not None and self.max_entries < 1:
            raise UsageError(f"a run takes at least one entry, not {self.max_entries}", hint="leave the limit out")


def ingest(
    shards: Shards, declaration: Declaration, *, deployment: Deployment, clock: Clock, engine: Engine
) -> CollectionReport:
    """Ingest what waits for one collection, up to watermarks that are taken once.

    Raises:
        NeedsSpark: If there is much to do and no Spark to do it with; nothing was changed.
        UsageError: If the collection does not read a buffer.
        ConfigurationInvalid: If its buffer is not set.
        BufferUnreachable: If its buffer does not answer.
        BufferMissing: If it does not exist.
        LogRecreated: If the log is another one than before, and that is not declared to be right.
        SequencerGone: If a part of it is gone.
        AfterWatermark: If it was cut.
        NoLongerExists: If retention took entries before they were ingested, and that is not declared to be right.
        ReadOnly: If the deployment is read-only and the collection rejects batches meanwhile.
        TidemarkError: As an append.
    """
    source = check_buffer_source(declaration)
    connection = find_connection(source.buffer, deployment.settings.connections)
    shard = shards.open(declaration.name)
    target = Target(shards=shards, shard=shard, deployment=deployment, clock=clock, expect=declaration.expect)
    began_ms = clock.now_ms()
    with open_reader(connection) as reader:
        log_ = BufferLog.of(connection, identity=reader.identity, title=reader.name)
        report = _Run(target, declaration, source, connection, reader, log_, engine).settle()
    return replace(report, seconds=(clock.now_ms() - began_ms) / 1000)


@dataclass(frozen=True, slots=True)
class _Run:
    target: Target
    declaration: Declaration
    source: BufferSource
    connection: Connection
    reader: Reader
    log: BufferLog
    engine: Engine

    def settle(self) -> CollectionReport:
        """Try until nobody else is faster, a bounded number of times."""
        failure: Exception | None = None
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(random.uniform(0.5, 1.5) * _BACKOFF_S * 2 ** min(attempt, 6))  # noqa: S311  # jitter
            try:
                return self._try()
            except (UpperMismatch, FencedByEpoch, InputsGone, RangeOverlap) as error:
                failure = error
                log.info("%s is planned again: %s", self.declaration.name, error)
            except NoLongerExists as error:  # retention took what was planned, before it was read
                if self.source.on_expired is OnLost.FAIL:
                    raise
                failure = error
        raise ConflictsUnsettled(
            f"the ingest of {self.declaration.name!r} kept losing to other commits", hint="run it again"
        ) from failure

    def _try(self) -> CollectionReport:
        target, shard = self.target, self.target.shard
        _, mode = join_to_write(shard, target.deployment)
        head = shard.load()
        check_append_only(head, shard.name)
        drop_useless(target, self.log, head)
        left = find_attempts(target) if mode is Mode.READ_WRITE else []
        if mode is Mode.READ_WRITE:
            finish_pending(target, head)
        head = shard.load()
        planned = plan_ingest(
            # After the ledgers: what another run has published since would lie behind watermarks that are older.
            look_at(self.reader, self.connection),
            head.state.ledgers,
            staged_ranges(target, shard, head),
            policies=Policies(on_expired=self.source.on_expired, on_recreated=self.source.on_recreated),
            limit=self.engine.max_entries,
        )
        if mode is Mode.READ_ONLY:
            planned = end_as_begun(target, self.log, planned)
        if not planned:
            return CollectionReport(
                outcome=Outcome.UNCHANGED,
                lower=head.state.upper,
                upper=head.state.upper,
                details=self._details([], [], published=False),
            )
        fail_point("ingest.after-plan")
        if mode is Mode.READ_ONLY:
            return self._stage(planned, head)
        report = self._publish(planned, head)
        drop_attempts(target, left)
        return report

    def _publish(self, planned: Sequence[PlannedRange], head: ShardHead) -> CollectionReport:
        try:
            done = publish_ranges(self.target, self.log, planned, self._delivery(planned, head.table))
        except TooMuchForOneProcess:
            done = publish_ranges(self.target, self.log, planned, self._with_spark(head.table))
        numbers = {each.sequencer_id: each.end for each in planned}
        self.reader.tell_progress(GROUP_PREFIX + self.declaration.name, numbers)
        details = self._details(planned, done.tallies, published=True)
        return CollectionReport(
            outcome=Outcome.APPENDED,
            lower=done.lower,
            upper=done.upper,
            inserted=done.rows,
            rows_source=done.rows + done.bad_rows,
            batches=len(planned),
            details=details,
        )

    def _stage(self, planned: Sequence[PlannedRange], head: ShardHead) -> CollectionReport:
        stages = self.declaration.on_read_only is OnReadOnly.STAGE
        tallies: list[Tally] = []
        rows = bad_rows = 0
        for each in planned:
            try:
                delivery = self._delivery(planned, head.table)
                done = stage_range(self.target, self.log, each, delivery, stage_when_read_only=stages)
            except TooMuchForOneProcess:
                delivery = self._with_spark(head.table)
                done = stage_range(self.target, self.log, each, delivery, stage_when_read_only=stages)
            _, counted, staged, bad = done
            tallies += counted
            rows, bad_rows = rows + staged, bad_rows + bad
        return CollectionReport(
            outcome=Outcome.STAGED,
            lower=head.state.upper,
            upper=head.state.upper,
            rows_source=rows + bad_rows,
            batches=len(planned),
            details=self._details(planned, tallies, published=False),
        )

    # -- how -----------------------------------------------------------------------------------------------------

    def _delivery(self, planned: Sequence[PlannedRange], table: Table) -> Delivery:
        if sum(each.end - each.first for each in planned) <= self.engine.small_entries:
            return SmallDelivery(self._reading(table), self.log)
        return self._with_spark(table)

    def _with_spark(self, table: Table) -> SparkDelivery:
        check_shared(self.connection)
        if self.engine.start_spark is None:
            raise NeedsSpark
        spark = self.engine.start_spark()
        if self.engine.part_numbers is None:
            return SparkDelivery(spark, self._reading(table), self.log)
        return SparkDelivery(spark, self._reading(table), self.log, self.engine.part_numbers)

    def _reading(self, table: Table) -> RowReading:
        decoder = RowDecoder(user_columns(table), self.source.table)
        topic = self.connection.topic or self.connection.place
        return RowReading(self.connection, topic, decoder, table.metadata.current_schema_id)

    # -- what is told --------------------------------------------------------------------------------------------

    def _details(self, planned: Sequence[PlannedRange], tallies: Sequence[Tally], *, published: bool) -> dict[str, Any]:
        now_ms = self.target.clock.now_ms()
        details: dict[str, Any] = {"buffer": self.reader.name}
        if planned:
            producers = {self.log.producer(each.sequencer_id): each.range for each in planned}
            ranges = {name: [list(each) for each in Ledger((found,)).ranges] for name, found in producers.items()}
            details["ranges" if published else "staged_ranges"] = ranges
            try:
                details["sequencers"] = measure(self.reader, planned, add_up(tallies), now_ms=now_ms)
            except TidemarkError as error:  # the rows are there: a broker that has gone since is no failure of theirs
                details["unmeasured"] = str(error)
        if lost := sum(each.lost for each in planned):
            details["lost"] = lost
        if bad := sum(each.bad_rows for each in tallies):
            details |= {"quarantined": bad, "quarantine": quarantine_name(self.declaration.name)}
        return details
