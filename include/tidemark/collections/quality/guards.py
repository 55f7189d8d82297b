"""Guards: what must hold before corrections are written. Pure rules over counts; samples come from the caller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemark.errors import GuardRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tidemark.collections.declarations.collection import Guards

SAMPLE_ROWS = 10

Sample = list[dict[str, object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """What a manual run sets for itself alone; None: as declared."""

    max_delete_ratio: float | None = None
    allow_empty: bool | None = None

    def apply(self, guards: Guards) -> Guards:
        """Return the guards that hold for this run."""
        return guards.model_copy(update=self.to_json())

    def to_json(self) -> dict[str, object]:
        """Return what is overridden, for the report."""
        values: Mapping[str, object] = {"max_delete_ratio": self.max_delete_ratio, "allow_empty": self.allow_empty}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What a comparison found, in rows; of the scope only, if there is one.

    ``vanished`` are keys that are gone, or, of a multiset, retracted less inserted rows: a row that only changed is
    none. ``foreign`` are rows that other engines wrote, which a reset drops.
    """

    source: int
    stored: int
    inserted: int = 0
    retracted: int = 0
    vanished: int = 0
    foreign: int = 0


def check_null_keys(count: int, *, key: Sequence[str], sample: Sample) -> None:
    """Refuse source rows without a key.

    Raises:
        GuardRefused: If ``count`` is not 0.
    """
    if count:
        raise GuardRefused(
            f"{count} source rows have a NULL in their key ({', '.join(key)})",
            hint="repair the source, or set `on_null_key: drop`",
            sample=sample,
        )


def check_duplicate_keys(keys: int, rows: int, *, key: Sequence[str], sample: Sample) -> None:
    """Refuse source keys that occur more than once: ``keys`` of them, on ``rows`` rows.

    Raises:
        GuardRefused: If ``keys`` is not 0.
    """
    if keys:
        raise GuardRefused(
            f"{keys} keys ({', '.join(key)}) occur more than once in the source, on {rows} rows",
            hint="repair the source or the key, or set `on_duplicate_key: first_by: COLUMN`",
            sample=sample,
        )


def check_not_empty(counts: Counts, guards: Guards, *, is_scoped: bool) -> None:
    """Refuse an empty source: most often it means that whatever fills it has failed.

    A slice may be empty on both sides: days without data are no accident.

    Raises:
        GuardRefused: If there is no source row and the guard does not allow it.
    """
    if counts.source or guards.allow_empty or (is_scoped and not counts.stored):
        return
    where = "the source has no rows in this slice" if is_scoped else "the source has no rows"
    raise GuardRefused(
        f"{where}, {counts.stored} are stored",
        hint="if that is right, allow it for this run (`allow_empty`)",
    )


def check_corrections(counts: Counts, guards: Guards, *, sample: Callable[[], Sample]) -> None:
    """Check what was found against every guard on counts; a new one is a function below, and a line here.

    Raises:
        GuardRefused: By the first guard that does not hold.
    """
    check_delete_ratio(counts, guards, sample=sample)


def check_delete_ratio(counts: Counts, guards: Guards, *, sample: Callable[[], Sample]) -> None:
    """Refuse when too large a share of what readers see would vanish.

    An empty source that was let through is not asked again here: allowing it means allowing that all rows go.

    Args:
        counts: What was found.
        guards: What is allowed.
        sample: Fetches rows that would vanish; called only to refuse.

    Raises:
        GuardRefused: If the ratio is above the guard's.
    """
    gone, shown = counts.vanished + counts.foreign, counts.stored + counts.foreign
    if not counts.source or gone <= guards.max_delete_ratio * shown:
        return
    foreign = f" ({counts.foreign} of them written by other engines)" if counts.foreign else ""
    raise GuardRefused(
        f"{gone} of {shown} stored rows{foreign} would vanish, a share of {gone / shown:.3f}; "
        f"max_delete_ratio is {guards.max_delete_ratio}",
        hint="look at the source; if that is right, raise `max_delete_ratio` for this run",
        sample=sample(),
    )
