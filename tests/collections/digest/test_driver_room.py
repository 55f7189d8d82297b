"""The memory that comparisons beside each other share."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tidemark.collections.digest.driver_room import DriverRoom

PATIENCE_S = 10.0


def test_threads_together_never_hold_more_than_there_is() -> None:
    room, held, most, lock = DriverRoom(10), 0, 0, threading.Lock()

    def take(wanted: int) -> None:
        nonlocal held, most
        with room.taking(wanted):
            with lock:
                held += wanted
                most = max(most, held)
            with lock:
                held -= wanted

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(take, [3, 7, 10, 1, 4] * 40, timeout=PATIENCE_S))
    assert 0 < most <= 10


def test_one_who_finds_no_room_waits_until_some_is_given_back() -> None:
    room, entered = DriverRoom(10), threading.Event()

    def take() -> None:
        with room.taking(6):
            entered.set()

    with ThreadPoolExecutor(1) as threads:
        with room.taking(5):
            waiting = threads.submit(take)
            assert not entered.wait(0.05)
        waiting.result(PATIENCE_S)
    assert entered.is_set()


def test_wish_above_everything_takes_everything_and_a_failure_gives_back() -> None:
    room = DriverRoom(10)
    with pytest.raises(ZeroDivisionError), room.taking(11):
        1 / 0  # noqa: B018
    with ThreadPoolExecutor(1) as threads:
        threads.submit(lambda: room.taking(10).__enter__()).result(PATIENCE_S)
