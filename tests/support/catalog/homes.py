"""A home with both back ends of the catalog, real ones, and short ways to write, read and look past their code."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from tests.support.clock import SteppedClock
from tests.support.crash import die_at
from tidemark.catalog.back_end import OpenMode
from tidemark.catalog.items.kinds import CATALOG_KIND, SETTING, CatalogKind, NamedKey, SettingValue
from tidemark.catalog.opening.catalog import Catalog
from tidemark.catalog.opening.opening import BackEnds, Direction, Opening, run_steps
from tidemark.catalog.opening.protocol import PROTOCOL
from tidemark.catalog.persist.handle import compact_catalog
from tidemark.catalog.persist.records import PROPERTY, SHARD
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.log import LogUpdate, append_to_log
from tidemark.iceberg.shards import SYSTEM, Shards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tidemark.catalog.back_end import Handle
    from tidemark.catalog.items.transaction import Transaction
    from tidemark.catalog.opening.opening import Step
    from tidemark.settings import Settings


MIGRATE, ROLLBACK, EMERGENCY = Direction.MIGRATE, Direction.ROLLBACK, Direction.EMERGENCY
RELIC = LogUpdate("relic", "{}", "{}", 1)  # of a kind that there is not


def put(handle: Handle, *names: str) -> None:
    """Write rows: settings, by their names."""

    def change(transaction: Transaction) -> None:
        for name in names:
            transaction.put(SETTING, NamedKey(name=name), SettingValue(value="v"))

    handle.transact(change)


def names(handle: Handle) -> set[str]:
    """Read rows back."""
    return handle.transact(lambda transaction: {key.name for key, _ in transaction.items(SETTING)})


@dataclass(frozen=True)
class CombinedHome:
    """Both back ends below one folder, or in one database each."""

    settings: Settings

    @cached_property
    def catalog(self) -> Catalog:
        """One for all openers: what they share is a pool of connections, and most of the time an open takes."""
        return Catalog.of(self.settings, clock=SteppedClock(), who="a test")

    @property
    def ends(self) -> BackEnds:
        return self.catalog.ends

    def generation(self, number: int) -> CombinedHome:
        return CombinedHome(replace(self.settings, generation=number))

    def open(self, direction: Direction | None = None, *, add: Iterable[str] = (), is_forced: bool = False) -> int:
        """Open, write rows as the leader, close; the leader's epoch."""
        opening = self.catalog.open(direction, is_forced=is_forced)
        try:
            if added := list(add):
                put(opening.truth, *added)
            return opening.truth.epoch
        finally:
            opening.close()

    def open_stash(self, *, add: Iterable[str] = ()) -> int:
        """Open the stash alone."""
        with self.ends.stash.open(
            OpenMode.WRITABLE, generation=self.settings.generation, clock=SteppedClock()
        ) as handle:
            if added := list(add):
                put(handle, *added)
            return handle.epoch

    def run(self, steps: Sequence[Step], opening: Opening) -> Opening:
        """Take some steps of an open, which then stops there, as if it had died."""
        return run_steps(self.ends, opening, steps)

    def die_after(self, direction: Direction, step: Step) -> None:
        """Begin an open and never go on after ``step``."""
        steps = PROTOCOL[direction]
        self.run(steps[: steps.index(step) + 1], Opening(direction=direction)).close()

    def rows(self) -> set[str]:
        """The rows of the truth, as a task sees them."""
        with self.catalog.join() as handle:
            return names(handle)

    def rows_of(self, name: str) -> set[str]:
        """The rows of one back end, whichever is the truth."""
        with self.look_at(name) as handle:
            return names(handle)

    def counts_of(self, name: str) -> dict[str, int]:
        """The items of one back end by kind, whichever is the truth."""
        with self.look_at(name) as handle:
            return handle.snapshot().counts()

    def look_at(self, name: str) -> Handle:
        end = self.ends.stash if name == "stash" else self.ends.persist
        return end.open(OpenMode.READ_ONLY, generation=self.settings.generation, clock=SteppedClock())

    def truth(self) -> str:
        return self.catalog.truth().name

    def epochs(self) -> tuple[int | None, int | None]:
        return self.ends.stash.head().epoch, self.ends.persist.head().epoch

    def dumps(self) -> tuple[list[str], list[str]]:
        """Every durable record of both."""
        return list(self.ends.stash.dump()), list(self.ends.persist.dump())


def put_garbage(home: CombinedHome, *updates: LogUpdate) -> None:
    """Write to the persist catalog past the code of the catalog, as another tool would."""
    shard = Shards.connect(home.settings).open(SHARD, SYSTEM)
    upper = shard.load().state.upper
    append_to_log(Writer.join(shard, 1), updates or [RELIC], lower=upper, time=upper)


def show_config(home: CombinedHome, **config: int) -> None:
    """Edit the head of the persist catalog: it shows this config, too, which no item says."""
    table = Shards.connect(home.settings).open(SHARD, SYSTEM).load().table
    head = json.loads(table.properties[PROPERTY])
    with table.transaction() as edit:
        edit.set_properties({PROPERTY: json.dumps({**head, "config": {**head["config"], **config}})})


def set_kind(home: CombinedHome, kind: CatalogKind) -> None:
    """Say what the next open is to do, as a leader's task."""
    with home.catalog.join() as handle:
        handle.transact(lambda transaction: transaction.set_config(CATALOG_KIND, kind))


def run_in_child(what: Callable[[CombinedHome], object], home: CombinedHome, *, fail_point: str = "") -> int:
    """Run ``what``, a function of a module, in a process of its own that dies at ``fail_point``; its exit code."""
    return die_at(fail_point, _run, what, home.settings)


def _run(what: Callable[[CombinedHome], object], settings: Settings) -> None:
    what(CombinedHome(settings))


def migrate(home: CombinedHome) -> None:
    home.open(Direction.MIGRATE)


def roll_back(home: CombinedHome) -> None:
    home.open(Direction.ROLLBACK)


def open_in_an_emergency(home: CombinedHome) -> None:
    home.open(Direction.EMERGENCY, is_forced=True)


def compact(home: CombinedHome) -> None:
    shard = Shards.connect(home.settings).open(SHARD, SYSTEM)
    assert compact_catalog(shard, generation=1, now_ms=10**15)
