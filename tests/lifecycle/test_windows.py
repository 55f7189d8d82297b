"""The table of the reference, 4.3; seconds there are seconds here, numbers are half-open."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.lifecycle.ranges import Bounds, checkpoint, spans, written
from tidemark.lifecycle.checkpoints import NumberRange
from tidemark.lifecycle.windows import Slice, Window, Windows

START_MS = 1_357_214_400_000


def at(seconds: float) -> int:
    return START_MS + round(seconds * 1_000)


class Partition:
    """Windows that are changed in place, by the names of the reference."""

    def __init__(self, *, late: int) -> None:
        self.windows = Windows()
        self.late_ms = late * 1_000

    def add(self, sequencer: int, number: int, rows: int, *, times: tuple[float, float], at_s: float) -> None:
        """Add the rows of one entry; ``times`` are the smallest and the largest event time."""
        first, last = times
        slice_ = Slice(
            sequencer_id=sequencer,
            numbers=NumberRange(number, number + 1),
            rows=rows,
            start_ms=at(first),
            end_ms=at(last) + 1,
        )
        self.windows = self.windows.add_range(slice_, arrived_ms=at(at_s), late_ms=self.late_ms)

    def rotate(self, seconds: float) -> None:
        self.windows = self.windows.rotate(at(seconds), late_ms=self.late_ms)

    def start_flush(self, seconds: float, *, everything: bool = False) -> Windows:
        self.windows = self.windows.start_flush(at(seconds), late_ms=self.late_ms, everything=everything)
        return self.windows

    def finish_flush(self) -> Windows:
        self.windows = self.windows.finish_flush()
        return self.windows

    @property
    def live(self) -> dict[int, Bounds]:
        return written(self.windows.numbers)

    @property
    def planned(self) -> dict[int, Bounds]:
        assert self.windows.flush is not None
        return written(dict(self.windows.flush.numbers))


def shape(windows: Windows) -> dict[str, list[int]]:
    """Return the rows of each window, by state."""
    found: dict[str, list[int]] = {}
    for state, window in windows.summaries():
        found.setdefault(state, []).append(window.rows)
    return found


def numbers_of(window: Window) -> dict[int, Bounds]:
    return written(dict(window.numbers))


def test_time_go_backwards() -> None:
    part = Partition(late=60)
    part.add(1, 1, 1, times=(0, 0), at_s=10)
    part.add(1, 2, 1, times=(1, 1), at_s=3)
    [(_, window)] = part.windows.summaries()
    assert (window.opened_ms, window.last_ms) == (at(10), at(10)), "it counts as arrived with the last rows"
    assert part.windows.oldest_age_ms(at(4)) == 0


def test_panics_when_min_time_gt_max_time() -> None:
    with pytest.raises(ValueError, match="a slice holds"):
        Slice(sequencer_id=1, numbers=NumberRange(0, 1), rows=1, start_ms=5, end_ms=5)


@pytest.mark.parametrize("number", [1, 2])
def test_a_number_comes_once(number: int) -> None:
    part = Partition(late=60)
    part.add(1, 2, 1, times=(0, 0), at_s=0)
    with pytest.raises(ValueError, match=r"sequencer 1 brings .* after 2"):
        part.add(1, number, 1, times=(0, 0), at_s=1)


def test_starts_open_window() -> None:
    part = Partition(late=60)
    part.add(1, 2, 1, times=(0, 100), at_s=0)
    part.add(1, 4, 2, times=(20, 50), at_s=1)
    part.add(1, 10, 1, times=(-10, 9), at_s=2)
    part.add(2, 23, 10, times=(5, 6), at_s=3)
    assert shape(part.windows) == {"open": [14]}
    assert part.windows.open is not None
    assert numbers_of(part.windows.open) == {1: (2, 10), 2: (23, 23)}
    assert (part.windows.open.start_ms, part.windows.open.end_ms) == (at(-10), at(100) + 1)


def test_closes_open_window() -> None:
    part = Partition(late=60)
    part.add(1, 2, 1, times=(0, 1), at_s=0)
    part.add(1, 3, 1, times=(0, 1), at_s=1)
    part.add(1, 6, 2, times=(2, 3), at_s=30)
    assert shape(part.windows) == {"closed": [2], "open": [2]}
    assert [numbers_of(window) for window in part.windows.unpersisted] == [{1: (2, 3)}, {1: (6, 6)}]


def test_moves_to_persistable() -> None:
    part = Partition(late=120)
    for number, (rows, seconds) in enumerate([(2, 0), (3, 30), (4, 60)]):
        part.add(1, number, rows, times=(seconds, seconds), at_s=seconds)
    assert shape(part.windows) == {"closed": [2, 3], "open": [4]}
    part.add(1, 3, 1, times=(90, 90), at_s=150)
    assert shape(part.windows) == {"persistable": [5], "closed": [4], "open": [1]}
    part.add(1, 4, 2, times=(95, 95), at_s=1_000)
    assert shape(part.windows) == {"persistable": [10], "open": [2]}
    assert part.windows.persistable is not None
    assert part.windows.persistable.end_ms == at(90) + 1
    assert numbers_of(part.windows.persistable) == {1: (0, 3)}


def three_windows(*times: tuple[float, float]) -> Partition:
    """Return a persistable window of 5 rows, a closed one of 3 and an open one of 2, with these event times."""
    part = Partition(late=120)
    part.add(1, 2, 5, times=times[0], at_s=0)
    part.add(1, 3, 3, times=times[1], at_s=90)
    part.add(1, 5, 2, times=times[2], at_s=120)
    assert shape(part.windows) == {"persistable": [5], "closed": [3], "open": [2]}
    return part


@pytest.mark.parametrize(
    ("name", "times", "starts"),
    [
        ("flush_persistable_keeps_open_and_closed", [(0, 1), (2, 3), (4, 5)], [2_000, 4_000]),
        ("flush_persistable_overlaps_closed", [(0, 10), (5, 20), (11, 12)], [10_001, 11_000]),
        ("flush_persistable_overlaps_open", [(0, 10), (11, 20), (5, 15)], [11_000, 10_001]),
        ("flush_persistable_overlaps_open_and_closed", [(0, 10), (5, 20), (6, 15)], [10_001, 10_001]),
    ],
)
def test_flush_persistable(name: str, times: list[tuple[float, float]], starts: list[int]) -> None:
    part = three_windows(*times)
    flush = part.start_flush(125).flush
    assert flush is not None
    assert (flush.closed, flush.until_ms) == (2, at(times[0][1]) + 1), "the open window was closed, whatever its age"
    after = part.finish_flush()
    assert shape(after) == {"closed": [3, 2]}, name
    assert [window.start_ms - START_MS for window in after.closed] == starts
    assert [window.end_ms for window in after.closed] == [at(last) + 1 for _, last in times[1:]]


def test_flush_guard() -> None:
    part = Partition(late=60)
    part.add(1, 2, 2, times=(0, 10), at_s=0)
    part.add(1, 4, 5, times=(5, 20), at_s=61)
    part.start_flush(61)
    with pytest.raises(ValueError, match="one persist at a time"):
        part.start_flush(61)
    assert (part.planned, part.live) == ({1: (4, 4)}, {1: (2, 4)})
    part.rotate(1_000)
    assert shape(part.windows) == {"persistable": [2], "closed": [5]}, "a flush that is under way stays as it is"
    part.finish_flush()
    assert part.live == {1: (4, 4)}

    part.start_flush(1_000)
    assert part.planned == {1: (None, 4)}
    part.add(1, 9, 9, times=(0, 30), at_s=1_001)
    assert part.live == {1: (4, 9)}
    dropped = part.windows.drop_flush().rotate(at(2_000), late_ms=60_000)
    assert shape(dropped) == {"persistable": [14]}
    assert dropped.persistable is not None
    assert dropped.persistable.start_ms == START_MS


def test_flush_guard_multiple_closed() -> None:
    part = Partition(late=90)
    part.add(1, 2, 2, times=(0, 10), at_s=0)
    part.add(1, 6, 5, times=(9, 20), at_s=30)  # a part of it lies below the time of the flush
    part.add(1, 8, 9, times=(5, 9), at_s=60)  # all of it does
    part.add(1, 10, 17, times=(0, 9), at_s=90)
    assert shape(part.windows) == {"persistable": [2], "closed": [5, 9], "open": [17]}
    flush = part.start_flush(91).flush
    assert flush is not None
    assert flush.closed == 3
    part.add(1, 14, 11, times=(0, 30), at_s=92)
    assert (part.planned, part.live) == ({1: (6, 10)}, {1: (2, 14)})
    after = part.finish_flush()
    assert part.live == {1: (6, 14)}
    assert shape(after) == {"closed": [5], "open": [11]}
    starts = [window.start_ms for window in after.unpersisted]
    assert starts == [at(10) + 1, START_MS], "what arrived since is untouched: none of it was split"


def test_a_window_that_closed_during_a_flush_is_none_of_its_windows() -> None:
    part = three_windows((0, 10), (5, 20), (6, 15))
    part.start_flush(125)
    part.add(1, 9, 4, times=(0, 5), at_s=126)
    part.rotate(200)
    assert shape(part.finish_flush()) == {"closed": [3, 2, 4]}
    assert part.windows.closed[2].start_ms == START_MS


def test_a_flush_without_persistable_rows_closes_the_open_window() -> None:
    part = Partition(late=60)
    assert part.start_flush(0).flush is None
    part.add(1, 1, 4, times=(0, 1), at_s=0)
    assert part.start_flush(1).flush is None
    assert shape(part.windows) == {"closed": [4]}


def test_flush_all_handle() -> None:
    part = three_windows((0, 10), (5, 20), (6, 15))
    flush = part.start_flush(121, everything=True).flush
    assert flush is not None
    assert (flush.closed, flush.until_ms, part.planned) == (0, at(20) + 1, {1: (None, 5)})
    assert part.finish_flush().is_persisted


def test_summaries() -> None:
    part = Partition(late=90)
    part.add(1, 1, 11, times=(0, 1), at_s=0)
    part.add(1, 2, 10, times=(0, 1), at_s=1)
    part.add(1, 3, 3, times=(2, 3), at_s=40)
    part.add(1, 4, 8, times=(3, 4), at_s=80)
    assert shape(part.windows) == {"closed": [21, 3], "open": [8]}
    part.rotate(130)
    assert shape(part.windows) == {"persistable": [24], "closed": [8]}


@pytest.mark.parametrize("last", [20, 100])
def test_regression_2206(last: int) -> None:
    part = Partition(late=60)
    part.add(1, 0, 2, times=(0, 100), at_s=0)
    part.add(1, 1, 2, times=(10, last), at_s=61)  # wholly below the time of the flush
    part.start_flush(61)
    planned = part.planned
    part.finish_flush()
    assert planned == part.live == {1: (None, 1)}


def test_mark_seen_and_persisted() -> None:
    part = Partition(late=60)
    part.windows = part.windows.mark_seen_and_persisted(checkpoint({1: (1, 2)}).numbers)
    assert part.live == {1: (None, 2)}
    part.windows = part.windows.mark_seen_and_persisted(spans({1: (0, 1), 2: (None, 3)}))
    assert part.live == {1: (None, 2), 2: (None, 3)}
    assert part.windows.is_persisted


def test_update_late_arrival() -> None:
    part = Partition(late=120)
    part.add(1, 0, 5, times=(0, 1), at_s=0)
    part.rotate(60)
    assert part.windows.count_persistable(at(60), late_ms=part.late_ms) == 0
    part.late_ms = 60_000
    part.rotate(60)
    assert shape(part.windows) == {"persistable": [5]}, "an altered rule reaches the windows that are there"


def test_rows_become_persistable_one_window_after_the_other() -> None:
    part = three_windows((0, 1), (2, 3), (4, 5))
    counts = [part.windows.count_persistable(at(seconds), late_ms=120_000) for seconds in (100, 120, 210, 240)]
    assert counts == [0, 5, 8, 10]
    assert part.windows.oldest_age_ms(at(125)) == 125_000
    assert Windows().oldest_age_ms(at(0)) is None


@pytest.mark.parametrize("flushing", [False, True])
def test_the_json_form_is_read_back(*, flushing: bool) -> None:
    part = three_windows((0, 10), (5, 20), (6, 15))
    if flushing:
        part.start_flush(125)
        part.add(2, 7, 1, times=(0, 1), at_s=126)
    assert Windows.from_json(part.windows.to_json()) == part.windows
    assert Windows.from_json(replace(part.windows, open=None).to_json()).open is None
