"""The next state of partitions, computed from the head that a commit is made against: what came, what is closed now."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.collections.declarations.lifecycle import Late
from tidemark.collections.staged.batches import BatchName
from tidemark.errors import InputsGone, LateRows
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.ingest.batches import BatchesSeen
from tidemark.ingest.buffer_log import Bounds, BufferLog
from tidemark.ingest.partitions.counting import Counted, count_rows, judging
from tidemark.ingest.partitions.event_times import EventTimes
from tidemark.ingest.partitions.state import Arrived, Changes, PartitionRules, Partitions
from tidemark.ingest.range_rows import Tally, add_up
from tidemark.interval import LATEST_MS, time_text

log = logging.getLogger(__name__)

MANY_UNFINISHED = 1_000  # six weeks of hours: each commit rewrites what is known of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a run saw of the buffer before it planned."""

    now_ms: int  # not later than the bounds were read: what came since may have any event time from then on
    present: Mapping[int, Bounds]
    begun: Mapping[int, int]  # the numbers that the collection began with, by sequencer
    batches: BatchesSeen

    def find_caught_up(self, log: BufferLog, published: Mapping[str, Ledger]) -> dict[int, bool]:
        """Tell of each sequencer whether none of its entries waits; those of appended batches may be in any."""
        has_all_batches = not (self.batches.obstacle or self.find_waiting_batches(published))
        return {
            id_: has_all_batches and not self._holes(id_, published.get(log.producer(id_), Ledger()), bounds.watermark)
            for id_, bounds in self.present.items()
        }

    def find_gaps(self, log: BufferLog, published: Mapping[str, Ledger]) -> set[int]:
        """Return the sequencers that lack entries before others that they have, as while a staged batch waits.

        While a batch waits that was appended, these are all: its rows may be in any of them.
        """
        if self.find_waiting_batches(published):
            return set(self.present)
        ledgers = {id_: published.get(log.producer(id_), Ledger()) for id_ in self.present}
        return {
            id_ for id_, ledger in ledgers.items() if ledger.ranges and self._holes(id_, ledger, ledger.ranges[-1].end)
        }

    def find_waiting_batches(self, published: Mapping[str, Ledger]) -> tuple[Range, ...]:
        """Return the numbers of the log of batches that nobody looked at, or whose batches are staged."""
        return published.get(self.batches.producer, Ledger()).holes(Range(0, self.batches.watermark))

    def _holes(self, sequencer_id: int, published: Ledger, end: int) -> bool:
        return bool(published.holes(Range(self.begun[sequencer_id], end)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """What a run knows besides the head: its rules, what it saw, and up to where late rows were told apart."""

    rules: PartitionRules
    log: BufferLog
    look: Look
    passed_ms: int | None  # when the rows were read
    read_ms: int = LATEST_MS  # not earlier than the bounds were read: no row of this run arrived later

    def times(self, *, keeps_late: bool = False) -> EventTimes:
        """Return what judges the rows of this run; ``keeps_late`` says that no row is bad because it is late."""
        return judging(self.rules, None if keeps_late else self.passed_ms, now_ms=self.read_ms)

    def advance(self, head: ShardHead, names: Sequence[BatchName] = (), tallies: Sequence[Tally] = ()) -> Counted:
        """Return what a commit of these rows and names on top of ``head`` leaves.

        Raises ``InputsGone`` if another run closed partitions meanwhile, and late rows are not appended.
        """
        before = Partitions.parse(head.table.properties, self.rules.column, self.rules.unit)
        if self.rules.lifecycle.late is not Late.APPEND and before.state.passed_ms != self.passed_ms:
            raise InputsGone(
                "another run closed partitions meanwhile, so that other rows are late", hint="run it again"
            )
        now_ms = self.look.now_ms
        arrived = _by_time(tallies, now_ms=now_ms)
        counted = count_rows(head, self.rules, self.log, names, arrived, now_ms=now_ms)
        known = counted.partitions.known
        caught_up, gaps = self.look.find_caught_up(self.log, known), self.look.find_gaps(self.log, known)
        rules = self.rules.while_waiting(head.open_rows)
        after, closed = counted.partitions.close(caught_up, gaps, now_ms=now_ms, rules=rules)
        # Somebody may wait for a partition that has no rows.
        is_next = bool(after.state.sequencers) and after.first_open_ms != before.first_open_ms
        return Counted(
            partitions=after,
            changes=counted.changes._replace(closed=tuple(closed)),
            is_new=counted.is_new or bool(closed) or is_next,
        )


def _by_time(tallies: Iterable[Tally], *, now_ms: int) -> dict[int, list[Arrived]]:
    """Return what arrived, by the time since when it counts as arrived: ``now_ms`` at the latest."""
    found: dict[int, list[Tally]] = {}
    for tally in tallies:
        found.setdefault(now_ms if tally.arrived_ms is None else min(tally.arrived_ms, now_ms), []).append(tally)
    # Rows of appended batches say nothing of how far a sequencer is: they come whenever the batch is complete.
    return {
        arrived_ms: [
            *(Arrived(id_, tally.arrivals.partitions) for id_, tally in add_up(each).items()),
            *(Arrived(None, tally.arrivals.partitions) for tally in each if tally.is_of_batch),
        ]
        for arrived_ms, each in found.items()
    }


def check_late(closing: Closing | None, tallies: Iterable[Tally], *, collection: str) -> None:
    """Raise ``LateRows`` if late rows came, and the collection refuses them."""
    late = [tally for tally in tallies if tally.arrivals.refused]
    if closing is not None and closing.rules.lifecycle.late is Late.REFUSE and late:
        raise LateRows(
            f"{sum(tally.arrivals.refused for tally in late)} rows for {collection!r} are of partitions that are "
            f"closed, such as {late[0].arrivals.first_refused} of sequencer {late[0].sequencer_id}",
            hint="declare `late: append` or `late: quarantine` in `lifecycle` and apply it; then ingest again",
        )


def describe_changes(counted: Counted | None, *, refused: int) -> dict[str, Any]:
    """Return what a report says of partitions; ``refused`` late rows are in the quarantine."""
    changes = Changes() if counted is None else counted.changes
    passed_ms = None if counted is None else counted.partitions.state.passed_ms
    unfinished = 0 if counted is None else counted.partitions.count_unfinished()
    if unfinished > MANY_UNFINISHED:
        log.warning("%d partitions are not closed, or not persisted: see `tidemark buffer partitions`", unfinished)
    told: dict[str, Any] = {
        "unfinished": unfinished if unfinished > MANY_UNFINISHED else 0,
        "closed": [closed._asdict() for closed in changes.closed],
        "reopened": [reopened._asdict() for reopened in changes.reopened],
        "late_rows": changes.late_rows + refused,
        "watermark": None if passed_ms is None else time_text(passed_ms),
    }
    return {name: what for name, what in told.items() if what}
