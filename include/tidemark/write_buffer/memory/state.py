"""The logs that writers and readers of one process share; tests can make holes, errors and losses in them."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from tidemark.errors import ConfigurationInvalid
from tidemark.write_buffer.errors import BufferMissing
from tidemark.write_buffer.formats.entry import Message


class Numbered(NamedTuple):
    """A message at its number."""

    number: int
    message: Message


@dataclass(slots=True)
class _Log:
    items: list[Numbered | Exception] = field(default_factory=list)
    removed: int = 0  # items that retention removed: places count them, too
    earliest: int = 0
    watermark: int = 0


class MemoryState:
    """Sequencers and their messages; without ``sequencers`` a later call of ``create`` makes them."""

    def __init__(self, sequencers: int | None = None) -> None:
        self.identity = uuid.uuid4().hex
        self.changed = threading.Condition()
        self._logs: dict[int, _Log] | None = None
        if sequencers is not None:
            self.create(sequencers)

    def create(self, sequencers: int) -> None:
        """Make the sequencers ``[0, sequencers)``.

        Raises:
            ValueError: If there are sequencers already, or ``sequencers`` is less than 1.
        """
        with self.changed:
            if self._logs is not None:
                raise ValueError("already initialized")
            if sequencers < 1:
                raise ValueError("a buffer has at least one sequencer")
            self._logs = {sequencer_id: _Log() for sequencer_id in range(sequencers)}

    @property
    def exists(self) -> bool:
        return self._logs is not None

    def sequencer_ids(self) -> frozenset[int]:
        """Return the sequencers.

        Raises:
            BufferMissing: If nobody has made them yet.
        """
        if self._logs is None:
            raise BufferMissing.of("the memory buffer")
        return frozenset(self._logs)

    def append(self, sequencer_id: int, message: Message) -> int:
        """Store ``message`` behind all others and return its number."""
        with self.changed:
            number = self._log(sequencer_id).watermark
            self.push(sequencer_id, number, message)
            return number

    def push(self, sequencer_id: int, number: int, message: Message) -> None:
        """Store ``message`` at ``number``, which may leave a hole, and wake the waiting readers.

        Raises:
            ValueError: If there is no such sequencer, or the number is not larger than all before it.
        """
        with self.changed:
            log = self._log(sequencer_id)
            if number < log.watermark:
                raise ValueError(
                    f"sequence number {number} is less/equal than current max sequencer number {log.watermark - 1}"
                )
            log.items.append(Numbered(number, message))
            log.watermark = number + 1
            self.changed.notify_all()

    def push_error(self, sequencer_id: int, error: Exception) -> None:
        """Let every reader that passes this place raise ``error`` there, once.

        Raises:
            ValueError: If there is no such sequencer.
        """
        with self.changed:
            self._log(sequencer_id).items.append(error)
            self.changed.notify_all()

    def messages(self, sequencer_id: int) -> list[Numbered | Exception]:
        """Return a copy of the items of the log.

        Raises:
            ValueError: If there is no such sequencer.
        """
        with self.changed:
            return list(self._log(sequencer_id).items)

    def expire(self, sequencer_id: int, below: int | None = None) -> None:
        """Remove the messages below ``below`` (None: all) as retention does; numbers are not given again.

        Raises:
            ValueError: If there is no such sequencer.
        """
        with self.changed:
            log = self._log(sequencer_id)
            floor = log.watermark if below is None else min(below, log.watermark)
            kept: list[Numbered | Exception] = [
                item for item in log.items if isinstance(item, Numbered) and item.number >= floor
            ]
            log.removed += len(log.items) - len(kept)
            log.items, log.earliest = kept, max(log.earliest, floor)

    def bounds(self, sequencer_id: int) -> tuple[int, int]:
        """Return the earliest number and the watermark; zeros for an unknown sequencer."""
        with self.changed:
            log = (self._logs or {}).get(sequencer_id)
            return (log.earliest, log.watermark) if log else (0, 0)

    def item_at(self, sequencer_id: int, place: int) -> tuple[int, Numbered | Exception | None]:
        """Return the first item from ``place`` on, with its place; ``None`` if there is none yet."""
        log = self._log(sequencer_id)
        place = max(place, log.removed)
        index = place - log.removed
        return place, log.items[index] if index < len(log.items) else None

    def _log(self, sequencer_id: int) -> _Log:
        if self._logs is None:
            raise ValueError("the memory buffer has no sequencers yet: create them first")
        try:
            return self._logs[sequencer_id]
        except KeyError:
            raise ValueError(f"the memory buffer has no sequencer {sequencer_id}") from None


_REGISTERED: dict[str, MemoryState] = {}  # all code of this process that opens `memory:NAME` finds the same logs


@contextmanager
def registered(name: str, state: MemoryState) -> Iterator[None]:
    """Let ``memory:NAME`` mean ``state`` in this process, until the block ends.

    Raises:
        ValueError: If the name is taken.
    """
    if name in _REGISTERED:
        raise ValueError(f"a memory buffer named {name!r} is registered already")
    _REGISTERED[name] = state
    try:
        yield
    finally:
        del _REGISTERED[name]


def find_state(name: str) -> MemoryState:
    """Return the logs that are registered under a name.

    Raises:
        ConfigurationInvalid: If nothing is registered under that name.
    """
    if name not in _REGISTERED:
        known = ", ".join(sorted(_REGISTERED)) or "none"
        raise ConfigurationInvalid(f"Unknown memory buffer: {name}", hint=f"registered in this process are: {known}")
    return _REGISTERED[name]
