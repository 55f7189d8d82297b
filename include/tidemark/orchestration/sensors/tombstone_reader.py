"""The tombstone as Airflow sees it: which back end of the system's own catalog is the truth, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tidemark.catalog.items.data_versions import check_generation
from tidemark.catalog.stash.stash import Stash, StashWatch
from tidemark.errors import NotPossible, Uninitialized
from tidemark.orchestration.connections import load_settings
from tidemark.settings import Settings


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


class TombstoneReader:
    """Looks again and again through one connection; after a failure it asks for the settings anew."""

    def __init__(self, before: SeenTombstone | None = None, load: Callable[[], Settings] = load_settings) -> None:
        """Connect to nothing yet; ``before`` is an earlier state in the same wait, ``load`` reads the settings."""
        self._before, self._load = before, load
        self._generation = 0
        self._watch: StashWatch | None = None

    def read(self) -> SeenTombstone:
        """Look at the stash, without a JVM and without pyiceberg, in a few ms.

        Raises:
            ConfigurationInvalid: If a connection is missing.
            Uninitialized: If nobody ever opened the catalog here: there is nothing to wait for yet.
            NotPossible: If no open leads from the look before to the present state.
            FencedByGeneration: If a newer deployment leads.
            Unreachable: If the stash does not answer.
        """
        try:
            if self._watch is None:
                settings = self._load()
                self._watch, self._generation = Stash.of(settings).watch(), settings.generation
            head = self._watch.head()
            if head.epoch is None or not head.is_initialized:
                raise Uninitialized(
                    "the stash was never opened: that its tombstone is unset tells nothing",
                    hint="check TIDEMARK_STASH_URI, or open the catalog: tidemark catalog open",
                )
            check_generation(head.config, self._generation, where="the stash")
            seen = SeenTombstone(head.tombstone, head.epoch)
            if self._before is not None:
                check_transition(self._before, seen)
        except BaseException:
            self.close()
            raise
        self._before = seen
        return seen

    def close(self) -> None:
        """Close the connection; a later look makes a new one."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
