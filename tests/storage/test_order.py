from __future__ import annotations

import pytest

from tests.support.storage import MemoryCommandLog
from tidemark.errors import CommitStateUnknown, CorruptState, FencedByEpoch, StaleState
from tidemark.storage.commands import AllowWrites, DropDataflow
from tidemark.storage.order import Cursor, Outbox, Row, Sender

ONE, TWO, THREE = DropDataflow(("1",)), DropDataflow(("2",)), DropDataflow(("3",))


def test_what_may_not_have_landed_is_repeated_and_is_there_once() -> None:
    log = MemoryCommandLog(loses_answer=True)
    outbox = Outbox(log.join("worker-0"))
    outbox.put(ONE)
    with pytest.raises(CommitStateUnknown):
        outbox.flush(log)
    outbox.put(TWO)
    outbox.flush(log)
    outbox.flush(log)
    outbox.put(THREE)
    outbox.flush(log)
    rows = Cursor().read(log)
    assert [(row.index, row.number, row.command) for row in rows] == [(0, 0, ONE), (1, 1, TWO), (2, 2, THREE)]


def test_a_new_life_fences_the_earlier_one() -> None:
    log = MemoryCommandLog()
    first = log.join("worker-0")
    assert log.join("worker-0") == Sender("worker-0", 2)
    with pytest.raises(FencedByEpoch, match=r"worker-0\.1 was replaced"):
        log.append(first, 0, [ONE])


def test_a_gap_in_the_numbers_of_a_sender_is_refused() -> None:
    log = MemoryCommandLog()
    with pytest.raises(CorruptState, match="commands 0 to 1 of worker-0"):
        log.append(log.join("worker-0"), 2, [ONE])


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (Row(2, Sender("b", 1), 0, ONE), "follows index 0"),
        (Row(0, Sender("b", 1), 0, ONE), "follows index 0"),
        (Row(1, Sender("a", 2), 2, ONE), "is not number 1"),
        (Row(1, Sender("a", 2), 0, ONE), "is not number 1"),
        (Row(1, Sender("a", 1), 5, ONE), "after life 2 began"),
    ],
)
def test_a_reader_refuses_a_log_that_is_out_of_order(row: Row, why: str) -> None:
    cursor = Cursor()
    cursor.check_order([Row(0, Sender("a", 2), 0, AllowWrites())])
    with pytest.raises(CorruptState, match=why):
        cursor.check_order([row])


def test_a_first_read_may_find_gaps_where_the_log_was_trimmed_and_a_late_one_starts_over() -> None:
    rows = [Row(3, Sender("a", 1), 3, ONE), Row(7, Sender("a", 1), 5, TWO)]
    log = MemoryCommandLog(rows=rows, start=8)
    cursor = Cursor()
    assert cursor.read(log) == rows
    assert cursor.next_index == 8
    with pytest.raises(StaleState, match="5 to 7"):
        Cursor(next_index=5).read(log)


def test_a_sender_is_read_back_from_its_text() -> None:
    assert Sender.parse(str(Sender("worker-0.x", 12))) == Sender("worker-0.x", 12)
