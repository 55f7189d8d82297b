"""The one order of commands: what every log of commands promises, and what senders and readers do about it. Pure.

- A row's index is its place in the order of all senders; indexes have no gaps.
- A sender numbers its commands from 0 on; they stand in the log in that order, each once: an append whose answer was
  lost is repeated, and adds what is not there yet.
- A sender is one life of a named process. A new life of that name fences the earlier ones: nothing of theirs is added
  any more, so whoever joins and then reads the log has read all that the earlier lives ever said.
- A sender gets its own commands through the log, as everybody does.
- What was superseded may be trimmed: a reader that reads from index 0 on gets what still counts, and a reader that fell
  behind the trimmed part has to start over.
- External commands are in the same log: the sender ``CONTROLLER`` says them, and workers read both kinds in one order.

Source: reference, collections_catalog_storage §8.2; there, one worker gives out the indexes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, Self

from tidemark.errors import CorruptState, ReplacedBySuccessor, StaleState
from tidemark.storage.commands import Command, External

CONTROLLER: Final = "controller"  # the name of the sender of external commands


@dataclass(frozen=True, slots=True, order=True)
class Sender:
    """One life of a process that appends commands; a later life has a larger number."""

    name: str
    life: int

    def __str__(self) -> str:
        return f"{self.name}.{self.life}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse what ``str`` wrote. Raises ``ValueError`` for other texts."""
        name, _, life = text.rpartition(".")
        return cls(name, int(life))


@dataclass(frozen=True, slots=True)
class Row:
    """One command in the log; ``number`` is its number among those of the sender."""

    index: int
    sender: Sender
    number: int
    command: Command

    @property
    def external(self) -> External | None:
        """The command, if the controller says it to each worker; the same command of a worker is an internal one."""
        return self.command if self.sender.name == CONTROLLER and isinstance(self.command, External) else None


@dataclass(frozen=True, slots=True)
class Place:
    """What a log knows of a name: its present life, and the number of the next command of that life."""

    life: int = 0
    next_number: int = 0

    def next_life(self) -> Place:
        return Place(self.life + 1)


class CommandLog(Protocol):
    """A log of commands, shared by all processes of an installation."""

    def join(self, name: str) -> Sender:
        """Begin a new life of ``name``, which fences the earlier ones. Raises as ``append``, and is not idempotent."""

    def append(self, sender: Sender, first_number: int, commands: Sequence[Command]) -> None:
        """Add those of the commands that are not in the log yet; the first one has the number ``first_number``.

        Raises:
            ReplacedBySuccessor: If a later life of the sender took over.
            FencedByGeneration: If a newer deployment took over.
            FencedByEpoch: If the catalog has another leader: open the log anew, and begin another life.
            ReadOnly: If the deployment is read-only: wait, and append the same again.
            CorruptState: If commands are missing before the first one.
        """

    def read(self, from_index: int) -> list[Row]:
        """Return the rows from an index on; from 0 on: all that count.

        Raises ``StaleState`` if rows from that index on were trimmed: start over, and read from 0 on.
        """

    def life_of(self, name: str) -> int:
        """Return the latest life of ``name`` as of the last ``read``; 0 if there was none. Asks nobody."""


def choose_new(sender: Sender, place: Place | None, first_number: int, commands: Sequence[Command]) -> list[Command]:
    """Return those of the commands that a log with ``place`` for the name of the sender does not have yet.

    Raises as ``CommandLog.append``.
    """
    if place is None or place.life != sender.life:
        raise ReplacedBySuccessor(
            f"{sender} was replaced by a later life of {sender.name!r}: its commands do not count any more",
            hint="stop it; the later one goes on",
        )
    if first_number > place.next_number:
        raise CorruptState(
            f"commands {place.next_number} to {first_number - 1} of {sender} are missing before {first_number}",
            hint="the log of commands was restored from a backup: start all workers anew",
        )
    return list(commands[place.next_number - first_number :])


def check_from(from_index: int, start: int) -> None:
    """Refuse to read on from an index that may have been trimmed (``StaleState``); ``start`` is the first kept one."""
    if 0 < from_index < start:
        raise StaleState(
            f"commands {from_index} to {start - 1} of storage workers were trimmed before this worker read them",
            hint="it was away for long: start it anew",
        )


@dataclass(slots=True)
class Outbox:
    """What a sender has to say and does not know to be in the log; repeated until an append is answered."""

    sender: Sender
    first_number: int = 0
    commands: list[Command] = field(default_factory=list)

    def put(self, command: Command) -> None:
        self.commands.append(command)

    def flush(self, log: CommandLog) -> None:
        """Append everything; after a failure with unknown outcome, call it again. Raises as ``CommandLog.append``."""
        if not self.commands:
            return
        count = len(self.commands)
        log.append(self.sender, self.first_number, self.commands[:count])
        self.first_number += count
        del self.commands[:count]


@dataclass(slots=True)
class Cursor:
    """How far a reader came in the log."""

    next_index: int = 0
    _places: dict[str, Place] = field(default_factory=dict)  # by name, after the rows that were read

    def read(self, log: CommandLog) -> list[Row]:
        """Return the rows that came since the last read. Raises as ``CommandLog.read`` and ``check_order``."""
        rows = log.read(self.next_index)
        self.check_order(rows)
        return rows

    def check_order(self, rows: Iterable[Row]) -> None:
        """Take rows as read. Raises ``CorruptState`` if they break what a log of commands promises.

        What a first read brings may have gaps: a part of it was trimmed.
        """
        is_first = self.next_index == 0
        for row in rows:
            if row.index != self.next_index and not (is_first and row.index > self.next_index):
                raise _broken(row, f"follows index {self.next_index - 1}")
            place = self._places.get(row.sender.name)
            if place is not None and row.sender.life < place.life:
                raise _broken(row, f"comes after life {place.life} began")
            if place is not None and row.sender.life == place.life:
                expected = place.next_number
                if row.number < expected or (row.number > expected and not is_first):
                    raise _broken(row, f"is not number {expected}")
            self._places[row.sender.name] = Place(row.sender.life, row.number + 1)
            self.next_index = row.index + 1


def _broken(row: Row, why: str) -> CorruptState:
    return CorruptState(
        f"the log of storage commands is out of order: index {row.index}, number {row.number} of {row.sender} {why}",
        hint="somebody else wrote to it, or it was restored from a backup: start all workers anew",
    )
