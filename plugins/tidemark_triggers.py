"""Triggers that watch the mode, partitions, files of sources, who leads the system's own catalog, and its truth.

They only read, hold no state, and several may run at once. They live here because every triggerer has ``plugins/`` on
its path. They look without a JVM, off the event loop; those that every run waits for also without pyiceberg, in a few
ms. What cannot be read now is asked again: a catalog that restarts ends no wait.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent

from tidemark.catalog.opening.resume import Fences
from tidemark.catalog.stash.stash import Stash
from tidemark.collections.sources.watching import Watch, look_at
from tidemark.errors import TidemarkError, Unreachable
from tidemark.orchestration.connections import load_settings
from tidemark.orchestration.sensors.caught_up import see_readiness
from tidemark.orchestration.sensors.fences import see_fences
from tidemark.orchestration.sensors.leader import see_leader
from tidemark.orchestration.sensors.mode import see_mode
from tidemark.orchestration.sensors.partition import see_partition
from tidemark.orchestration.sensors.tombstone_reader import SeenTombstone, see_tombstone
from tidemark.orchestration.sensors.workers import see_workers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tidemark.catalog.stash.stash import StashWatch
    from tidemark.orchestration.sensors.waiting import Seen
    from tidemark.settings import Settings

S = TypeVar("S")
FILES_CURSOR = "files"  # the name of the files that were announced last
# Of their own: a mount that hangs keeps a thread, and must not stop the triggers that tasks wait for.
_LOOKS_AT_FILES = ThreadPoolExecutor(max_workers=8, thread_name_prefix="tidemark-files")
CURSOR = "since"  # of the switch that was announced last; kept with the asset, so that a restart misses none


def repeated(see: Callable[[Settings], S]) -> Callable[[], S]:
    """Return a look that asks Airflow for the connections the first time, and again only after a failure."""
    kept: list[Settings] = []

    def look() -> S:
        settings = kept.pop() if kept else load_settings()
        seen = see(settings)
        kept.append(settings)
        return seen

    return look


def tombstone_look(before: SeenTombstone, stack: ExitStack) -> Callable[[], SeenTombstone]:
    """Return a look through one connection, which ``stack`` closes; after a failure it asks for the settings anew."""
    last = before
    watch: StashWatch | None = None
    generation = 0

    def look() -> SeenTombstone:
        nonlocal last, watch, generation
        try:
            if watch is None:
                settings = load_settings()
                watch, generation = Stash.of(settings).watch(), settings.generation
                stack.callback(watch.close)
            last = see_tombstone(watch.head(), generation, last)
        except BaseException:
            stack.close()
            watch = None
            raise
        return last

    return look


class _WaitingTrigger(BaseTrigger):
    """Fires once when a look sees what is wanted, or that it can never be; the worker looks again and says which."""

    def __init__(self, *, poll_seconds: float = 1.0, **arguments: Any) -> None:
        super().__init__()
        self.poll_seconds, self.arguments = poll_seconds, arguments

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"tidemark_triggers.{type(self).__name__}", {**self.arguments, "poll_seconds": self.poll_seconds}

    async def look_until(self, look: Callable[[], Any], is_done: Callable[[Any], bool], *, what: str) -> TriggerEvent:
        """Look again and again, and return what is to be fired; bounded by the timeout given to ``defer``."""
        while True:
            try:
                seen = await asyncio.to_thread(look)
            except Unreachable as error:
                self.log.warning("the %s cannot be read, and is asked for again: %s", what, error)
            except TidemarkError as error:
                return TriggerEvent({"error": error.kind})
            else:
                if is_done(seen):
                    return TriggerEvent(seen.facts)
            await asyncio.sleep(self.poll_seconds)


class WritableTrigger(_WaitingTrigger):
    """Waits until this deployment may publish."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        yield await self.look_until(repeated(see_mode), lambda seen: seen.is_writable, what="mode")


class LedTrigger(_WaitingTrigger):
    """Waits until somebody leads the catalog."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        yield await self.look_until(repeated(see_leader), lambda seen: not seen.obstacle, what="catalog")


class CaughtUpTrigger(_WaitingTrigger):
    """Waits until this deployment, which stands by, is ready to lead."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        yield await self.look_until(repeated(see_readiness), lambda seen: not seen.obstacle, what="readiness")


class PartitionClosedTrigger(_WaitingTrigger):
    """Waits until a partition of a collection is closed."""

    def __init__(self, *, collection: str, partition: str, poll_seconds: float = 10.0) -> None:
        super().__init__(poll_seconds=poll_seconds, collection=collection, partition=partition)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        collection, partition = self.arguments["collection"], self.arguments["partition"]
        look = repeated(lambda settings: see_partition(settings, collection, partition))
        yield await self.look_until(look, lambda seen: not seen.obstacle, what=f"state of {collection!r}")


