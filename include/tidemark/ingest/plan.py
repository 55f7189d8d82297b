"""Plans the read of one run for one collection: from every sequencer the first numbers that the collection lacks.

The collection's progress is in its ledgers and staged batches alone; the broker is never asked for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tidemark.collections.sources.formats.buffer import BufferSource, OnLost
from tidemark.errors import NotPossible
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.ingest.buffer_log import Bounds, BufferLog
from tidemark.write_buffer.errors import AfterWatermark, NoLongerExists
from tidemark.write_buffer.reader import check_range_start

START = "tidemark.ingest.start."  # table properties, by producer: the start of the first range that was staged


class LogRecreated(NotPossible):
    """The log was made anew under the same name: its numbers mean other entries, and the old entries are gone."""


class SequencerGone(NotPossible):
    """A sequencer that the collection was ingested from does not exist any more."""


@dataclass(frozen=True, slots=True, order=True)
class PlannedRange:
    """The numbers ``[start, end)`` of one sequencer; the log still has those from ``first`` on."""

    sequencer_id: int
    start: int
    end: int
    first: int
    watermark: int
    begun: int = 0  # the number that the collection began with
    has_quarantined: bool = False  # the quarantine has published the bad rows already, of a batch that was given up

    @property
    def range(self) -> Range:
        return Range(self.start, self.end)

    @property
    def lost(self) -> int:
        """The most entries that retention can have removed unread: there may have been holes."""
        return self.first - self.start

    @property
    def lag(self) -> int:
        """The count of numbers that wait once this range is ingested."""
        return max(0, self.watermark - self.end)


def find_start(accepted: Ledger, bounds: Bounds, remembered: int | None) -> int:
    """Return the number of one sequencer that a collection begins with: what was the log's earliest number then.

    The earliest number only grows: the collection lacks whatever the log still has before the first accepted range.
    """
    known = [numbers.start for numbers in accepted.ranges[:1]] + ([] if remembered is None else [remembered])
    return min([bounds.earliest, *known])


def remembered_starts(properties: Mapping[str, str]) -> dict[str, int]:
    """Return the number that a collection began with, by producer, where a range was staged first.

    Staged ranges can be damaged or discarded, so the ledger does not tell.
    """
    return {key.removeprefix(START): int(text) for key, text in properties.items() if key.startswith(START)}


def plan_ingest(
    log: BufferLog,
    present: Mapping[int, Bounds],
    published: Mapping[str, Ledger],
    staged: Mapping[str, Sequence[Range]],
    *,
    starts: Mapping[str, int],
    source: BufferSource,
    limit: int | None = None,
) -> list[PlannedRange]:
    """Return the ranges to ingest now, in order of sequencers; no range of a sequencer where nothing waits.

    A sequencer that is new to the collection is read from its earliest number on: a collection that is declared later
    gets everything that the log still has, and a new Kafka partition is picked up.

    ``present`` is what the log has, by sequencer; ``published`` and ``staged`` are what the collection has, by
    producer; ``starts`` as of ``remembered_starts``. ``source`` says what to do about entries that can never be read.
    ``limit`` is the most numbers of all sequencers together; shared by backlog.

    Raises:
        LogRecreated: If the collection has rows of another log of that name, and the source does not accept that.
        SequencerGone: If the collection has numbers of a sequencer that the log lacks.
        AfterWatermark: If the collection has numbers that the log never gave.
        NoLongerExists: If retention removed waiting numbers, and the source does not accept that.
    """
    known = {*published, *staged, *starts}
    check_same_log(log, known, source)
    check_sequencers(log, known, present)
    whole = []
    for sequencer_id, bounds in sorted(present.items()):
        producer = log.producer(sequencer_id)
        accepted = published.get(producer, Ledger()).add_free(staged.get(producer, ()))
        remembered = starts.get(producer)
        if (reached := max([remembered or 0, *(numbers.end for numbers in accepted.ranges[-1:])])) > bounds.watermark:
            raise AfterWatermark(sequencer_id, reached, bounds.watermark, buffer=log.title)
        begun = find_start(accepted, bounds, remembered)
        for hole in accepted.holes(Range(begun, bounds.watermark))[:1]:
            first = _first_readable(sequencer_id, hole, bounds, on_expired=source.on_expired, title=log.title)
            whole.append(PlannedRange(sequencer_id, hole.start, hole.end, first, bounds.watermark, begun))
    shares = share_fairly({part.sequencer_id: part.end - part.first for part in whole}, limit)
    cut = [replace(part, end=part.first + shares[part.sequencer_id]) for part in whole]
    return [part for part in cut if part.start < part.end]


def check_same_log(log: BufferLog, known: Iterable[str], source: BufferSource) -> None:
    """Raise ``LogRecreated`` if ``known`` producers are of another log of that name, unless ``source`` accepts that."""
    if source.on_recreated is OnLost.FAIL and (others := sorted(filter(log.is_other_log, known))):
        raise LogRecreated(
            f"{log.title} was made anew, or is another one than before: what was ingested so far is of the log "
            f"{others[0].rsplit('.', 1)[0]}",
            hint="if its entries are new ones, declare `on_recreated: earliest` in `source` and apply it: they are "
            "read from the earliest on, and count as later than all that came before",
        )


def check_sequencers(log: BufferLog, known: Iterable[str], present: Collection[int]) -> None:
    """Raise ``SequencerGone`` if ``known`` producers are sequencers that are not among the ``present`` ones."""
    ids = {sequencer_id for producer in known if (sequencer_id := log.sequencer_of(producer)) is not None}
    if missing := sorted(ids - {*present}):
        raise SequencerGone(
            f"{log.title} has lost its sequencers {', '.join(map(str, missing))}, which were ingested from",
            hint="find out who removed them: their entries cannot be read any more",
        )


def _first_readable(sequencer_id: int, missing: Range, bounds: Bounds, *, on_expired: OnLost, title: str) -> int:
    """Return the first of the ``missing`` numbers that the log still has, or their end."""
    earliest, watermark = bounds
    try:
        check_range_start(sequencer_id, missing.start, earliest=earliest, watermark=watermark, buffer=title)
    except NoLongerExists:
        if on_expired is OnLost.FAIL:
            raise
        return min(earliest, missing.end)
    return missing.start


def share_fairly(backlogs: Mapping[int, int], limit: int | None) -> dict[int, int]:
    """Return how many numbers to read of each sequencer: in proportion to its backlog, ``limit`` in all.

    If ``limit`` allows, every sequencer with a backlog gets at least 1, so that a small one does not starve beside a
    large one. Without a limit all numbers are read.
    """
    waiting = {sequencer_id: count for sequencer_id, count in backlogs.items() if count > 0}
    total = sum(waiting.values())
    if limit is None or total <= limit:
        return dict(backlogs)
    exact = {sequencer_id: divmod(count * limit, total) for sequencer_id, count in waiting.items()}
    shares = {sequencer_id: whole for sequencer_id, (whole, _) in exact.items()}
    by_remainder = sorted(exact, key=lambda sequencer_id: (-exact[sequencer_id][1], sequencer_id))
    for sequencer_id in by_remainder[: limit - sum(shares.values())]:
        shares[sequencer_id] += 1
    if limit >= len(waiting):
        for sequencer_id in [sequencer_id for sequencer_id, share in shares.items() if not share]:
            shares[max(shares, key=lambda other: shares[other])] -= 1
            shares[sequencer_id] = 1
    return {sequencer_id: shares.get(sequencer_id, 0) for sequencer_id in backlogs}
