"""The memory of the driver that the comparisons of one process share: collections are reconciled beside each other."""

from __future__ import annotations

from contextlib import contextmanager
from threading import Condition
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class DriverRoom:
    """So many bytes; a thread that wants more than is left waits until others give some back.

    What a comparison keeps, the rows that differ, is not counted. No thread takes twice at a time: threads that each
    hold a part and wait for another one would wait for ever.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._left = size
        self._given_back = Condition()

    @contextmanager
    def taking(self, wanted: int) -> Iterator[None]:
        """Hold ``wanted`` bytes inside the block; a wish above ``size`` takes everything."""
        taken = min(wanted, self.size)
        with self._given_back:
            self._given_back.wait_for(lambda: taken <= self._left)
            self._left -= taken
        try:
            yield
        finally:
            with self._given_back:
                self._left += taken
                self._given_back.notify_all()


DRIVER_ROOM = DriverRoom(1 << 30)
