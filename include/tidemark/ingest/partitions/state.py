"""What a collection's table says about its partitions, as JSON in one property, and the next such value.

It moves in the commit that makes rows visible. Beside the state stand the ledgers as the state knows them: what others
published since, as a flush does, is in the table's ledgers alone, and ``missing`` tells it apart.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tidemark.collections.declarations.collection import Declaration, Kind
from tidemark.collections.declarations.lifecycle import LifecycleRules, Merge, Visible
from tidemark.errors import CorruptState, NotPossible, UsageError
from tidemark.iceberg.shard.ledger import Ledger
from tidemark.ingest.partitions.arrivals import Arrival
from tidemark.interval import Unit, instant, milliseconds
from tidemark.lifecycle.checkpoints import Checkpoints, NumberRange
from tidemark.lifecycle.policy import Decision
from tidemark.lifecycle.state import Closed, LifecycleState, Partition, Reopened, StalePersist
from tidemark.lifecycle.watermarks import SequencerTimes, is_ahead
from tidemark.lifecycle.windows import Flush, Slice, Window, Windows

PROPERTY = "tidemark.lifecycle"
KEPT_CLOSED = 48  # the newest ones: two days of hours, so that the property does not grow with the collection


@dataclass(frozen=True)
class PartitionRules:
    """What a collection declares about event times."""

    column: str
    unit: Unit
    lifecycle: LifecycleRules
    key: tuple[str, ...] = ()  # with the event time: of rows that are equal in it one is persisted

    @classmethod
    def of(cls, declaration: Declaration) -> PartitionRules | None:
        """Return the rules of a collection; None if its rows have no event times."""
        if declaration.event_time is None:
            return None
        rules = declaration.lifecycle or LifecycleRules()
        return cls(declaration.event_time, declaration.partition or Unit.DAY, rules, declaration.key)

    @property
    def keeps_open(self) -> bool:
        """Whether accepted rows wait on the tag ``tidemark-open`` until they are persisted."""
        return self.lifecycle.visible is Visible.WHEN_PERSISTED

    def while_waiting(self, rows: int) -> LifecycleRules:
        """Return the rules of a moment at which so many ``rows`` wait on the tag: they were accepted by other rules.

        Nothing shows them but a persist, so that there is one, and no partition is closed before. Whoever alters the
        rules is refused to give that up, but an ingest that began before may still put rows there.
        """
        waiting = {"visible": Visible.WHEN_PERSISTED, "persist": True} if rows else {}
        return self.lifecycle.model_copy(update=waiting)

    @property
    def merges_fields(self) -> bool:
        """Whether a persist puts values of several rows into one."""
        return bool(self.key) and self.lifecycle.merge is Merge.FIELDS

    @classmethod
    def required(cls, declaration: Declaration) -> PartitionRules:
        """Return the rules of a collection. Raises ``UsageError`` if its rows have no event times."""
        if declaration.kind is Kind.LATEST:
            raise UsageError(
                f"{declaration.name!r} keeps the latest row of each key, and has no event times",
                hint="`partitions`, `persist`, `replay`, `compact` and `unload` are for append-only collections; "
                "maintenance merges the files of this one",
            )
        if (rules := cls.of(declaration)) is None:
            raise UsageError(
                f"{declaration.name!r} has no event times", hint="declare their column as `event_time`, and apply it"
            )
        return rules


def check_event_times(rules: PartitionRules, columns: Collection[str], *, collection: str) -> None:
    """Raise ``NotPossible`` if the table's columns are without theirs, as after another engine renamed it."""
    if rules.column not in columns:
        raise NotPossible(
            f"{collection!r} declares the event times {rules.column!r}, and its table has no such column",
            hint="another tool renamed or dropped the column: bring it back, or declare and apply another one",
        )


class Arrived(NamedTuple):
    """Rows of one sequencer, or of one batch, by partition."""

    sequencer_id: int | None  # None: they do not say how far a sequencer is
    partitions: Mapping[str, Arrival]
    is_persisted: bool = False  # already: they lie in persisted files
    may_be_merged: bool = False  # open, with values of several entries: no replay takes them for rows of one


