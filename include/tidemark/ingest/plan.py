"""What one run reads for one collection: of each sequencer the first numbers that the collection does not have yet.

Only the ledgers of the collection say how far it is, and what it has staged; the broker is never asked for that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidemark.collections.sources.formats.buffer import OnLost
from tidemark.errors import NotPossible
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.write_buffer.errors import AfterWatermark, NoLongerExists
from tidemark.write_buffer.reader import check_range_start

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tidemark.ingest.buffer_log import Bounds, LogState


class LogRecreated(NotPossible):
    """The log was made anew under the same name: its numbers are others, and what the old one held is gone."""


class SequencerGone(NotPossible):
    """A sequencer that was ingested from does not exist any more."""


@dataclass(frozen=True, slots=True, order=True)
class PlannedRange:
    """The numbers ``[start, end)`` of one sequencer, of which those from ``first`` on are still there."""

    sequencer_id: int
    start: int
    end: int
    first: int
    watermark: int

    @property
    def range(self) -> Range:
        return Range(self.start, self.end)

    @property
    def lost(self) -> int:
        """The most entries that retention can have taken unread: there may have been holes."""
        return self.first - self.start

    @property
    def lag(self) -> int:
        """How many numbers wait once these are ingested; ``max(0, watermark - last number - 1)``."""
        return max(0, self.watermark - self.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """What to do about entries that can never be read."""

    on_expired: OnLost = OnLost.FAIL
    on_recreated: OnLost = OnLost.FAIL


def accepted_ranges(published: Ledger, staged: Iterable[Range]) -> Ledger:
    """Return what a collection has of one sequencer, published or staged."""
    accepted = published
    for numbers in sorted(staged):
        if not accepted.overlaps(numbers):
            accepted = accepted.add(numbers)
    return accepted


def plan_ingest(
    state: LogState,
    published: Mapping[str, Ledger],
    staged: Mapping[str, Sequence[Range]],
    *,
    policies: Policies,
    limit: int | None = None,
) -> list[PlannedRange]:
    """Return the ranges to ingest now, in order of sequencers; none where nothing waits.

    A sequencer of which the collection has nothing is read from its earliest number on: so a collection that is
    declared later gets all that is there, and a new Kafka partition is picked up.

    Args:
        state: What the log holds now.
        published: The collection's ledgers.
        staged: What its deployment has staged, by producer.
        policies: What the collection declares about entries that are lost.
        limit: The most numbers of all sequencers together; shared by backlog.

    Raises:
        LogRecreated: If the collection has rows of another log of that name, and that is not declared to be right.
        SequencerGone: If it has numbers of a sequencer that is not there.
        AfterWatermark: If it has numbers that the log never gave.
        NoLongerExists: If retention took numbers before they were ingested, and that is not declared to be right.
    """
    log = state.log
    known = {*published, *staged}
    if policies.on_recreated is OnLost.FAIL and (others := sorted(filter(log.is_other_log, known))):
        raise LogRecreated(
            f"{log.title} was made anew, or is another one than before: what was ingested so far is of the log "
            f"{others[0].rsplit('.', 1)[0]}",
            hint="if its entries are new ones, declare `on_recreated: earliest` and apply it; they are read from the "
            "earliest on",
        )
    ids = {found for producer in known if (found := log.sequencer_of(producer)) is not None}
    if gone := sorted(ids - state.bounds.keys()):
        raise SequencerGone(
            f"{log.title} has lost its sequencers {', '.join(map(str, gone))}, which were ingested from",
            hint="find out who removed them: their entries cannot be read any more",
        )
    whole = []
    for sequencer_id, bounds in sorted(state.bounds.items()):
        producer = log.producer(sequencer_id)
        accepted = accepted_ranges(published.get(producer, Ledger()), staged.get(producer, ()))
        whole.append(_first_missing(sequencer_id, bounds, accepted, on_expired=policies.on_expired, title=log.title))
    shares = share_fairly({part.sequencer_id: part.end - part.first for part in whole}, limit)
    cut = [replace(part, end=part.first + shares[part.sequencer_id]) for part in whole]
    return [part for part in cut if part.start < part.end]


def _first_missing(
    sequencer_id: int, bounds: Bounds, accepted: Ledger, *, on_expired: OnLost, title: str
) -> PlannedRange:
    earliest, watermark = bounds
    if not accepted.ranges:
        return PlannedRange(sequencer_id, earliest, watermark, earliest, watermark)
    if accepted.ranges[-1].end > watermark:
        raise AfterWatermark(sequencer_id, accepted.ranges[-1].end, watermark, buffer=title)
    start = accepted.ranges[0].end  # behind the first of the ranges, which are merged: there is a gap, or the end
    end = accepted.ranges[1].start if len(accepted.ranges) > 1 else watermark
    first = start
    try:
        check_range_start(sequencer_id, start, earliest=earliest, watermark=watermark, buffer=title)
    except NoLongerExists:
        if on_expired is OnLost.FAIL:
            raise
        first = min(earliest, end)
    return PlannedRange(sequencer_id, start, end, first, watermark)


def share_fairly(backlogs: Mapping[int, int], limit: int | None) -> dict[int, int]:
    """Return how many numbers of each sequencer are read.

    Args:
        backlogs: How many wait, by sequencer; none negative.
        limit: The most in all; None: everything.

    Returns:
        At most the backlog of each, in proportion to it, together ``min(limit, all that waits)``. If there is enough,
        no sequencer where anything waits gets nothing, so that a small one does not starve beside a large one.
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
