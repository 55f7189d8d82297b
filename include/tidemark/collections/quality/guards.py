"""Guards: rules over counts that must hold before corrections are written; samples come from the caller.

Each function raises ``GuardRefused``, or ``ForeignCommit``, if its guard does not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from tidemark.collections.declarations.collection import OnForeignCommit
from tidemark.errors import ForeignCommit, GuardRefused

if TYPE_CHECKING:
    from tidemark.collections.declarations.collection import Declaration, Guards
    from tidemark.iceberg.shard.foreign_commits import ForeignCommits

SAMPLE_ROWS = 10
SAMPLE_FILE = "_file"  # the file of a row in a sample; no column of a user

Sample = list[dict[str, object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Guards that a manual run sets for itself alone; None: as declared."""

    max_delete_ratio: float | None = None
    allow_empty: bool | None = None

    @property
    def are_given(self) -> bool:
        """Whether the run has any: a comparison alone sees what guards say, and what it finds holds for this run."""
        return self != Overrides()

    def apply(self, guards: Guards) -> Guards:
        """Return the guards of this run."""
        return guards.model_copy(update=self.to_json())

    def to_json(self) -> dict[str, object]:
        """Return the overridden guards, for the report."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Numbers of rows in a comparison; in the slice only, if the run has one."""

    source: int
    stored: int
    inserted: int = 0
    retracted: int = 0
    vanished: int = 0  # keys that the source no longer has; of a multiset, retracted minus inserted rows
    foreign: int = 0  # rows that other engines wrote, which a reset drops


def check_foreign_commits(foreign: ForeignCommits | None, declaration: Declaration) -> None:
    """Refuse to drop what another engine wrote, if ``on_foreign_commit: fail`` is declared."""
    if foreign and declaration.on_foreign_commit is OnForeignCommit.FAIL:
        raise ForeignCommit(
            f"another engine wrote to {declaration.name!r}: {foreign}",
            hint="take the rows out or into the source, or set `on_foreign_commit: reset`",
        )


def check_null_keys(count: int, *, key: Sequence[str], sample: Sample, also: GuardRefused | None = None) -> None:
    """Refuse source rows without a key; ``also`` is what else is wrong with the keys, to be told in one message."""
    if not count:
        return
    refusal = GuardRefused(
        f"{count} source rows have a NULL in their key ({', '.join(key)})",
        hint="repair the source, or set `guards: {on_null_key: drop}`",
        sample=sample,
    )
    if also is None:
        raise refusal
    half = SAMPLE_ROWS // 2
    raise GuardRefused(
        f"{refusal}; and {also}",
        hint=f"{refusal.hint}; of the others {also.hint}",
        sample=[*sample[:half], *also.sample[:half]],
    )


def check_duplicate_keys(keys: int, rows: int, *, key: Sequence[str], sample: Sample) -> None:
    """Refuse ``keys`` source keys that occur more than once, on ``rows`` rows."""
    if keys:
        raise GuardRefused(
            f"{keys} keys ({', '.join(key)}) occur more than once in the source, on {rows} rows",
            hint="repair the source or the key, or set `guards: {on_duplicate_key: {first_by: COLUMN}}`",
            sample=sample,
        )


def check_not_empty(counts: Counts, guards: Guards, *, is_scoped: bool) -> None:
    """Refuse an empty source: most often the process that fills the source has failed.

    A slice may be empty on both sides: days without data are normal.
    """
    if counts.source or guards.allow_empty or (is_scoped and not counts.stored):
        return
    where = "the source has no rows in this slice" if is_scoped else "the source has no rows"
    raise GuardRefused(
        f"{where}, {counts.stored} are stored",
        hint="if that is right, allow it for this run: `--allow-empty`, in Airflow and Python `allow_empty`",
    )


def check_corrections(counts: Counts, guards: Guards, *, sample: Callable[[], Sample]) -> None:
    """Check corrections by every guard on counts. To add a guard: write a function below and call it here."""
    check_delete_ratio(counts, guards, sample=sample)


def check_delete_ratio(counts: Counts, guards: Guards, *, sample: Callable[[], Sample]) -> None:
    """Refuse corrections that would remove too large a share of the visible rows.

    An empty source that was allowed passes: then all rows may go. ``sample`` fetches rows that would vanish, and is
    called only to refuse.
    """
    vanishing, visible = counts.vanished + counts.foreign, counts.stored + counts.foreign
    if not counts.source or vanishing <= guards.max_delete_ratio * visible:
        return
    foreign = f" ({counts.foreign} of them written by other engines)" if counts.foreign else ""
    raise GuardRefused(
        f"{vanishing} of {visible} stored rows{foreign} would vanish, a share of {vanishing / visible:.3f}; "
        f"max_delete_ratio is {guards.max_delete_ratio}",
        hint="look at the source; if that is right, raise it for this run: `--max-delete-ratio`, in Airflow "
        "and Python `max_delete_ratio`",
        sample=sample(),
    )