class Begun(NamedTuple):
    """A persist that one pass began; another pass that begins it anew makes another flush."""

    checkpoints: Checkpoints
    flush: Flush | None
    leaves_nothing: bool  # of what the state knows of the partition


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
            with _uncollected():
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
                hint="`tidemark repair NAME --partitions --yes`; the next ingest rebuilds it from the rows",
            ) from error

    def __str__(self) -> str:
        known = {producer: str(ledger) for producer, ledger in sorted(self.known.items())}
        with _uncollected():
            form = {"column": self.column, "unit": self.unit.value, "known": known, "state": self.state.to_json()}
            return json.dumps(form, separators=(",", ":"))

    def is_closed(self, name: str) -> bool:
        """Tell whether all sequencers have passed a partition, and no late row has come since that was told."""
        known = self.state.partitions.get(name)
        return self.state.is_passed(name) if known is None else known.is_closed

    def count_unfinished(self) -> int:
        """Return how many partitions are not closed, or have open rows."""
        found = self.state.partitions.values()
        return sum(not (each.is_closed and each.windows.is_persisted) for each in found)

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
        others: dict[str, list[_Other]] = {}
        for sequencer_id, by_partition, is_persisted, may_be_merged in arrived:
            keeps_numbers = not (is_persisted or may_be_merged)
            times = None if sequencer_id is None else self.state.sequencers.get(sequencer_id)
            for name, arrival in by_partition.items():
                if sequencer_id is None or not keeps_numbers or (times is not None and arrival.first < times.end):
                    other = _Other(sequencer_id, arrival, is_open=not is_persisted, is_replayed=keeps_numbers)
                    others.setdefault(name, []).append(other)
                else:
                    new.setdefault(name, []).append(_slice(sequencer_id, arrival))
        late_rows = sum(each.rows for name, slices in new.items() if self.state.is_passed(name) for each in slices)
        state, reopened = self.state.add(new, arrived_ms=now_ms, rules=rules)
        partitions, sequencers = dict(state.partitions), dict(state.sequencers)
        seen = {id_: numbers.end for id_, numbers in state.ends.items()}  # one that was forgotten is persisted
        for name, arrivals in sorted(others.items()):
            rows = sum(each.arrival.rows for each in arrivals)
            late = rows if state.is_passed(name) else 0
            before = partitions.get(name)
            if late and (before is None or before.is_closed):
                reopened.append(Reopened(name, late))
            late_rows += late
            known = before or Partition(windows=Windows(seen=seen))
            partitions[name] = _count(name, known, arrivals, late=late, now_ms=now_ms, late_ms=rules.late_ms)
            for sequencer_id, arrival, *_ in arrivals:
                if sequencer_id is not None:
                    times = _times(arrival, now_ms, rules)
                    sequencers[sequencer_id] = sequencers.get(sequencer_id, times).advance(times)
        return replace(self, state=replace(state, partitions=partitions, sequencers=sequencers)), reopened, late_rows

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
        return replace(self, state=replace(state, sequencers=sequencers)).forget_old(rules), closed

    def forget_old(self, rules: LifecycleRules) -> Partitions:
        """Return the partitions without old ones to which nothing happens any more, unless late rows come.

        Where nothing is persisted, the property would grow with the collection otherwise.
        """
        partitions = self.state.partitions
        by_age = sorted(name for name, each in partitions.items() if each.is_closed and each.windows.flush is None)
        old = {name for name in by_age[:-KEPT_CLOSED] if partitions[name].windows.is_persisted or not rules.persist}
        kept = {name: partition for name, partition in partitions.items() if name not in old}
        return replace(self, state=replace(self.state, partitions=kept))

    def start_persist(
        self, decisions: Iterable[Decision], *, now_ms: int, rules: LifecycleRules, lease: str = ""
    ) -> tuple[Partitions, list[Begun]]:
        """Return the partitions with the decided persists under way, and what each of them persists.

        ``lease`` is that of the process which works on them.
        """
        decided = {each.partition: each for each in decisions}
        wanted = {name: each.everything for name, each in decided.items()}
        with _uncollected():
            state, checkpoints = self.state.start_persists(wanted, now_ms=now_ms, rules=rules)
        partitions, begun = dict(state.partitions), list[Begun]()
        for each in checkpoints:
            name = each.partition.partition
            windows = partitions[name].windows
            if windows.flush is not None:
                flush = replace(windows.flush, operation_id=decided[name].operation_id, lease=lease)
                windows = replace(windows, flush=flush)
                partitions[name] = replace(partitions[name], windows=windows)
            begun.append(Begun(each, windows.flush, leaves_nothing=_leaves_nothing(windows)))
        return replace(self, state=replace(state, partitions=partitions)), begun

    def finish_persist(self, begun: Iterable[Begun], rules: LifecycleRules) -> Partitions:
        """Return the partitions after persists.

        Raises ``StalePersist`` if one of them is not under way any more: another pass began it anew, of other rows, or
        the state was lost.
        """
        begun = list(begun)
        for checkpoints, flush, _ in begun:
            if _flush_of(self.state, checkpoints) != flush:
                name = checkpoints.partition.partition
                raise StalePersist(f"another pass began partition {name} anew", hint="the next pass goes on")
        return replace(self, state=self.state.finish_persists(each.checkpoints for each in begun)).forget_old(rules)

    def open_again(self, arrivals: Mapping[str, Arrival], *, now_ms: int, rules: LifecycleRules) -> Partitions:
        """Return the partitions with rows that were persisted, and that the next persist takes once more.

        The rows count no more than they did, and no closed partition is told to be closed again.
        """
        partitions = dict(self.state.partitions)
        for name, arrival in arrivals.items():
            seen = {id_: numbers.end for id_, numbers in self.state.ends.items()}
            is_passed = self.state.is_passed(name)
            before = partitions.get(name) or Partition(windows=Windows(seen=seen), is_closed=is_passed)
            opened = _count(name, before, [_Other(None, arrival)], late=0, now_ms=now_ms, late_ms=rules.late_ms)
            partitions[name] = replace(opened, rows=before.rows)
        return replace(self, state=replace(self.state, partitions=partitions))

    @property
    def under_way(self) -> dict[str, Flush]:
        """The persists under way, by partition."""
        found = self.state.partitions
        return {name: each.windows.flush for name, each in found.items() if each.windows.flush is not None}

    def drop_persists(self, but: Collection[str] = ()) -> tuple[Partitions, list[str]]:
        """Return the partitions without persists under way, ``but`` for some, and the names of those that had one."""
        dropped = [name for name in self.under_way if name not in but]
        return replace(self, state=self.state.drop_persists(dropped)), dropped


