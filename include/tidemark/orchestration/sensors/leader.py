"""The sensor that waits until somebody leads the system's own catalog, so that tasks can join."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from tidemark.catalog.items.data_versions import check_generation
from tidemark.catalog.opening.catalog import Catalog
from tidemark.catalog.opening.truth import find_truth
from tidemark.clock import SystemClock
from tidemark.orchestration.connections import load_settings
from tidemark.orchestration.sensors.waiting import Facts, Seen, WaitingSensor
from tidemark.settings import Settings

LONGEST_MOVE: Final = timedelta(hours=4)  # longer than a migration leaves the catalog without a leader


def see_leader(settings: Settings) -> Seen:
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
        return Seen({"truth": "stash", "epoch": None, "is_led": True})
    check_generation(truth.head.config, ends.generation, where=f"the catalog's {truth.name}")
    facts = {"truth": truth.name, "epoch": truth.epoch, "is_led": truth.is_led}
    nobody = f"nobody led the catalog, whose truth is the {truth.name} at epoch {truth.epoch},"
    return Seen(facts, "" if truth.is_led else nobody)


class LedSensor(WaitingSensor):
    """Wait until the catalog is led: while it is migrated, rolled back or opened, no task can join; return the leader.

    The first task of every DAG that works on collections. It is politeness: whoever joins too early gets ``NotLed``.
    It fails at once if a newer deployment leads, or a side of the catalog is lost.
    """

    watch = "LedTrigger"

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("timeout", LONGEST_MOVE.total_seconds())
        super().__init__(**kwargs)

    def look(self, before: Facts | None) -> Seen:
        return see_leader(load_settings())
