"""The copy of a migration or a rollback, by a process that has taken over the fences; Spark makes large copies."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidemark.catalog.back_end import Replaced
from tidemark.catalog.items.kinds import LEADER_EPOCH
from tidemark.catalog.opening.opening import BackEnds, Direction, Opening, run_steps
from tidemark.catalog.opening.protocol import READ_PERSIST, READ_STASH, WRITE_PERSIST, WRITE_STASH
from tidemark.catalog.opening.resume import START_OVER, Fences, resume
from tidemark.catalog.persist.persist import SYSTEM
from tidemark.catalog.persist.records import SHARD
from tidemark.catalog.stash.handle import StashHandle
from tidemark.errors import FencedByEpoch, NotPossible
from tidemark.fail_points import fail_point
from tidemark.iceberg.shard.state_reader import read_state
from tidemark.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LARGE_ABOVE: Final = 20_000  # stored updates of both sides; below, the copy takes less time than Spark's start
_COPY = {Direction.MIGRATE: (READ_STASH, WRITE_PERSIST), Direction.ROLLBACK: (READ_PERSIST, WRITE_STASH)}


@dataclass(frozen=True, slots=True)
class Copied:
    """The result of a copy; ``replaced`` is None if there was nothing to copy, since the destination was the truth."""

    replaced: Replaced | None
    engine: str  # spark, or driver for a copy without Spark


def copy(
    ends: BackEnds,
    settings: Settings,
    direction: Direction,
    fences: Fences,
    *,
    open_spark: Callable[[], AbstractContextManager[SparkSession]],
    large_above: int = LARGE_ABOVE,
) -> Copied:
    """Replace all of the garbage by what the truth holds; a rollback flips the tombstone in the same transaction.

    A copy of more than ``large_above`` stored updates is large: ``open_spark`` is called, and ``settings`` name the
    stores for Spark.

    Raises:
        FencedByEpoch: If somebody opened the catalog since, or this open was given up: start over.
        StaleState: If the copy was made already and the open is complete.
        Others as ``BackEnd.join`` and the methods of ``Handle``.
    """
    with closing(resume(ends, direction, fences, stash_alone=True)) as opening:
        if opening.has_arrived:
            return Copied(None, "driver")
        check_not_given_up(opening, fences)
        stash = opening.stash
        if not isinstance(stash, StashHandle):
            raise NotPossible("this copy is made between a stash and a persist catalog alone")
        in_stash = stash.run(lambda collections: collections.count_updates(), write=False)
        if in_stash + read_state(settings, SHARD, SYSTEM).rows > large_above:
            from tidemark.catalog.migration.spark_copy import SparkCopy, translating_copy  # noqa: PLC0415
            from tidemark.iceberg.shards import Shards  # noqa: PLC0415 - small copies need neither

            shard = Shards.connect(settings).open(SHARD, SYSTEM)
            with open_spark() as spark, translating_copy():
                large = SparkCopy(
                    spark=spark, settings=settings, shard=shard, stash=stash, fences=fences, clock=ends.clock
                )
                large.drop_left_over()
                migrates = direction is Direction.MIGRATE
                replaced = large.to_persist() if migrates else large.to_stash()
                fail_point((WRITE_PERSIST if migrates else WRITE_STASH).fail_point)
            return Copied(replaced, "spark")
    with closing(resume(ends, direction, fences)) as opening:
        copied = run_steps(ends, opening, _COPY[direction])
    return Copied(copied.replaced, "driver")


def check_not_given_up(opening: Opening, fences: Fences) -> None:
    """Raise ``FencedByEpoch`` if this open was given up: its plan had changed, and tasks may have joined its source."""
    if opening.heads is None:
        raise TypeError("no heads were read")
    migrates = opening.direction is Direction.MIGRATE
    stash, persist = opening.heads
    head, epoch = (stash, fences.stash_epoch) if migrates else (persist, fences.persist_epoch)
    if head.config.get(LEADER_EPOCH) == epoch:
        raise FencedByEpoch(f"this open was given up, and epoch {epoch} leads where it is", hint=START_OVER)
