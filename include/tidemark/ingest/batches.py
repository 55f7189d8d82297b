"""The batches that appends wrote into a buffer: which of them a collection lacks, and where their rows lie.

A batch goes into the ledger under the name that its append gave it, in the commit that makes its rows visible. So it
comes once, however often it was written, and a collection that was appended to directly before knows it, too. Of the
log that names the batches the ledger has the numbers that need not be looked at again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from tidemark.collections.sources.formats.buffer import BufferSource, OnLost
from tidemark.collections.staged.batches import BatchName
from tidemark.errors import ConfigurationInvalid
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.ingest.buffer_log import BATCHES, Bounds, BufferLog
from tidemark.ingest.plan import check_same_log
from tidemark.write_buffer.back_end import Connection
from tidemark.write_buffer.batches.names import LoggedBatch, open_batches, read_batches
from tidemark.write_buffer.errors import AfterWatermark, BufferMissing, NoLongerExists
from tidemark.write_buffer.ranges import NumberRange

_LONGEST_PRODUCER, _DIGITS = 100, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchesSeen:
    """What the log of batches has that a collection has not looked at."""

    producer: str = ""  # whose ledger has the numbers of this log
    watermark: int = 0
    batches: tuple[LoggedBatch, ...] = ()
    obstacle: str = ""  # why the log cannot be read, for the present
    lost: int = 0  # numbers of this log that retention took before anybody looked at them

    def name_for(self, batch: LoggedBatch, collection: str) -> BatchName:
        """Return the name of a batch in the ledger of ``collection``: batches of others bear those others' names."""
        if batch.name is None:
            return BatchName(self.producer, Range(batch.number, batch.number + 1))
        if batch.collection == collection:
            return batch.name
        producer = f"{batch.collection}.{batch.name.producer}"
        if len(producer) > _LONGEST_PRODUCER:
            digest = hashlib.sha256(producer.encode()).hexdigest()[:_DIGITS]
            producer = f"{producer[: _LONGEST_PRODUCER - _DIGITS - 1]}.{digest}"
        return BatchName(producer, batch.name.range)

    def names_for(self, collection: str) -> frozenset[BatchName]:
        return frozenset(self.name_for(batch, collection) for batch in self.batches)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBatch:
    """One batch to ingest; the buffer still has ``places``."""

    name: BatchName
    rows: int
    places: tuple[NumberRange, ...]
    lost: int = 0  # entries that retention took
    has_quarantined: bool = False  # the quarantine has published the bad rows already, of a batch that was given up

    @property
    def entries(self) -> int:
        return sum(place.end - place.start for place in self.places)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBatches:
    """The batches to ingest, and what else the commit that publishes them puts into ledgers."""

    batches: tuple[PlannedBatch, ...] = ()
    looked_at: tuple[BatchName, ...] = ()  # numbers of the log of batches
    refused: tuple[str, ...] = ()  # batches of which the collection has, or stages, a part

    @property
    def published_names(self) -> list[BatchName]:
        """What goes into the ledgers once the rows are visible; batches without a name are among the numbers."""
        of_log = {name.producer for name in self.looked_at}
        return [*self.looked_at, *(batch.name for batch in self.batches if batch.name.producer not in of_log)]


def look_at_batches(
    connection: Connection, log: BufferLog, identity: str, published: Mapping[str, Ledger], *, source: BufferSource
) -> BatchesSeen:
    """Return the batches in the buffer ``identity`` that ``published`` does not say were looked at.

    A login may be allowed to read the buffer, and not what stands beside it: the batches then wait until it is.

    Raises:
        AfterWatermark: If the log of batches was cut.
        BufferMissing: If it is gone; and ``LogRecreated`` if it was made anew, if the source does not accept that.
        NoLongerExists: If retention took names from it that nobody looked at, and the source does not accept that.
        BufferUnreachable: If it does not answer.
    """
    beside = replace(log, name=log.name + BATCHES, digest="", title=f"the log that names the batches in {log.title}")
    with ExitStack() as stack:
        try:
            reader = stack.enter_context(open_batches(connection))
        except ConfigurationInvalid as error:
            return BatchesSeen(obstacle=f"those that were appended into {log.title} cannot be read: {error}")
        known = [producer for producer in published if beside.is_other_log(producer)]
        if reader is None:
            if known and source.on_recreated is OnLost.FAIL:
                raise BufferMissing.of(beside.title)
            return BatchesSeen()
        own = replace(beside, digest=BufferLog.of(connection, identity=reader.identity).digest)
        check_same_log(own, known, source)
        producer, (earliest, watermark) = own.producer(0), reader.fetch_bounds(0)
        done = published.get(producer, Ledger())
        if done.ranges and done.ranges[-1].end > watermark:
            raise AfterWatermark(0, done.ranges[-1].end, watermark, buffer=reader.name)
        holes = done.holes(Range(0, watermark))
        lost = max(0, earliest - holes[0].start) if holes and done.ranges else 0
        if lost and source.on_expired is OnLost.FAIL:
            raise NoLongerExists(0, holes[0].start, earliest, buffer=reader.name)
        found = read_batches(reader, identity, holes[0].start) if holes else []
        new = (each for each in found if each.number < watermark and not done.overlaps(_number(each)))
        return BatchesSeen(producer=producer, watermark=watermark, batches=tuple(new), lost=lost)


