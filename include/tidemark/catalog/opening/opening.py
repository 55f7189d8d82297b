"""What an open of the catalog works on: both back ends, the direction, and what the opener knows after each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from tidemark.catalog.back_end import BackEnd, Handle, Head, OpenMode, Replaced
from tidemark.catalog.items.contents import Contents
from tidemark.catalog.items.kinds import CatalogKind
from tidemark.clock import Clock
from tidemark.fail_points import fail_point


class Direction(StrEnum):
    """Which back end an open leaves as the truth."""

    MIGRATE = "migrate"  # the persist catalog
    ROLLBACK = "rollback"  # the stash
    EMERGENCY = "emergency"  # the stash, as the last rollback or migration left it; the persist side is not read

    @property
    def truth(self) -> str:
        """The name of the back end that is the truth after an open in this direction."""
        return "persist" if self is Direction.MIGRATE else "stash"

    @property
    def catalog_kind(self) -> CatalogKind:
        """The ``catalog_kind`` that an open in this direction stores; the next open must not repeat an emergency."""
        return CatalogKind.PERSIST if self is Direction.MIGRATE else CatalogKind.STASH


@dataclass(frozen=True, slots=True, kw_only=True)
class BackEnds:
    """Both back ends and the process that opens them."""

    stash: BackEnd
    persist: BackEnd
    generation: int
    clock: Clock
    who: str = ""  # the person or process, for the audit
    mode: OpenMode = OpenMode.WRITABLE

    def truth(self, *, tombstone: bool | None) -> BackEnd:
        """Return the back end that is the truth under this value of the tombstone."""
        return self.persist if tombstone else self.stash


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The state of an open after some steps; later steps need nothing else."""

    direction: Direction
    heads: tuple[Head, Head] | None = None  # of the stash and of the persist catalog, before anything was fenced
    stash_handle: Handle | None = None
    persist_handle: Handle | None = None
    tombstone: bool | None = None
    contents: Contents | None = None  # of the truth, from the step that reads them to the step that writes them
    replaced: Replaced | None = None  # what the copy changed; None if there was nothing to copy
    flipped: bool = False
    is_announced: bool = False

    @property
    def stash(self) -> Handle:
        if self.stash_handle is None:
            raise TypeError("the stash is not open yet")  # a list of steps that is out of order
        return self.stash_handle

    @property
    def persist(self) -> Handle:
        if self.persist_handle is None:
            raise TypeError("the persist catalog is not open yet")
        return self.persist_handle

    @property
    def source(self) -> Handle:
        """The handle of the side that a copy in this direction reads."""
        return self.stash if self.direction is Direction.MIGRATE else self.persist

    @property
    def truth(self) -> Handle:
        """The handle of the side that is the truth after the last step."""
        return self.persist if self.direction is Direction.MIGRATE else self.stash

    @property
    def has_arrived(self) -> bool:
        """Whether the tombstone that was read says that this direction's back end is the truth already."""
        return bool(self.tombstone) is (self.direction is Direction.MIGRATE)

    def close(self) -> None:
        for handle in (self.stash_handle, self.persist_handle):
            if handle is not None:
                handle.close()


class Step(NamedTuple):
    """One step: its name, what it does, and whether it has anything to do."""

    name: str
    run: Callable[[BackEnds, Opening], Opening]
    applies: Callable[[Opening], bool] = lambda _opening: True

    @property
    def fail_point(self) -> str:
        return f"catalog.after-{self.name}"


def run_steps(ends: BackEnds, opening: Opening, steps: Sequence[Step]) -> Opening:
    """Run ``steps`` one after the other; a step that fails closes both back ends.

    Raises:
        Fenced: If another opener came in between; start over.
        Others as the methods of ``BackEnd`` and ``Handle``.
    """
    try:
        for step in steps:
            if step.applies(opening):
                opening = step.run(ends, opening)
                fail_point(step.fail_point)
    except BaseException:  # each step returns a new `opening`: close the newest
        opening.close()
        raise
    return opening
