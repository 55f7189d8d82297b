"""The catalog as everybody uses it: two back ends, and one of them is the truth.

An open makes a new leader; it is rare, and done by a person or a promotion. Tasks join. A dry run does what an open
would do, on savepoints of both back ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

from tidemark.catalog.back_end import Handle, Head, OpenMode, closed_on_error
from tidemark.catalog.items.kinds import CATALOG_KIND, CatalogKind
from tidemark.catalog.opening.dry_run import MigrationReport, report_of
from tidemark.catalog.opening.opening import BackEnds, Direction, Opening, Step, run_steps
from tidemark.catalog.opening.protocol import (
    ANNOUNCE,
    FENCE,
    FENCE_PERSIST,
    FENCE_STASH,
    JOIN,
    PROTOCOL,
    READ_HEADS,
    READ_TOMBSTONE,
)
from tidemark.catalog.opening.truth import TruthHead, read_truth
from tidemark.catalog.persist.persist import PersistCatalog
from tidemark.catalog.stash.stash import Stash
from tidemark.clock import Clock
from tidemark.errors import ConflictsUnsettled, CorruptState, Refused, Unreachable
from tidemark.iceberg.leases.holding import held_leases
from tidemark.iceberg.leases.lease import Watch
from tidemark.iceberg.leases.watching import watch_leases
from tidemark.settings import Settings

FRESH_FOR_MS: Final = 5 * 60_000  # longer than the pauses between commits of a busy scheduler


@dataclass(frozen=True, slots=True)
class Catalog:
    """Both back ends and who uses them; making one opens nothing."""

    ends: BackEnds
    last_commit_ms: Callable[[], int | None]  # of the persist catalog, since the Unix epoch; None if it has no commit
    last_writer: Callable[[], str | None] = lambda: None  # of that commit
    watch_others: Callable[[], Watch] = Watch  # which leases of other processes are live

    @classmethod
    def of(cls, settings: Settings, *, clock: Clock, who: str = "") -> Catalog:
        """Return the catalog that the settings name; ``who`` goes into its audit. Raises as ``Stash.of``."""
        persist = PersistCatalog(settings)
        ends = BackEnds(stash=Stash.of(settings), persist=persist, generation=settings.generation, clock=clock, who=who)

        def watch_others() -> Watch:
            own = {lease.id for lease in held_leases(settings)}
            return watch_leases(settings, of=lambda lease: lease.id not in own, until_live=True)

        return cls(ends, persist.last_commit_ms, persist.last_writer, watch_others)

    def truth(self) -> TruthHead:
        return read_truth(self.ends.stash, self.ends.persist)

    def open(self, direction: Direction | None = None, *, is_forced: bool = False) -> Opening:
        """Fence everybody else, make the back end that ``direction`` names the truth, and become the leader.

        The caller closes the result. Without a ``direction`` the stored ``catalog_kind`` decides, else the truth stays
        where it is. ``is_forced`` opens in an emergency although a leader may live on the persist catalog.

        Raises:
            Refused: If the direction is an emergency and a leader may live.
            Fenced: If somebody else opened the catalog in between, or a newer deployment leads.
            Others as ``BackEnd.open`` and the methods of ``Handle``.
        """
        if direction is None and self.truth().catalog_kind is CatalogKind.EMERGENCY_STASH:
            direction = Direction.EMERGENCY
        if direction is Direction.EMERGENCY and not is_forced:
            self._check_silence()
        if direction is not None:
            return run_steps(self.ends, Opening(direction=direction), PROTOCOL[direction])
        # Decide the direction under the fences: before them, somebody else may be about to move the truth.
        opening = run_steps(self.ends, Opening(direction=Direction.ROLLBACK), FENCE)
        with closed_on_error(opening):
            opening = replace(opening, direction=_stored_direction(opening))
        return run_steps(self.ends, opening, PROTOCOL[opening.direction][len(FENCE) :])

    def join(self) -> Handle:
        """Take the present leader's place in the truth, for a task; fenced by the next open. To be closed.

        Raises:
            StaleState: If an open is under way, or died: try again, or open.
            Others as ``BackEnd.join``.
        """
        return run_steps(self.ends, Opening(direction=Direction.ROLLBACK), JOIN).truth

    def dry_run(self, direction: Direction | None = None) -> MigrationReport:
        """Do on savepoints of both back ends what ``open`` would do, and report it; nothing durable changes.

        With a persist catalog that was never initialised, a rollback reads the stash alone; with such a stash, a
        migration reads the persist catalog alone. An emergency does not read the persist catalog, which may be lost,
        damaged or silent.

        Raises ``NotWritable`` if the dry run needs a side that was never initialised.
        """
        wanted = direction or self.truth().direction
        ends = replace(self.ends, mode=OpenMode.SAVEPOINT)
        first = [step for step in PROTOCOL[wanted] if step is READ_HEADS]
        opening = run_steps(ends, Opening(direction=wanted), first)
        with closing(run_steps(ends, opening, _savepoints(opening))) as opening:
            done = {READ_HEADS, FENCE_STASH, FENCE_PERSIST, READ_TOMBSTONE, ANNOUNCE}
            rest = [step for step in PROTOCOL[wanted] if step not in done]
            return report_of(ends, opening, [] if opening.stash_handle is None else rest)

    def _check_silence(self) -> None:
        """Refuse an emergency while somebody may be working on a persist catalog that is, or may be, the truth.

        An emergency does not fence the persist catalog. A live lease shows that an application runs, however long it
        computes. Every acknowledged change is a commit there, so a new commit, too, shows that a leader or a task
        lives, unless the lease of its process was seen to run out. An old commit and no lease prove nothing: the
        person who opens in an emergency has to stop the old processes.
        """
        stash = self.ends.stash.head()
        if stash.is_initialized and not stash.tombstone:  # a lost stash does not tell which side is the truth
            return
        try:
            watch = self.watch_others()
            commit_ms, writer = self.last_commit_ms(), self.last_writer()
        except (Unreachable, CorruptState) as error:
            raise Refused(
                f"whether a leader lives on the persist catalog cannot be told: {error}",
                hint="stop every process of the deployment, then run it again with --force",
            ) from error
        if watch.live:
            raise Refused(
                f"at work are {'; '.join(map(str, watch.live.values()))}: what they write to the persist catalog from "
                "now on would be lost, for an emergency does not fence it",
                hint="roll back instead; or stop every process of the deployment, wait until its lease has run out "
                "(`tidemark catalog status`), and run it again",
            )
        if any(lease.writer == writer and lease.was_held_at(commit_ms) for lease in watch.lapsed.values()):
            return
        age_ms = None if commit_ms is None else self.ends.clock.now_ms() - commit_ms
        if age_ms is not None and age_ms < FRESH_FOR_MS:  # a commit in the future is fresh, too
            raise Refused(
                f"a leader of the persist catalog was heard of {max(0, age_ms) // 1000} s ago: what it writes "
                "from now on would be lost, for an emergency does not fence it",
                hint="roll back instead; or stop every process of the deployment, then run it again with --force",
            )


def _savepoints(opening: Opening) -> Sequence[Step]:
    """Return the steps that open savepoints of the back ends which an open in this direction needs."""
    if opening.heads is None:  # an emergency
        return (FENCE_STASH, READ_TOMBSTONE)
    stash, persist = opening.heads
    if opening.direction is Direction.ROLLBACK and not persist.is_initialized:
        return (FENCE_STASH, READ_TOMBSTONE)
    if opening.direction is Direction.MIGRATE and not stash.is_initialized:
        return (FENCE_PERSIST,)
    return (FENCE_STASH, FENCE_PERSIST, READ_TOMBSTONE)


def _stored_direction(opening: Opening) -> Direction:
    """Return the direction that is stored in the truth, read under both fences."""
    truth = opening.persist if opening.tombstone else opening.stash
    stored = truth.transact(lambda transaction: transaction.config(CATALOG_KIND))
    config = {} if stored is None else {CATALOG_KIND: stored}
    direction = TruthHead(truth.name, Head(truth.epoch, config), opening.tombstone).direction
    if direction is Direction.EMERGENCY:  # which begins with other steps
        raise ConflictsUnsettled("an emergency was asked for while the catalog was opened", hint="run it again")
    return direction
