"""Triggers that watch the mode of the deployment and the truth of the system's own catalog.

They only read, hold no state, and several may run at once. They live here because every triggerer has ``plugins/`` on
its path. They look without a JVM and without pyiceberg, in a few ms, off the event loop. What cannot be read now is
asked again: a catalog that restarts ends no wait.
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent

from tidemark.errors import TidemarkError, Unreachable
from tidemark.orchestration.sensors.mode import ModeReader
from tidemark.orchestration.sensors.tombstone_reader import SeenTombstone, TombstoneReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

CURSOR = "since"  # of the switch that was announced last; kept with the asset, so that a restart misses none


class WritableTrigger(BaseTrigger):
    """Fire once when this deployment may publish, or never will; the worker looks again and says which."""

    def __init__(self, *, poll_seconds: float = 1.0) -> None:
        super().__init__()
        self.poll_seconds = poll_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "tidemark_triggers.WritableTrigger", {"poll_seconds": self.poll_seconds}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        reader = ModeReader()
        yield await _look_until(self, reader.read, lambda seen: seen.is_writable, what="mode")


class TombstoneTrigger(BaseTrigger):
    """Fire once when the tombstone has the wanted value, or never will; the worker looks again and says which.

    ``seen`` is what the worker saw before, so that a stash which was restored meanwhile is told from a wait.
    """

    def __init__(self, *, wanted: bool, seen: dict[str, Any], poll_seconds: float = 1.0) -> None:
        super().__init__()
        self.wanted, self.seen, self.poll_seconds = wanted, seen, poll_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {"wanted": self.wanted, "seen": self.seen, "poll_seconds": self.poll_seconds}
        return "tidemark_triggers.TombstoneTrigger", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        with closing(TombstoneReader(SeenTombstone.parse(self.seen))) as reader:
            yield await _look_until(self, reader.read, lambda seen: seen.value is self.wanted, what="stash")


async def _look_until(
    trigger: WritableTrigger | TombstoneTrigger, look: Callable[[], Any], is_done: Callable[[Any], bool], *, what: str
) -> TriggerEvent:
    """Look again and again, and return what is to be fired; bounded by the timeout given to ``defer``."""
    while True:
        try:
            seen = await asyncio.to_thread(look)
        except Unreachable as error:
            trigger.log.warning("the %s cannot be read, and is asked for again: %s", what, error)
        except TidemarkError as error:
            return TriggerEvent({"error": error.kind})
        else:
            if is_done(seen):
                return TriggerEvent(seen.facts)
        await asyncio.sleep(trigger.poll_seconds)


class ModeSwitchTrigger(BaseEventTrigger):
    """Fire at every switch of the mode, whoever made it: the command line, a DAG, another machine."""

    def __init__(self, *, poll_seconds: float = 1.0) -> None:
        super().__init__()
        self.poll_seconds = poll_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "tidemark_triggers.ModeSwitchTrigger", {"poll_seconds": self.poll_seconds}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        reader = ModeReader()
        announced: int | None = None
        while True:
            try:
                seen = await asyncio.to_thread(reader.read)
            except TidemarkError as error:  # a watcher that ends is not started again: ask for ever
                self.log.warning("the mode cannot be read, and is asked for again: %s", error)
            else:
                if seen.since_ms != announced:
                    announced = await self._announced()
                if announced is None:  # the first look of this installation: nothing was switched
                    announced = await self._announce(seen.since_ms)
                elif seen.since_ms != announced:
                    yield TriggerEvent(seen.facts)
                    announced = await self._announce(seen.since_ms)  # afterwards: twice is harmless, never is not
            await asyncio.sleep(self.poll_seconds)

    async def _announced(self) -> int | None:
        if self.asset_state_store is None:
            return None
        stored = await self.asset_state_store.aget(CURSOR)
        return stored if isinstance(stored, int) else None

    async def _announce(self, since_ms: int) -> int:
        if self.asset_state_store is not None:
            await self.asset_state_store.aset(CURSOR, since_ms)
        return since_ms
