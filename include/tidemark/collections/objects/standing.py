"""Whether an object may run: paused by somebody, or suspended after a failure and tried again later; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tidemark.errors import Paused
from tidemark.interval import time_text

FIRST_RETRY_MS = 60_000
LONGEST_RETRY_MS = 3_600_000


class ObjectKind(StrEnum):
    """The kinds of objects, which share one space of names; an ingestion is a collection that reads a buffer."""

    COLLECTION = "collection"
    SINK = "sink"


class ObjectState(StrEnum):
    """Why an object does not run."""

    PAUSED = "paused"  # by a person, until a person resumes it
    SUSPENDED = "suspended"  # by a failure, until it is tried again


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """An object that does not run, since when and why; an object that runs has none."""

    state: ObjectState
    since_ms: int
    who: str = ""
    reason: str = ""
    error: str = ""  # the kind of the error of a suspension
    attempts: int = 0  # that failed one after the other
    retry_at_ms: int | None = None  # of a suspension

    @property
    def is_paused(self) -> bool:
        return self.state is ObjectState.PAUSED

    def rests_at(self, now_ms: int) -> bool:
        """Tell whether runs leave the object out at ``now_ms``.

        No suspension rests for longer than an hour: a later end was written by a clock that was ahead, and is due.
        """
        return self.retry_at_ms is None or now_ms < self.retry_at_ms <= now_ms + LONGEST_RETRY_MS

    def refuse_rows(self, name: str) -> None:
        """Refuse rows that somebody appends to the paused collection ``name``; a suspension is of its runs alone.

        Raises ``Paused``.
        """
        if self.is_paused:
            raise Paused(f"{name!r} is {self}", hint=f"append again after `tidemark resume {name}`")

    def __str__(self) -> str:
        by = f" by {self.who}" if self.who else ""
        again = "" if self.retry_at_ms is None else f", tried again at {_seconds(self.retry_at_ms)}"
        why = ": ".join(part for part in (self.error, self.reason) if part)
        return f"{self.state} since {_seconds(self.since_ms)}{by}{again}{f': {why}' if why else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """An object that is gone from the catalog, and whose table, if it had one, waits for its removal.

    ``number`` tells drops of one name apart.
    """

    number: int
    kind: ObjectKind
    name: str
    object_id: int
    table_uuid: str  # empty: there is no table
    dropped_at_ms: int
    who: str
    definition: Mapping[str, Any] = field(default_factory=dict)  # of a sink

    @property
    def table(self) -> str:
        """The name of its table among the dropped ones."""
        return f"{self.name}_{self.number}"

    def __str__(self) -> str:
        by = f" by {self.who}" if self.who else ""
        return f"{self.kind} {self.name!r}, dropped {_seconds(self.dropped_at_ms)}{by}"


def back_off_ms(attempts: int) -> int:
    """Return how long to wait after so many failures in a row, at least 1: a minute that doubles up to an hour."""
    doublings = min(attempts - 1, (LONGEST_RETRY_MS // FIRST_RETRY_MS).bit_length())
    return min(FIRST_RETRY_MS << doublings, LONGEST_RETRY_MS)


def _seconds(time_ms: int) -> str:
    return time_text(time_ms // 1000 * 1000)
