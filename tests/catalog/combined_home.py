"""A home with both back ends of the catalog, real ones, and short ways to write, read and look past their code."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from include.catalog.back_end import OpenMode
from include.catalog.combined import CombinedCatalog
from include.catalog.combined_open import PROTOCOL, BackEnds, Direction, Opening, run_steps
from include.catalog.item_kinds import SETTING, NamedKey, SettingValue
from include.clock import SteppedClock

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from include.catalog.back_end import Handle
    from include.catalog.combined_open import Step
    from include.catalog.transaction import Transaction
    from include.settings import Settings


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

    @property
    def catalog(self) -> CombinedCatalog:
        return CombinedCatalog.of(self.settings, clock=SteppedClock(), who="a test")

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
        end = self.ends.stash if name == "stash" else self.ends.persist
        with end.open(OpenMode.READ_ONLY, generation=self.settings.generation, clock=SteppedClock()) as handle:
            return names(handle)

    def truth(self) -> str:
        return self.catalog.truth().name

    def epochs(self) -> tuple[int | None, int | None]:
        return self.ends.stash.head().epoch, self.ends.persist.head().epoch

    def dumps(self) -> tuple[list[str], list[str]]:
        """Every durable record of both."""
        return list(self.ends.stash.dump()), list(self.ends.persist.dump())
