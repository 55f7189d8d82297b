"""The sensor that waits until a back end of the system's own catalog is the truth."""

from __future__ import annotations

from typing import Any

from tidemark.catalog.stash.stash import Stash
from tidemark.orchestration.connections import load_settings
from tidemark.orchestration.sensors.tombstone_reader import SeenTombstone, see_tombstone
from tidemark.orchestration.sensors.waiting import Facts, Seen, WaitingSensor


class TombstoneSensor(WaitingSensor):
    """Wait until the tombstone has the wanted value; return it with the epoch under which it was seen.

    A task that works on the catalog joins the leader, and the next open fences the task; the epoch tells whether the
    leader is still the same.

    The sensor waits while the tombstone is unset. It fails at once if the stash was never opened, if a newer deployment
    leads, and, if ``deferrable``, if the stash was restored or made anew during the wait. Without ``deferrable`` the
    sensor cannot compare with its last look: Airflow clears a task's XComs whenever it schedules the task again.

    Args:
        wanted: True: until the persist catalog is the truth; False: until the stash is the truth *again*.
        or_unset: Whether an unset tombstone is as good as ``wanted``: then False is until the stash is the truth.
        kwargs: As for ``WaitingSensor``.
    """

    watch = "TombstoneTrigger"

    def __init__(self, *, wanted: bool, or_unset: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.wanted, self.or_unset = wanted, or_unset

    def look(self, before: Facts | None) -> Seen:
        settings, earlier = load_settings(), SeenTombstone.parse(before) if before else None
        seen = see_tombstone(Stash.of(settings).head(), settings.generation, earlier)
        is_done = seen.value is self.wanted or (self.or_unset and seen.value is None)
        return Seen(seen.facts, "" if is_done else f"the tombstone stayed {seen.value}, where {self.wanted} is wanted,")

    def watched(self, seen: Seen) -> dict[str, Any]:
        return {"wanted": self.wanted, "seen": seen.facts}
