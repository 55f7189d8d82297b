"""The sensor that waits for the end of read-only mode."""

from __future__ import annotations

from tidemark.orchestration.connections import load_settings
from tidemark.orchestration.sensors.mode import see_mode
from tidemark.orchestration.sensors.waiting import Facts, Seen, WaitingSensor


class WritableSensor(WaitingSensor):
    """Wait until this deployment may publish; return the mode under which it was seen.

    The token and the mode stop a publish in read-only mode, not this sensor.

    A deployment that is newer than the leading one is read-only until it is promoted: the sensor waits. A deployment
    that a newer one has replaced will never be writable again: the sensor fails at once, as for an unreadable mode.
    """

    watch = "WritableTrigger"

    def look(self, before: Facts | None) -> Seen:
        seen = see_mode(load_settings())
        return Seen(seen.facts, "" if seen.is_writable else f"deployment {seen.generation} stayed read-only")
