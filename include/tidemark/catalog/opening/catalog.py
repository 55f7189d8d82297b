"""The catalog as everybody uses it: two back ends, of which one is the truth.

Opening makes a new leader; it is rare, and done by a person or a promotion. Tasks join. A dry run does what an open
would do, on savepoints of both back ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidemark.catalog.back_end import Head, OpenMode
from tidemark.catalog.items.kinds import CATALOG_KIND, CatalogKind
from tidemark.catalog.opening.combined_join import JOIN
from tidemark.catalog.opening.dry_run import MigrationReport, report_of
from tidemark.catalog.opening.live_leader import check_silence
from tidemark.catalog.opening.protocol import (
    ANNOUNCE,
    FENCE,
    FENCE_PERSIST,
    FENCE_STASH,
    PROTOCOL,
    READ_HEADS,
    READ_TOMBSTONE,
    BackEnds,
    Direction,
    Opening,
    run_steps,
)
from tidemark.catalog.opening.truth import TruthHead, read_truth
from tidemark.catalog.persist.persist import PersistCatalog
from tidemark.catalog.stash.stash import Stash
from tidemark.errors import ConflictsUnsettled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tidemark.catalog.back_end import Handle
    from tidemark.catalog.opening.protocol import Step
    from tidemark.clock import Clock
    from tidemark.settings import Settings


@dataclass(frozen=True, slots=True)
class CombinedCatalog:
    """Both back ends and who uses them; opens nothing before it is asked to."""

    ends: BackEnds
    last_commit_ms: Callable[[], int | None]  # of the persist catalog, see live_leader

    @classmethod
    def of(cls, settings: Settings, *, clock: Clock, who: str = "") -> CombinedCatalog:
        """Return the catalog that the settings name; ``who`` goes into its audit.

        Raises:
            ConfigurationInvalid: If the stash's URI is malformed.
        """
        persist = PersistCatalog(settings)
        ends = BackEnds(stash=Stash.of(settings), persist=persist, generation=settings.generation, clock=clock, who=who)
        return cls(ends, persist.last_commit_ms)

    def truth(self) -> TruthHead:
        """Return what can be told before opening; see ``heads``."""
        return read_truth(self.ends.stash, self.ends.persist)

    def open(self, direction: Direction | None = None, *, is_forced: bool = False) -> Opening:
        """Fence everybody else, make the back end that ``direction`` names the truth, and lead; to be closed.

        Args:
            direction: Which way; None: what is stored as ``catalog_kind``, else the truth stays where it is.
            is_forced: Open in an emergency although a leader may live on the persist catalog.

        Raises:
            Refused: If it is an emergency and a leader may live.
            Fenced: If another opener came in between, or a newer deployment leads.
            Others as ``BackEnd.open`` and the methods of ``Handle``.
        """
        if direction is None and self.truth().catalog_kind is CatalogKind.EMERGENCY_STASH:
            direction = Direction.EMERGENCY
        if direction is Direction.EMERGENCY and not is_forced:
            self._check_silence()
        if direction is not None:
            return run_steps(self.ends, Opening(direction=direction), PROTOCOL[direction])
        # Which way is decided under the fences: before them, somebody else may be about to move the truth.
        opening = run_steps(self.ends, Opening(direction=Direction.ROLLBACK), FENCE)
        try:
            opening = replace(opening, direction=_stored_direction(opening))
        except BaseException:
            opening.close()
            raise
        return run_steps(self.ends, opening, PROTOCOL[opening.direction][len(FENCE) :])

    def join(self) -> Handle:
        """Take the present leader's place in the truth, for a task; fenced by the next open. To be closed.

        Raises:
            StaleState: If an open is under way, or died: try again, or open.
            Others as ``BackEnd.join``.
        """
        return run_steps(self.ends, Opening(direction=Direction.ROLLBACK), JOIN).truth

    def dry_run(self, direction: Direction | None = None) -> MigrationReport:
        """Do what ``open`` would do, on savepoints of both back ends, and report it; nothing durable is touched.

        A rollback with a persist catalog that was never initialised looks at the stash alone, a migration with such a
        stash at the persist catalog alone.

        The persist catalog may be lost, damaged or silent in an emergency, which does not look at it.

        Raises:
            NotWritable: If what would have to be initialised first is needed.
        """
        wanted = direction or self.truth().direction
        ends = replace(self.ends, mode=OpenMode.SAVEPOINT)
        looks = [step for step in PROTOCOL[wanted] if step is READ_HEADS]
        opening = run_steps(ends, Opening(direction=wanted), looks)
        opening = run_steps(ends, opening, _savepoints(opening))
        try:
            done = {READ_HEADS, FENCE_STASH, FENCE_PERSIST, READ_TOMBSTONE, ANNOUNCE}
            rest = [step for step in PROTOCOL[wanted] if step not in done]
            return report_of(ends, opening, [] if opening.stash_handle is None else rest)
        finally:
            opening.close()

    def _check_silence(self) -> None:
        """Refuse an emergency while somebody may be at work on a persist catalog that is, or may be, the truth."""
        stash = self.ends.stash.head()
        if stash.tombstone or not stash.is_initialized:  # one that is lost tells nothing of the truth
            check_silence(self.last_commit_ms, now_ms=self.ends.clock.now_ms())


def _savepoints(opening: Opening) -> Sequence[Step]:
    """Return the steps of a dry run that look at the back ends which the open in this direction needs."""
    if opening.heads is None:  # an emergency, which reads none
        return (FENCE_STASH, READ_TOMBSTONE)
    stash, persist = opening.heads
    if opening.direction is Direction.ROLLBACK and not persist.is_initialized:
        return (FENCE_STASH, READ_TOMBSTONE)
    if opening.direction is Direction.MIGRATE and not stash.is_initialized:
        return (FENCE_PERSIST,)
    return (FENCE_STASH, FENCE_PERSIST, READ_TOMBSTONE)


def _stored_direction(opening: Opening) -> Direction:
    """Return the way of an open without a word from its caller, from what is stored under both fences."""
    truth = opening.persist if opening.tombstone else opening.stash
    stored = truth.transact(lambda transaction: transaction.config(CATALOG_KIND))
    config = {} if stored is None else {CATALOG_KIND: stored}
    direction = TruthHead(truth.name, Head(truth.epoch, config), opening.tombstone).direction
    if direction is Direction.EMERGENCY:  # which begins in another way
        raise ConflictsUnsettled("an emergency was asked for while the catalog was opened", hint="run it again")
    return direction
