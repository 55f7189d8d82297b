from __future__ import annotations

import pytest

from tests.support.storage import MemoryCommandLog
from tidemark.errors import CorruptState, StaleState
from tidemark.storage.commands import AllowWrites, DropDataflow
from tidemark.storage.order import Cursor, Row, Sender

ONE, TWO = DropDataflow(("1",)), DropDataflow(("2",))


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
