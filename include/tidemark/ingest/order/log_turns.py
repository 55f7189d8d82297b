"""Which log a collection reads after which: a log that is made anew has the next turn, and so has another one.

A log says nothing of when it was made, so the collection remembers the order in which it has read several logs. A turn
is in the commit of the first rows that bear it. The first log has turn 0, and so have all rows of logs that were read
before turns were counted: no order is known between these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidemark.errors import InputsGone
from tidemark.ingest.buffer_log import BufferLog

TURN = "tidemark.ingest.turn."  # table properties, by log, of those whose turn is not 0


def read_turns(properties: Mapping[str, str]) -> dict[str, int]:
    """Return the turns by the ids of logs; a log that is not among them has turn 0."""
    return {key.removeprefix(TURN): int(text) for key, text in properties.items() if key.startswith(TURN)}


def find_turn(log: BufferLog, properties: Mapping[str, str], known: Iterable[str]) -> int:
    """Return the turn of a log that is read now: the last one that was given, or the next if another log has that.

    ``known`` are the producers that the collection has numbers of. A log that was left for another one, and is read
    again, has a new turn.
    """
    turns = read_turns(properties)
    last = max(turns.values(), default=0)
    follows = turns.get(log.id, 0) < last if turns else any(map(log.is_elsewhere, known))
    return last + 1 if follows else last


def remember_turn(log: BufferLog, turn: int, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the table properties that a commit of rows with that turn sets, on top of ``properties``.

    Raises ``InputsGone`` if another process has given the turn to another log since it was found.
    """
    turns = read_turns(properties)
    if turns.get(log.id, 0) == turn:
        return {}
    if turn <= max(turns.values(), default=0):
        raise InputsGone(f"another log than {log.title} is read by another process", hint="run it again")
    return {TURN + log.id: str(turn)}
