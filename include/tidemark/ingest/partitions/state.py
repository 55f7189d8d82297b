"""What a collection's table says about its partitions, as JSON in one property, and the next such value.

It moves in the commit that makes rows visible. Beside the state stand the ledgers as the state knows them: what others
published since, as a flush does, is in the table's ledgers alone, and ``missing`` tells it apart.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.declarations.lifecycle import Lateness, LifecycleRules
from tidemark.errors import CorruptState
from tidemark.iceberg.shard.ledger import Ledger
from tidemark.ingest.partitions.arrivals import Arrival
from tidemark.interval import Unit, instant, milliseconds
from tidemark.lifecycle.checkpoints import NumberRange
from tidemark.lifecycle.state import Closed, LifecycleState, Partition, Reopened
from tidemark.lifecycle.watermarks import SequencerTimes, is_ahead
from tidemark.lifecycle.windows import Slice, Window, Windows

PROPERTY = "tidemark.lifecycle"
KEPT_CLOSED = 48  # the newest ones: two days of hours, so that the property does not grow with the collection


@dataclass(frozen=True)
class PartitionRules:
    """What a collection declares about event times."""

    column: str
    unit: Unit
    lateness: Lateness

    @classmethod
    def of(cls, declaration: Declaration) -> PartitionRules | None:
        """Return the rules of a collection; None if its rows have no event times."""
        if declaration.event_time is None:
            return None
        return cls(declaration.event_time, declaration.partition or Unit.DAY, declaration.lifecycle or Lateness())

    @cached_property
    def lifecycle(self) -> LifecycleRules:
        """The rules as the state takes them. Nothing is persisted by age yet, which is at least the window."""
        declared = self.lateness.model_dump()
        return LifecycleRules(**declared, persist_age=self.lateness.late_arrive_window)


class Arrived(NamedTuple):
    """Rows of one sequencer, or of one batch, by partition."""

    sequencer_id: int | None  # None: they do not say how far a sequencer is
    partitions: Mapping[str, Arrival]


class Changes(NamedTuple):
    """What happened to partitions in one commit."""

    closed: tuple[Closed, ...] = ()
    reopened: tuple[Reopened, ...] = ()
    late_rows: int = 0  # appended to partitions that were passed before


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitions:
    """The state of all partitions, and the published numbers that it knows, by producer."""

    column: str
    unit: Unit
    state: LifecycleState = field(default_factory=LifecycleState)
    known: Mapping[str, Ledger] = field(default_factory=dict)

    @classmethod
    def parse(cls, properties: Mapping[str, str], column: str, unit: Unit) -> Partitions:
        """Return what is stored; nothing is known where there is no state, or that of another column or unit.

        Raises as ``read``.
        """
        stored = cls.read(properties)
        fits = stored is not None and (stored.column, stored.unit) == (column, unit)
        return stored if stored is not None and fits else cls(column=column, unit=unit)

    @classmethod
    def read(cls, properties: Mapping[str, str]) -> Partitions | None:
        """Return what is stored, whatever is declared by now; None if there is nothing.

        Raises ``CorruptState`` if the property is damaged, ``IncompatibleDataVersion`` if a newer program wrote it.
        """
        if (text := properties.get(PROPERTY)) is None:
            return None
        try:
            found = json.loads(text)
            return cls(
                column=found["column"],
                unit=Unit(found["unit"]),
                state=LifecycleState.from_json(found["state"]),
                known={producer: Ledger.parse(ranges) for producer, ranges in found["known"].items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptState(
                f"the table property {PROPERTY!r} is damaged: {error!r}",
                hint="remove the property with the table's own tools; the next ingest rebuilds it from the rows",
            ) from error

    def __str__(self) -> str:
        known = {producer: str(ledger) for producer, ledger in sorted(self.known.items())}
        form = {"column": self.column, "unit": self.unit.value, "known": known, "state": self.state.to_json()}
        return json.dumps(form, separators=(",", ":"))

    def is_closed(self, name: str) -> bool:
        """Tell whether all sequencers have passed a partition, and no late row has come since that was told."""
        known = self.state.partitions.get(name)
        return self.state.is_passed(name) if known is None else known.is_closed

    def count_unclosed(self) -> int:
        return sum(not partition.is_closed for partition in self.state.partitions.values())

    @property
    def first_open_ms(self) -> int | None:
        """The start of the first partition that is not passed; None if none is passed."""
        passed_ms = self.state.passed_ms
        return None if passed_ms is None else milliseconds(self.unit.floor(instant(passed_ms)))

    def missing(self, published: Mapping[str, Ledger]) -> dict[str, Ledger]:
        """Return the published numbers whose rows the state does not know, by producer."""
        found = {}
        for producer, ledger in published.items():
            known = self.known.get(producer, Ledger())
            if holes := [hole for numbers in ledger.ranges for hole in known.holes(numbers)]:
                found[producer] = Ledger(tuple(holes))
        return found

    def add(
        self, arrived: Iterable[Arrived], *, now_ms: int, rules: LifecycleRules
    ) -> tuple[Partitions, list[Reopened], int]:
        """Return the partitions with more rows, those that the rows reopened, and how many of the rows are late."""
        new: dict[str, list[Slice]] = {}
        others: dict[str, list[tuple[int | None, Arrival]]] = {}
        for sequencer_id, by_partition in arrived:
            times = None if sequencer_id is None else self.state.sequencers.get(sequencer_id)
            for name, arrival in by_partition.items():
                if sequencer_id is None or (times is not None and arrival.first < times.end):
                    others.setdefault(name, []).append((sequencer_id, arrival))
                else:
                    new.setdefault(name, []).append(_slice(sequencer_id, arrival))
        late_rows = sum(each.rows for name, slices in new.items() if self.state.is_passed(name) for each in slices)
        state, reopened = self.state.add(new, arrived_ms=now_ms, rules=rules)
        partitions, sequencers = dict(state.partitions), dict(state.sequencers)
        for name, arrivals in sorted(others.items()):
            rows = sum(arrival.rows for _, arrival in arrivals)
            late = rows if state.is_passed(name) else 0
            before = partitions.get(name)
            if late and (before is None or before.is_closed):
                reopened.append(Reopened(name, late))
            late_rows += late
            partitions[name] = _count(before or Partition(windows=Windows()), arrivals, late=late, now_ms=now_ms)
            for sequencer_id, arrival in arrivals:
                if sequencer_id is not None:
                    times = _times(arrival, now_ms, rules)
                    sequencers[sequencer_id] = sequencers.get(sequencer_id, times).advance(times)
        merged = {name: _with_one_window(partition, now_ms, rules) for name, partition in partitions.items()}
        return replace(self, state=replace(state, partitions=merged, sequencers=sequencers)), reopened, late_rows

    def close(
        self, caught_up: Mapping[int, bool], gaps: Collection[int] = (), *, now_ms: int, rules: LifecycleRules
    ) -> tuple[Partitions, list[Closed]]:
        """Return the partitions with those closed that all sequencers have passed, and these; old ones are forgotten.

        A sequencer with ``gaps`` passes nothing: what it lacks came before what it has, and is not late. Rows of a
        partition that is forgotten are late, and reopen it.
        """
        sequencers = self.state.sequencers
        whole = {id_: times for id_, times in sequencers.items() if id_ not in gaps}
        state, closed = replace(self.state, sequencers=whole).close(caught_up, now_ms=now_ms, rules=rules)
        by_age = sorted(name for name, partition in state.partitions.items() if partition.is_closed)
        old = set(by_age[:-KEPT_CLOSED])
        kept = {name: partition for name, partition in state.partitions.items() if name not in old}
        return replace(self, state=replace(state, partitions=kept, sequencers=sequencers)), closed


def _slice(sequencer_id: int, arrival: Arrival) -> Slice:
    return Slice(
        sequencer_id=sequencer_id,
        numbers=NumberRange(arrival.first, arrival.end),
        rows=arrival.rows,
        start_ms=arrival.start_ms,
        end_ms=arrival.end_ms,
    )


def _count(
    partition: Partition, arrivals: Iterable[tuple[int | None, Arrival]], *, late: int, now_ms: int
) -> Partition:
    """Return the partition with rows whose numbers come after greater ones, as those of a flush do, or without numbers.

    No replay reads such numbers again: the rows are visible. So their window has no numbers.
    """
    windows, rows = partition.windows, 0
    for _, arrival in arrivals:
        window = Window(
            opened_ms=now_ms,
            last_ms=now_ms,
            rows=arrival.rows,
            start_ms=arrival.start_ms,
            end_ms=arrival.end_ms,
            numbers={},
        )
        merged = window if windows.open is None else windows.open.merge(window)
        windows = replace(windows, open=merged, last_ms=max(windows.last_ms, now_ms))
        rows += arrival.rows
    return replace(
        partition,
        windows=windows,
        rows=partition.rows + rows,
        late_rows=partition.late_rows + late,
        is_closed=partition.is_closed and not late,
    )


def _times(arrival: Arrival, now_ms: int, rules: LifecycleRules) -> SequencerTimes:
    time_ms = arrival.end_ms - 1
    ahead = is_ahead(time_ms, arrived_ms=now_ms, max_ahead_ms=rules.max_ahead_ms)
    return SequencerTimes(end=arrival.end, max_time_ms=None if ahead else time_ms, last_ms=now_ms)


def _with_one_window(partition: Partition, now_ms: int, rules: LifecycleRules) -> Partition:
    """Return the partition with all its windows as one: nothing persists them yet, and the property stays small."""
    whole = partition.windows.start_flush(now_ms, late_ms=rules.late_ms, everything=True)
    return replace(partition, windows=whole.drop_flush())
