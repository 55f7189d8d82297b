"""The mode of the deployment as Airflow sees it: the stored fact that the command line shows and switches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidemark.catalog.deployment.modes import look_at_mode
from tidemark.catalog.opening.catalog import Catalog
from tidemark.clock import SystemClock
from tidemark.collections.deployment import Mode, StoredMode
from tidemark.collections.mode import mode_of
from tidemark.settings import Settings


@dataclass(frozen=True, slots=True)
class SeenMode:
    """What this deployment may do, and the switch that made it so; true when it was read, and stale ever after."""

    mode: Mode
    generation: int
    stored: StoredMode

    @property
    def is_writable(self) -> bool:
        return self.mode is Mode.READ_WRITE

    @property
    def since_ms(self) -> int:
        return self.stored.since_ms

    @property
    def facts(self) -> dict[str, Any]:
        """The mode as JSON; ``since`` is the time of the switch in ms, 0 if there never was one."""
        return {
            "mode": self.mode.value,
            "generation": self.generation,
            "leader": self.stored.generation,
            "since": self.stored.since_ms,
            "who": self.stored.who,
            "why": self.stored.why,
        }


def see_mode(settings: Settings) -> SeenMode:
    """Read the mode, without a JVM and without pyiceberg, in a few ms.

    Raises:
        Unreachable: If the stash, or the catalog, does not answer.
        FencedByGeneration: If a newer deployment leads: this one will never be writable again.
        CorruptState: If the stored mode was edited.
    """
    stored = look_at_mode(Catalog.of(settings, clock=SystemClock()).ends)
    return SeenMode(mode_of(stored, settings.generation), settings.generation, stored)
