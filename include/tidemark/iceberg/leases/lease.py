"""A lease says that an application runs: the application renews the lease while it lives, however long it computes.

A lease tells liveness, and nothing else. It lets nobody write, and a process whose lease has run out may go on and
commit: tokens and requirements, checked in the commit itself, keep the store right. A lease is for those who would do
harm to a living process, and can wait: an emergency, and the removal of files that nothing names yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

SYSTEM_CATALOG: Final = "system.catalog"  # the system's own, in the place of a collection
RENEWALS: Final = 6  # within the length of a lease: some may fail
_LOOK_S: Final = 1.0  # the most that the time between two looks counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The lease of one operation of one process, as it is stored; times are of the clock of the database."""

    id: str
    operation: str
    collections: tuple[str, ...]  # none: it may write to any
    generation: int
    writer: str  # host and process, as in the commits
    length_s: float
    began_ms: int
    beat: int  # grows with each renewal
    renewed_ms: int

    def concerns(self, collection: str) -> bool:
        """Return whether the operation may write to ``collection``, or to what is kept beside one, as a quarantine."""
        return not self.collections or collection.startswith(self.collections)

    def was_held_at(self, time_ms: int | None) -> bool:
        """Return whether the last renewal came after ``time_ms``, or shortly before; an older lease tells nothing.

        Processes come again under the same name, and a process may leave a lease behind and go on with others.
        """
        return time_ms is not None and self.renewed_ms >= time_ms - 1000 * self.length_s

    def to_json(self, *, now_ms: int) -> dict[str, Any]:
        """Return the fields to show; ``now_ms`` is of the clock of the database."""
        return {
            "operation": self.operation,
            "collections": list(self.collections),
            "generation": self.generation,
            "writer": self.writer,
            "since": self.began_ms,
            "renewed_s_ago": max(0, now_ms - self.renewed_ms) / 1000,
            "lease_s": self.length_s,
        }

    def __str__(self) -> str:
        on = f" of {', '.join(self.collections)}" if self.collections else ""
        return f"{self.operation}{on} in {self.writer} (deployment {self.generation})"


@dataclass(slots=True)
class Watch:
    """Tells live leases from those that ran out by looking again and again; no clock of any machine decides.

    A lease is live if its beat grows, or if it began after the first look. It has run out if it stays as it is for its
    whole length. A watcher that stood still itself has not watched: between two looks at most ``_LOOK_S`` count.
    """

    live: dict[str, Lease] = field(default_factory=dict)
    lapsed: dict[str, Lease] = field(default_factory=dict)
    _silent: dict[str, tuple[int, float]] = field(default_factory=dict)  # the beat, and for how many seconds it stood
    _looked_s: float | None = None

    def look(self, found: Iterable[Lease], *, now_s: float) -> bool:
        """Take in what is stored at ``now_s`` of a monotonic clock; return whether all leases are decided."""
        is_first = self._looked_s is None
        between_s = 0.0 if self._looked_s is None else min(now_s - self._looked_s, _LOOK_S)
        self._looked_s = now_s
        before, self._silent = self._silent, {}
        live, self.live, self.lapsed = self.live, {}, {}
        for lease in found:
            beat, silent_s = before.get(lease.id, (lease.beat, 0.0))
            began_since = not is_first and lease.id not in before
            if lease.id in live or began_since or lease.beat != beat:
                self.live[lease.id] = lease
                continue
            self._silent[lease.id] = beat, silent_s + between_s
            if silent_s + between_s >= lease.length_s:
                self.lapsed[lease.id] = lease
        return self._silent.keys() == self.lapsed.keys()
