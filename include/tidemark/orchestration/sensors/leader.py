"""The sensor that waits until somebody leads the system's own catalog, so that tasks can join."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from tidemark.catalog.items.data_versions import check_generation
from tidemark.catalog.opening.catalog import Catalog
from tidemark.catalog.opening.truth import find_truth
from tidemark.clock import SystemClock
from tidemark.orchestration.connections import load_settings
from tidemark.orchestration.sensors.waiting import Facts, WaitingSensor
from tidemark.settings import Settings

LONGEST_MOVE: Final = timedelta(hours=4)  # longer than a migration leaves the catalog without a leader


@dataclass(frozen=True, slots=True)
class SeenLeader:
    """Whether the catalog is led; true when it was read, and stale ever after."""

    truth: str
    epoch: int | None  # None: nobody ever led the catalog
    is_led: bool

    @property
    def facts(self) -> dict[str, Any]:
        return {"truth": self.truth, "epoch": self.epoch, "is_led": self.is_led}

    @property
    def obstacle(self) -> str:
        """Say why a task cannot join; empty if it can."""
        if self.is_led:
            return ""
        return f"nobody led the catalog, whose truth is the {self.truth} at epoch {self.epoch},"


def see_leader(settings: Settings) -> SeenLeader:
    """Look whether tasks can join the catalog, without a JVM and without pyiceberg, in a few ms.

    A catalog that never had a leader counts as led: the first task that changes it opens it.

    Raises:
        Unreachable: If a back end does not answer.
        FencedByGeneration: If a newer deployment leads: this one will never join again.
        Others as ``find_truth``.
    """
    ends = Catalog.of(settings, clock=SystemClock()).ends
    truth = find_truth(ends)
    if truth is None or not truth.was_led:
        return SeenLeader("stash", None, is_led=True)
    check_generation(truth.head.config, ends.generation, where=f"the catalog's {truth.name}")
    return SeenLeader(truth.name, truth.epoch, truth.is_led)


class LedSensor(WaitingSensor):
    """Wait until the catalog is led: while it is migrated, rolled back or opened, no task can join; return the leader.

    The first task of every DAG that works on collections. It is politeness: whoever joins too early gets ``NotLed``.
    It fails at once if a newer deployment leads, or a side of the catalog is lost.
    """

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("timeout", LONGEST_MOVE.total_seconds())
        super().__init__(**kwargs)

    def look(self, before: Facts | None) -> SeenLeader:
        return see_leader(load_settings())

    def obstacle(self, seen: SeenLeader) -> str:
        return seen.obstacle

    def trigger(self, seen: SeenLeader) -> Any:
        from tidemark_triggers import LedTrigger  # type: ignore[import-not-found]  # noqa: PLC0415 -- of plugins/

        return LedTrigger(poll_seconds=self.poll_seconds)
