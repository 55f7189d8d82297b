"""Persistence windows: what arrived in one partition and is not persisted, by the time of its arrival.

Rows wait in the open window, which closes after a while; a closed window that is older than late rows may be becomes
persistable. One flush at a time persists the rows below a time of the event: those of the persistable window whole, and
of the windows that were closed by then in part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tidemark.lifecycle.checkpoints import NumberRange, Numbers, numbers_json, parse_numbers

CLOSING_MS = 30_000  # an open window closes at that age, or at that of late rows if that is less,
MOST_CLOSED = 32  # or so that not many more of them wait to be persistable, however late rows may be


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The rows of one partition that one commit brought from one sequencer."""

    sequencer_id: int
    numbers: NumberRange  # of the entries that hold them: the first one, and the last one + 1
    rows: int
    start_ms: int  # event times lie in [start_ms, end_ms)
    end_ms: int

    def __post_init__(self) -> None:
        if self.rows < 1 or self.numbers.is_empty or self.start_ms >= self.end_ms:
            raise ValueError(f"a slice holds rows, numbers and event times: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Rows of one partition that arrived in ``[opened_ms, last_ms]``, both included; never empty."""

    opened_ms: int
    last_ms: int
    rows: int  # also counts rows that a flush persisted in part: which ones they are is in the files alone
    start_ms: int  # event times lie in [start_ms, end_ms)
    end_ms: int
    numbers: Numbers

    def merge(self, later: Window) -> Window:
        """Return this window and one that was opened later as one."""
        starts = {**later.numbers, **self.numbers}
        return Window(
            opened_ms=self.opened_ms,
            last_ms=later.last_ms,
            rows=self.rows + later.rows,
            start_ms=min(self.start_ms, later.start_ms),
            end_ms=max(self.end_ms, later.end_ms),
            numbers={
                id_: NumberRange(numbers.start, later.numbers.get(id_, numbers).end)
                for id_, numbers in sorted(starts.items())
            },
        )

    def to_json(self) -> list[Any]:
        times = [self.opened_ms, self.last_ms - self.opened_ms, self.rows, self.start_ms, self.end_ms - self.start_ms]
        return [*times, numbers_json(self.numbers)]

    @classmethod
    def from_json(cls, data: list[Any]) -> Window:
        opened, lasted, rows, start, length, numbers = data
        return cls(
            opened_ms=opened,
            last_ms=opened + lasted,
            rows=rows,
            start_ms=start,
            end_ms=start + length,
            numbers=parse_numbers(numbers),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Flush:
    """A persist under way: of the persistable window and the first ``closed`` closed ones, rows below ``until_ms``."""

    closed: int
    until_ms: int  # exclusive
    started_ms: int
    numbers: Numbers  # what the partition lacks once the flush is done, as of its start: its checkpoint
    operation_id: str = ""  # as it was decided
    lease: str = ""  # of the process that works on it; empty: of nobody known


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """The windows of one partition: at most one persistable, closed ones by age, at most one open.

    How late rows may be (``late_ms``) is an argument of each step, so that a rule that is altered holds at once. A
    clock that goes back does not reorder anything: what arrives then counts as arrived with the last rows.
    """

    persistable: Window | None = None  # stays as it is while a flush is under way
    closed: tuple[Window, ...] = ()
    open: Window | None = None
    seen: Mapping[int, int] = field(default_factory=dict)  # by sequencer, the first number that was never seen
    last_ms: int = 0  # when the last rows arrived
    flush: Flush | None = None

    @property
    def unpersisted(self) -> tuple[Window, ...]:
        """All windows, the oldest first."""
        return tuple(window for window in (self.persistable, *self.closed, self.open) if window is not None)

    @property
    def is_persisted(self) -> bool:
        return self.persistable is None and not self.closed and self.open is None

    @property
    def numbers(self) -> dict[int, NumberRange]:
        """What may not be persisted, by sequencer."""
        starts: dict[int, int] = {}
        for window in self.unpersisted:  # the oldest first: later numbers are greater
            for id_, numbers in window.numbers.items():
                starts.setdefault(id_, numbers.start)
        return {id_: NumberRange(starts.get(id_, end), end) for id_, end in sorted(self.seen.items())}

    def add_range(self, slice_: Slice, *, arrived_ms: int, late_ms: int) -> Windows:
        """Return the windows with rows that arrive now.

        Raises ``ValueError`` if the sequencer has brought one of these numbers before: it gives them in order.
        """
        id_, new = slice_.sequencer_id, slice_.numbers
        if new.start < self.seen.get(id_, 0):
            raise ValueError(f"sequencer {id_} brings {new} after {self.seen[id_] - 1}")
        now_ms = max(arrived_ms, self.last_ms)
        window = Window(
            opened_ms=now_ms,
            last_ms=now_ms,
            rows=slice_.rows,
            start_ms=slice_.start_ms,
            end_ms=slice_.end_ms,
            numbers={id_: new},
        )
        return replace(self.add_window(window, late_ms=late_ms), seen={**self.seen, id_: new.end})

    def add_window(self, window: Window, *, late_ms: int) -> Windows:
        """Return the windows with one that opens now, whatever its numbers are."""
        now_ms = max(window.opened_ms, self.last_ms)
        new = replace(window, opened_ms=now_ms, last_ms=now_ms)
        rotated = self.rotate(now_ms, late_ms=late_ms)
        return replace(rotated, open=new if rotated.open is None else rotated.open.merge(new), last_ms=now_ms)

    def rotate(self, now_ms: int, *, late_ms: int) -> Windows:
        """Return the windows as of now: the open one closed if it is old enough, and old closed ones persistable."""
        closed, open_, persistable = self.closed, self.open, self.persistable
        if open_ is not None and now_ms - open_.opened_ms >= min(late_ms, max(CLOSING_MS, late_ms // MOST_CLOSED)):
            closed, open_ = (*closed, open_), None
        while self.flush is None and closed and now_ms - closed[0].opened_ms >= late_ms:
            persistable = _merge((persistable, closed[0]))
            closed = closed[1:]
        return replace(self, persistable=persistable, closed=closed, open=open_)

    def start_flush(self, now_ms: int, *, late_ms: int, everything: bool = False) -> Windows:
        """Return the windows with a flush under way; without one (``flush`` is None) if there is nothing to persist.

        The open window is closed whatever its age: so each window was either there before the flush, or opened later,
        and what is persisted of it is known from that. ``everything`` persists all rows, however young.

        Raises ``ValueError`` if a flush is under way already.
        """
        if self.flush is not None:
            raise ValueError("a partition is flushed by one persist at a time")
        rotated = self.rotate(now_ms, late_ms=late_ms)
        rotated = replace(rotated, closed=(*rotated.closed, *_present(rotated.open)), open=None)
        if everything:
            rotated = replace(rotated, persistable=_merge(rotated.unpersisted), closed=())
        if rotated.persistable is None:
            return rotated
        flush = Flush(closed=len(rotated.closed), until_ms=rotated.persistable.end_ms, started_ms=now_ms, numbers={})
        # The checkpoint is what the very same flush would leave now; rows that arrive later have greater numbers.
        return replace(rotated, flush=replace(flush, numbers=replace(rotated, flush=flush).finish_flush().numbers))

    def finish_flush(self) -> Windows:
        """Return the windows after the flush under way was committed.

        Raises ``ValueError`` if none is under way.
        """
        if self.flush is None:
            raise ValueError("no flush is under way")
        before, after = self.closed[: self.flush.closed], self.closed[self.flush.closed :]
        until_ms = self.flush.until_ms
        left = (replace(w, start_ms=max(w.start_ms, until_ms)) for w in before if w.end_ms > until_ms)
        return replace(self, persistable=None, closed=(*left, *after), flush=None)

    def drop_flush(self) -> Windows:
        """Return the windows after the flush under way was given up: nothing else changes."""
        return replace(self, flush=None)

    def count_persistable(self, now_ms: int, *, late_ms: int) -> int:
        """Return how many rows are older than late rows may be."""
        count = 0
        for window in self.unpersisted:
            if now_ms - window.opened_ms < late_ms:
                break
            count += window.rows
        return count

    def oldest_age_ms(self, now_ms: int) -> int | None:
        """Return how long ago the oldest unpersisted row arrived, at least 0; None if all rows are persisted."""
        oldest = next(iter(self.unpersisted), None)
        return None if oldest is None else max(0, now_ms - oldest.opened_ms)

    def mark_seen_and_persisted(self, numbers: Numbers) -> Windows:
        """Return the windows after everything that a checkpoint has seen was persisted: no window, greater numbers."""
        seen = {id_: max(self.seen.get(id_, 0), each.end) for id_, each in numbers.items()}
        return replace(self, seen={**self.seen, **seen})

    def summaries(self) -> list[tuple[str, Window]]:
        """Return all windows with their states, the oldest first; counts and times after a flush are upper bounds."""
        states = {id(self.persistable): "persistable", id(self.open): "open"}
        return [(states.get(id(window), "closed"), window) for window in self.unpersisted]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, without what is empty."""
        form: dict[str, Any] = {"seen": {str(id_): end for id_, end in sorted(self.seen.items())}, "last": self.last_ms}
        windows = {"persistable": self.persistable, "open": self.open}
        form |= {name: window.to_json() for name, window in windows.items() if window is not None}
        if self.closed:
            form["closed"] = [window.to_json() for window in self.closed]
        if flush := self.flush:
            form["flush"] = [flush.closed, flush.until_ms, flush.started_ms, numbers_json(flush.numbers)]
            form["flushed_by"] = [flush.operation_id, flush.lease]
        return form

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Windows:
        """Return what ``to_json`` wrote."""
        windows = {name: Window.from_json(data[name]) for name in ("persistable", "open") if name in data}
        flush = None
        if found := data.get("flush"):
            closed, until_ms, started_ms, numbers = found
            operation_id, lease = data.get("flushed_by", ("", ""))  # older programs did not write it
            flush = Flush(
                closed=closed,
                until_ms=until_ms,
                started_ms=started_ms,
                numbers=parse_numbers(numbers),
                operation_id=operation_id,
                lease=lease,
            )
        return cls(
            **windows,
            closed=tuple(map(Window.from_json, data.get("closed", ()))),
            seen={int(id_): end for id_, end in data["seen"].items()},
            last_ms=data["last"],
            flush=flush,
        )


def _present(window: Window | None) -> tuple[Window, ...]:
    return () if window is None else (window,)


def _merge(windows: Iterable[Window | None]) -> Window | None:
    merged: Window | None = None
    for window in windows:
        merged = window if merged is None else merged.merge(window) if window is not None else merged
    return merged
