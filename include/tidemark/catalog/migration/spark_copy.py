"""The copy of a large catalog with Spark: the net difference of both back ends, staged, then written in one commit.

Spark reads both sides, and writes the difference onto a staging branch of the persist catalog, which nobody reads. A
migration publishes the branch; a rollback reads it into one transaction of the stash, which flips the tombstone too. So
neither holds the items in memory, and equal items are not written again.

Nobody changes either side meanwhile: this open has fenced both, and nobody joins before the announcement. A later fence
makes the one commit fail, because the commit requires the uppers that were read under the fences.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j has no annotations
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import FileScanTask
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.catalog.back_end import Replaced
from tidemark.catalog.items.contents import Contents
from tidemark.catalog.items.item import Item
from tidemark.catalog.items.kinds import KINDS, LEADER_EPOCH, TOMBSTONE
from tidemark.catalog.items.replace_all import check_not_led, replacement_changes
from tidemark.catalog.migration.stash_rows import SCHEMA, stash_rows
from tidemark.catalog.opening.resume import Fences
from tidemark.catalog.persist.records import (
    FENCE_TOKEN,
    PROPERTY,
    SHOWN,
    WHERE,
    check_not_fenced,
    head_items,
    head_text,
    parse_head,
    shown_token,
)
from tidemark.catalog.stash.collections import AppendBatch, Entry, StashCollections
from tidemark.catalog.stash.handle import StashHandle
from tidemark.clock import Clock
from tidemark.collections.sources.errors import translate
from tidemark.errors import CorruptState, FencedByEpoch, InputsGone, Sealed, StaleState, Unreachable, UpperMismatch
from tidemark.fail_points import fail_point
from tidemark.frontier import Frontier
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.reading.spark import read_snapshot
from tidemark.iceberg.shard.column_names import DIFF, TIME
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shard.token import Token
from tidemark.iceberg.staging.branches import StagedBatch, branch_name, drop_staged
from tidemark.iceberg.staging.frames import stage
from tidemark.retry import retrying
from tidemark.settings import Settings

FAIL_POINTS: Final = ("copy.after-stage",)
ITEM = ("kind", "key", "value")
_WRITER = "catalog-copy"  # of the staging branches
_ATTEMPTS = 3


class _Overtaken(Exception):
    """The persist catalog was changed while an attempt compared both sides."""


@dataclass(frozen=True, kw_only=True)
class SparkCopy:
    """One copy; it holds the fence of the stash, and knows the fence of the persist catalog."""

    spark: SparkSession
    settings: Settings
    shard: Shard
    stash: StashHandle
    fences: Fences
    clock: Clock

    def to_persist(self) -> Replaced:
        """Make the persist catalog equal to the stash, in one commit.

        Raises:
            Fenced: If a back end was opened since; nothing became visible.
            StaleState: If this epoch was announced, or another copy was faster each time.
            CorruptState: If the stash holds an item more than once.
        """
        attempts = retrying(
            _Overtaken,
            attempts=_ATTEMPTS,
            what=f"the copy to {WHERE}",
            give_up=lambda _: StaleState(
                f"another copy to {WHERE} was faster, {_ATTEMPTS} times", hint="look again, and run it again"
            ),
        )
        return attempts(self._to_persist_once)

    def _to_persist_once(self) -> Replaced:
        head, upper = self._checked_head()
        shown = head_items(parse_head(head.table.metadata.properties))
        check_not_led(shown.config(LEADER_EPOCH), epoch=self.fences.persist_epoch, where=WHERE)
        generation = self.settings.generation
        shown.apply(replacement_changes(shown, self.stash.run(_shown_in_stash, write=False), generation=generation))
        time = max(self.clock.now_ms(), upper)
        driver_rows = self.spark.createDataFrame([(*item, 1) for item in shown], SCHEMA)
        wanted = stash_rows(self.spark, self.settings).unionByName(driver_rows)
        # Compare also unknown kinds and config that the head does not show: no garbage may survive.
        staged = self._stage(wanted=wanted, stored=self._persist_rows(head, but=(FENCE_TOKEN,)), time=time)
        counted = _counted(head, staged, wanted)
        self.stash.confirm_leadership()  # what Spark has read was read under this fence
        fail_point("copy.after-stage")
        head_after = head_text(Token(generation, self.fences.persist_epoch), shown)
        # Nothing to write: an earlier try, or a twin, has done it. A head that somebody edited is written anew.
        if not staged.rows and head.table.metadata.properties.get(PROPERTY) == head_after:
            drop_staged(self.shard, [staged.branch])
            return Replaced(0, 0)
        batch = Batch(
            added=staged.files, schema_id=head.table.schema().schema_id, branches=((staged.branch, staged.snapshot_id),)
        )
        writer = Writer.join(self.shard, generation)
        try:
            writer.publish(batch, lower=upper, new_upper=time + 1, properties={PROPERTY: head_after})
        except (UpperMismatch, FencedByEpoch) as error:  # of the shard; the head tells whether this open was fenced
            raise _Overtaken from error
        return counted

    def to_stash(self) -> Replaced | None:
        """Make the stash equal to the persist catalog and flip the tombstone, in one transaction.

        Returns None if the tombstone was flipped already. Raises as ``to_persist``.
        """
        uppers = self.stash.run(_uppers, write=False)
        head, upper = self._checked_head()
        wanted = head_items(parse_head(head.table.metadata.properties))
        # The truth has no items of unknown kinds: the dry run of the plan refuses them.
        rows = self._persist_rows(head, but=(*SHOWN, FENCE_TOKEN))
        staged = self._stage(wanted=rows, stored=stash_rows(self.spark, self.settings), time=0)
        counted = _counted(head, staged, rows)
        if self._checked_head()[1] != upper:
            raise StaleState(f"{WHERE} was changed while it was copied", hint="run it again")
        fail_point("copy.after-stage")

        def operation(collections: StashCollections) -> Replaced | None:
            shown = _shown_in_stash(collections)
            if shown.config(TOMBSTONE) != 1:
                return None
            check_not_led(shown.config(LEADER_EPOCH), epoch=self.fences.stash_epoch, where="the stash")
            if _uppers(collections) != uppers:
                raise StaleState("the stash was changed while it was compared", hint="run it again")
            changes = replacement_changes(shown, wanted, generation=self.settings.generation, tombstone=False)
            at = max([self.clock.now_ms(), *(upper for upper in uppers.values() if isinstance(upper, int))])
            batches = _batches(head, staged, (*ITEM, DIFF))
            updates = (batch.select([*ITEM, DIFF]).rename_columns([*ITEM, "diff"]) for batch in batches)
            written = collections.update_many(updates, at)
            if written != staged.rows:
                raise CorruptState(f"{written} items were read back, {staged.rows} were staged")
            for (kind, key, value), diff in changes:
                collections.update(kind, at, [Entry(key, value, diff)])
            collections.append([AppendBatch.at(kind, at, lower=_lower(uppers[kind])) for kind in KINDS])
            driver = Replaced.by(changes)
            return Replaced(counted.inserted + driver.inserted, counted.retracted + driver.retracted)

        done = self.stash.run(operation)
        drop_staged(self.shard, [staged.branch])
        return done

    def drop_left_over(self) -> None:
        """Remove the staging branches of copies that died, of this open and of others: nobody continues them."""
        head, _ = self._checked_head()
        drop_staged(self.shard, [branch for branch in head.staged_branches if branch.split("/")[2:3] == [_WRITER]])

    def _stage(self, *, wanted: DataFrame, stored: DataFrame, time: int) -> StagedBatch:
        rows = net_difference(wanted, stored).select(
            *ITEM, F.lit(time).cast("bigint").alias(TIME), F.col("diff").alias(DIFF)
        )
        batch = f"{self.fences.stash_epoch}-{self.fences.persist_epoch}"
        branch = branch_name(generation=self.settings.generation, writer=_WRITER, batch=batch)
        rows = rows.sortWithinPartitions(*ITEM[:2])  # so the indexes of the stash grow in order
        return stage(self.shard, rows, branch=branch, keeps_order=True)

    def _checked_head(self) -> tuple[ShardHead, int]:
        """Return the head and the upper of the persist catalog; refuse the fence of another open."""
        head = self.shard.load()
        if str(head.table.metadata.table_uuid) != self.fences.persist_mark:
            raise FencedByEpoch(f"{WHERE} was dropped and made anew", hint="start over from the task that fences")
        token = shown_token(head.table.metadata.properties)
        if token is None:
            raise CorruptState(f"{WHERE} shows no token", hint="open the catalog anew")
        check_not_fenced(Token(self.settings.generation, self.fences.persist_epoch), token)
        return head, head.state.open_upper(WHERE, hint="this installation was closed for good")

    def _persist_rows(self, head: ShardHead, *, but: tuple[str, ...]) -> DataFrame:
        rows = read_snapshot(self.spark, self.shard, head, head.contents)
        return rows.where(~F.col("kind").isin(*but)).select(*ITEM, F.col(DIFF).alias("diff"))


def net_difference(wanted: DataFrame, stored: DataFrame) -> DataFrame:
    """Return the updates that turn ``stored`` into ``wanted``, none with diff 0.

    All have the columns kind, key, value, diff; the arguments need not be consolidated.
    """
    unwanted = stored.select(*ITEM, (-F.col("diff")).alias("diff"))
    net = _totals(wanted.select(*ITEM, "diff").unionByName(unwanted))
    return net.where(F.col("diff") != 0)


def _counted(head: ShardHead, staged: StagedBatch, wanted: DataFrame) -> Replaced:
    """Count the inserted and retracted items, from the staged files alone.

    Raises ``CorruptState`` if the truth has an item more than once. Garbage may hold any multiplicity, also a negative
    one, so an item that is inserted more than once is not yet damage.
    """
    inserted = retracted = 0
    is_doubtful = False
    for batch in _batches(head, staged, (DIFF,)):
        diffs = batch.column(DIFF)
        is_doubtful |= bool(pc.any(pc.greater(diffs, 1)).as_py())
        appearing = pc.sum(pc.greater(diffs, 0)).as_py() or 0
        inserted, retracted = inserted + appearing, retracted + batch.num_rows - appearing
    if is_doubtful and not _totals(wanted).where(~F.col("diff").isin(0, 1)).isEmpty():
        raise CorruptState(
            "an item is there more than once on the side that is the truth",
            hint="somebody else wrote to the catalog's tables: restore them from a dump",
        )
    return Replaced(inserted, retracted)


def _totals(rows: DataFrame) -> DataFrame:
    return rows.groupBy(*ITEM).agg(F.sum("diff").alias("diff"))


def _batches(head: ShardHead, staged: StagedBatch, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Yield columns of the rows of a staging branch, file by file."""
    table = head.table
    scan = ArrowScan(table.metadata, table.io, table.schema().select(*columns), AlwaysTrue())
    tasks = [FileScanTask(file, delete_files=set(), residual=AlwaysTrue()) for file in staged.files]
    try:
        yield from scan.to_record_batches(tasks)
    except FileNotFoundError as error:
        raise InputsGone(f"another copy has taken away what this one staged: {error}", hint="run it again") from error


def _uppers(collections: StashCollections) -> dict[str, Frontier]:
    return {name: stored.upper for name, stored in collections.stored().items()}


def _lower(upper: Frontier) -> int:
    if not isinstance(upper, int):
        raise Sealed("a collection of the stash is sealed", hint="this stash was closed for good")
    return upper


def _shown_in_stash(collections: StashCollections) -> Contents:
    return Contents(Item(kind, *pair) for kind in SHOWN for pair in collections.peek_one(kind, is_small=True).items())


@contextmanager
def translating_copy() -> Iterator[None]:
    """Translate Spark's errors in the block if a database or a file caused them; other errors pass.

    Raises:
        Unreachable: If the database of the stash, or that of the tables, was lost: nothing became visible.
        Others as ``translate``.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        translated = translate(error, "the copy of the catalog")
        if isinstance(translated, Unreachable):
            raise Unreachable(
                str(translated), hint="check TIDEMARK_STASH_URI, TIDEMARK_CATALOG_URI and that the servers run"
            ) from error
        if translated is not None:
            raise translated from error
        raise
