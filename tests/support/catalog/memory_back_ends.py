"""Back ends in memory, with real items and transactions: for schedules that look at what is stored, not at how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from tests.support.clock import SteppedClock
from tidemark.catalog.back_end import Head, OpenMode, Replaced
from tidemark.catalog.items.contents import Contents
from tidemark.catalog.items.data_versions import check_generation, opening_changes
from tidemark.catalog.items.kinds import DEPLOYMENT, GENERATION_KEY, LEADER_EPOCH
from tidemark.catalog.items.replace_all import check_not_led, replacement_changes
from tidemark.catalog.items.transaction import Transaction
from tidemark.catalog.opening.catalog import Catalog
from tidemark.catalog.opening.opening import BackEnds
from tidemark.catalog.persist.records import config_of
from tidemark.errors import FencedByEpoch, NotWritable

if TYPE_CHECKING:
    from collections.abc import Callable


def _nothing() -> None:
    pass


@dataclass
class MemoryEnd:
    """Implements ``BackEnd``; each call is atomic. ``looked`` runs after each look at the head, before the answer."""

    name: str
    epoch: int | None = None
    contents: Contents = field(default_factory=Contents)
    looked: Callable[[], None] = _nothing

    def head(self) -> Head:
        head = Head(self.epoch, config_of(self.contents), dict(self.contents.of_kind(DEPLOYMENT.name)))
        self.looked()
        return head

    def open(self, mode: OpenMode, *, generation: int, epoch_lower_bound: int = 0, **_: Any) -> MemoryHandle:
        config = config_of(self.contents)
        check_generation(config, generation, where=self.name)
        if mode is OpenMode.WRITABLE:
            self.epoch = max((self.epoch or 1) + 1, epoch_lower_bound)
            changes = opening_changes(config, lambda: self.contents, generation=generation, where=self.name)
            self.contents.apply(changes)
        return MemoryHandle(self, self.epoch or 0, mode, generation)

    def join(self, *, generation: int, **_: Any) -> MemoryHandle:
        if config_of(self.contents).get(GENERATION_KEY) != generation:
            raise NotWritable(f"{self.name} is led by another deployment")
        return MemoryHandle(self, self.epoch or 0, OpenMode.WRITABLE, generation)


@dataclass
class MemoryHandle:
    """Implements ``Handle``."""

    end: MemoryEnd
    epoch: int
    mode: OpenMode
    generation: int
    fence_mark: str = "in memory"

    @property
    def name(self) -> str:
        return self.end.name

    def snapshot(self) -> Contents:
        self.confirm_leadership()
        return self.end.contents.copy()

    def transact(self, change: Callable[[Transaction], Any]) -> Any:
        self.confirm_leadership()
        transaction = Transaction(self.end.contents, now_ms=1)
        result = change(transaction)
        self.end.contents.apply(transaction.pending())
        return result

    def replace_all(self, contents: Contents, *, tombstone: bool | None = None) -> Replaced:
        self.confirm_leadership()
        check_not_led(self.end.contents.config(LEADER_EPOCH), epoch=self.epoch, where=self.name)
        changes = replacement_changes(self.end.contents, contents, generation=self.generation, tombstone=tombstone)
        self.end.contents.apply(changes)
        return Replaced(len(changes), 0)

    def confirm_leadership(self) -> None:
        if self.end.epoch != self.epoch:
            raise FencedByEpoch(f"the {self.name} is at epoch {self.end.epoch}, not {self.epoch}")

    def close(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""


def memory_catalog(stash: MemoryEnd, persist: MemoryEnd, *, generation: int = 1) -> Catalog:
    """Return a process's view of both."""
    ends = BackEnds(stash=stash, persist=persist, generation=generation, clock=SteppedClock(), who="a test")
    return Catalog(ends, lambda: None)