class _Other(NamedTuple):
    """Rows that no window may have with their numbers."""

    sequencer_id: int | None
    arrival: Arrival
    is_open: bool = True
    is_replayed: bool = True  # whether a replay may take them for rows that are not persisted


def _flush_of(state: LifecycleState, checkpoints: Checkpoints) -> Flush | None:
    partition = state.partitions.get(checkpoints.partition.partition)
    return None if partition is None else partition.windows.flush


def _leaves_nothing(windows: Windows) -> bool:
    """Tell whether no row is unpersisted after the flush under way; cheaper than to finish it."""
    flush, closed = windows.flush, windows.closed
    if flush is None or windows.open is not None or len(closed) > flush.closed:
        return False
    return all(window.end_ms <= flush.until_ms for window in closed)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Build many small values, none of which refers to itself: the collector would look at all of them, many times.

    Of 10,000 partitions that took two thirds of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _slice(sequencer_id: int, arrival: Arrival) -> Slice:
    return Slice(
        sequencer_id=sequencer_id,
        numbers=NumberRange(arrival.first, arrival.end),
        rows=arrival.rows,
        start_ms=arrival.start_ms,
        end_ms=arrival.end_ms,
    )


def _count(
    name: str, partition: Partition, arrivals: Iterable[_Other], *, late: int, now_ms: int, late_ms: int
) -> Partition:
    """Return the partition with rows whose numbers come after greater ones, as those of a flush do, or without numbers.

    No replay reads such numbers again: the rows are visible. So their window has no numbers. Persisted rows have none.
    """
    rows = sum(each.arrival.rows for each in arrivals)
    for sequencer_id, arrival, _, is_replayed in arrivals:
        if sequencer_id is not None and not is_replayed:
            numbers = NumberRange(arrival.first, arrival.end)
            partition = partition.mark_persisted(name, sequencer_id, numbers, until_ms=arrival.end_ms)
    windows = replace(partition.windows, last_ms=max(now_ms, partition.windows.last_ms))
    for arrival in (each.arrival for each in arrivals if each.is_open):
        window = Window(
            opened_ms=now_ms,
            last_ms=now_ms,
            rows=arrival.rows,
            start_ms=arrival.start_ms,
            end_ms=arrival.end_ms,
            numbers={},
        )
        windows = windows.add_window(window, late_ms=late_ms)
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