class WorkersTrigger(_WaitingTrigger):
    """Waits until all workers of a run have ended or were replaced, or one of them is lost or does not begin.

    ``seen`` are the facts of the look before: a worker that was replaced is not on the board any more.
    """

    def __init__(
        self, *, run: str, workers: int, minutes: int, seen: dict[str, Any], poll_seconds: float = 5.0
    ) -> None:
        super().__init__(poll_seconds=poll_seconds, run=run, workers=workers, minutes=minutes, seen=seen)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        run, workers, minutes = self.arguments["run"], self.arguments["workers"], self.arguments["minutes"]
        before: dict[str, Any] = dict(self.arguments["seen"])

        def see(settings: Settings) -> Seen:
            found = see_workers(settings, run, workers=workers, minutes=minutes, before=before)
            before.update(found.facts)
            return found

        yield await self.look_until(repeated(see), lambda seen: not seen.obstacle, what="board of the workers")


class FencesTrigger(_WaitingTrigger):
    """Waits until both back ends show the fences of an open, and one of ``truths`` is the truth."""

    def __init__(self, *, fences: dict[str, Any], truths: list[str], poll_seconds: float = 1.0) -> None:
        super().__init__(poll_seconds=poll_seconds, fences=fences, truths=truths)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        fences, truths = Fences.parse(self.arguments["fences"]), self.arguments["truths"]
        look = repeated(lambda settings: see_fences(settings, fences, truths))
        yield await self.look_until(look, lambda seen: not seen.obstacle, what="catalog")


class TombstoneTrigger(_WaitingTrigger):
    """Waits until the tombstone has the wanted value.

    ``seen`` is what the worker saw before, so that a stash which was restored meanwhile is told from a wait.
    """

    def __init__(self, *, wanted: bool, seen: dict[str, Any], poll_seconds: float = 1.0) -> None:
        super().__init__(poll_seconds=poll_seconds, wanted=wanted, seen=seen)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        wanted, before = self.arguments["wanted"], SeenTombstone.parse(self.arguments["seen"])
        with ExitStack() as stack:
            look = tombstone_look(before, stack)
            yield await self.look_until(look, lambda seen: seen.value is wanted, what="stash")


class ModeSwitchTrigger(BaseEventTrigger):
    """Fire at every switch of the mode, whoever made it: the command line, a DAG, another machine."""

    def __init__(self, *, poll_seconds: float = 1.0) -> None:
        super().__init__()
        self.poll_seconds = poll_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "tidemark_triggers.ModeSwitchTrigger", {"poll_seconds": self.poll_seconds}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        look = repeated(see_mode)
        announced: int | None = None
        while True:
            try:
                seen = await asyncio.to_thread(look)
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


# Airflow stores an event some time after it was fired, under load seconds after: what is noted before would be lost
# with a triggerer that dies.
NOTED_AFTER_SECONDS = 30.0


class FilesTrigger(BaseEventTrigger):
    """Fire when files of a source came, went or were replaced, once two looks found the same ones.

    ``collection`` is the one that reads the files, which are behind ``paths``: folders, patterns, or on an object
    store. What is there at the first look of all is announced, too: nobody knows whether it was read. A triggerer that
    dies between noticing and noting leaves it to the next one to announce the files again: twice is harmless, never is
    not.
    """

    def __init__(self, *, collection: str, paths: list[str], poll_seconds: float) -> None:
        super().__init__()
        self.collection, self.paths, self.poll_seconds = collection, paths, poll_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {"collection": self.collection, "paths": self.paths, "poll_seconds": self.poll_seconds}
        return "tidemark_triggers.FilesTrigger", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        watch, announced, asked = Watch(), "", False
        loop = asyncio.get_running_loop()
        to_note: tuple[str, float] | None = None
        while True:
            try:
                files = await loop.run_in_executor(_LOOKS_AT_FILES, look_at, self.paths)
                if not asked:
                    announced, asked = await self._announced(), True
                changed = await loop.run_in_executor(_LOOKS_AT_FILES, watch.see, files, announced)
                if changed is not None:
                    announced = await self._announced()  # by another triggerer, which watched meanwhile
                    if announced != changed.name:
                        await self._note("")  # or files that are as before, when the next triggerer looks, are no news
                        yield TriggerEvent(changed.facts(self.collection))
                        announced, to_note = changed.name, (changed.name, loop.time() + NOTED_AFTER_SECONDS)
            except Exception as error:  # noqa: BLE001 - a watcher that ends is not started again
                self.log.warning("the files of %r cannot be watched now: looking again: %r", self.collection, error)
            await asyncio.sleep(self.poll_seconds)
            if to_note is not None and loop.time() >= to_note[1]:
                try:
                    await self._note(to_note[0])
                    to_note = None
                except AirflowRuntimeError as error:
                    self.log.warning("the files of %r may be announced once more: %s", self.collection, error)

    async def _announced(self) -> str:
        """Return the name of the files that were announced last; empty if that is not known."""
        if self.asset_state_store is None:
            return ""
        stored = await self.asset_state_store.aget(FILES_CURSOR)
        return stored if isinstance(stored, str) else ""

    async def _note(self, name: str) -> None:
        if self.asset_state_store is not None:
            await self.asset_state_store.aset(FILES_CURSOR, name)