def plan_batches(
    seen: BatchesSeen,
    present: Mapping[int, Bounds],
    published: Mapping[str, Ledger],
    staged: Mapping[str, Sequence[Range]],
    *,
    begun: Mapping[int, int],
    collection: str,
    source: BufferSource,
    title: str,
    quarantined: Mapping[str, Ledger],
    limit: int | None = None,
) -> PlannedBatches:
    """Return the batches that the collection lacks: of those that share a number, the first one in the log.

    Arguments as of ``plan_ingest``. ``begun`` are the numbers that the collection began with, by sequencer: at its
    first look, a batch of another collection with entries before them is not this one's. ``quarantined`` are the
    ledgers of the quarantine; ``limit`` the most entries; at least one batch is planned whatever its size, since it
    counts as a whole.

    Raises ``NoLongerExists`` if retention removed rows of such a batch, and the source does not accept that.
    """
    chosen: list[PlannedBatch] = []
    refused = [f"{seen.lost} batches, whose names retention took"] if seen.lost else []
    accepted = dict(published)
    waiting: list[Range] = []  # numbers of staged batches, which may be damaged or discarded: they are looked at again
    looked_at = published.get(seen.producer, Ledger())
    end, is_first = seen.watermark, not looked_at.covers(Range(0, 1))  # a staged batch may have been published first
    for batch in seen.batches:
        name = seen.name_for(batch, collection)
        ledger = accepted.get(name.producer, Ledger())
        is_own = batch.collection == collection
        is_before = is_first and not is_own and any(_begins_before(begun, place) for place in batch.places)
        if is_before or source.table not in {None, batch.table} or ledger.covers(name.range):
            continue
        if ledger.add_free(staged.get(name.producer, ())).covers(name.range):
            waiting.append(_number(batch))
        elif overlap := ledger.overlaps(name.range):
            refused.append(_refusal(name, overlap))
        elif overlap := _overlapping(staged.get(name.producer, ()), name.range):
            refused.append(f"{_refusal(name, overlap)}, which is staged: it comes once that is discarded")
            waiting.append(_number(batch))
        else:
            planned = _plan_one(batch, name, present, source, title)
            if limit is not None and chosen and sum(each.entries for each in (*chosen, planned)) > limit:
                end = batch.number
                break
            known = quarantined.get(name.producer, Ledger()).covers(name.range)
            chosen.append(replace(planned, has_quarantined=known))
            accepted[name.producer] = ledger.add(name.range)
    holes = looked_at.add_free(waiting).holes(Range(0, end))
    numbers = tuple(BatchName(seen.producer, hole) for hole in holes if hole.start < hole.end)
    return PlannedBatches(batches=tuple(chosen), looked_at=numbers, refused=tuple(refused))


def _plan_one(
    batch: LoggedBatch, name: BatchName, present: Mapping[int, Bounds], source: BufferSource, title: str
) -> PlannedBatch:
    places, lost = [], 0
    for place in batch.places:
        earliest = present[place.sequencer_id].earliest if place.sequencer_id in present else place.end
        if earliest > place.start:
            if source.on_expired is OnLost.FAIL:
                raise NoLongerExists(place.sequencer_id, place.start, earliest, buffer=title)
            lost += min(earliest, place.end) - place.start
        if earliest < place.end:
            places.append(replace(place, start=max(earliest, place.start)))
    return PlannedBatch(name=name, rows=batch.rows, places=tuple(places), lost=lost)


def _refusal(name: BatchName, overlap: Sequence[Range]) -> str:
    return f"{name} overlaps {', '.join(map(str, overlap))}"


def _number(batch: LoggedBatch) -> Range:
    return Range(batch.number, batch.number + 1)


def _begins_before(begun: Mapping[int, int], place: NumberRange) -> bool:
    return place.start < begun.get(place.sequencer_id, 0)


def _overlapping(ranges: Sequence[Range], wanted: Range) -> list[Range]:
    return [each for each in ranges if Ledger((each,)).overlaps(wanted)]
