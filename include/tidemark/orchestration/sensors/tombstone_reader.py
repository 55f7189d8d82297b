"""The tombstone as Airflow sees it: which back end of the system's own catalog is the truth, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidemark.catalog.back_end import Head
from tidemark.catalog.items.data_versions import check_generation
from tidemark.errors import NotPossible, Uninitialized


@dataclass(frozen=True, slots=True)
class SeenTombstone:
    """The tombstone and the stash's epoch of one instant; stale ever after.

    ``value`` is None while it was never set, True while the persist catalog is the truth, False once the stash is the
    truth again.
    """

    value: bool | None
    epoch: int

    @property
    def facts(self) -> dict[str, Any]:
        return {"tombstone": self.value, "epoch": self.epoch, "truth": "persist" if self.value else "stash"}

    @classmethod
    def parse(cls, facts: Mapping[str, Any]) -> SeenTombstone:
        """Read back what ``facts`` says."""
        return cls(facts["tombstone"], facts["epoch"])


def check_transition(before: SeenTombstone, now: SeenTombstone) -> None:
    """Raise ``NotPossible`` for a change that no open makes: the stash is another one, or was restored."""
    if now.epoch < before.epoch or (now.value is None and before.value is not None):
        raise NotPossible(
            f"the stash went from epoch {before.epoch}, tombstone {before.value}, to {now.epoch}, {now.value}",
            hint="it was restored, or dropped and made anew: see `tidemark catalog status` before anything else",
        )


def see_tombstone(head: Head, generation: int, before: SeenTombstone | None = None) -> SeenTombstone:
    """Return the tombstone in the ``head`` of the stash, for a deployment of ``generation``.

    ``before`` is an earlier state in the same wait.

    Raises:
        Uninitialized: If nobody ever opened the catalog here: there is nothing to wait for yet.
        NotPossible: If no open leads from the state before to the present one.
        FencedByGeneration: If a newer deployment leads.
    """
    if head.epoch is None or not head.is_initialized:
        raise Uninitialized(
            "the stash was never opened: that its tombstone is unset tells nothing",
            hint="check TIDEMARK_STASH_URI, or open the catalog: tidemark catalog open",
        )
    check_generation(head.config, generation, where="the stash")
    seen = SeenTombstone(head.tombstone, head.epoch)
    if before is not None:
        check_transition(before, seen)
    return seen
