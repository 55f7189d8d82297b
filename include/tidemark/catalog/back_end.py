"""The interface of a back end of the catalog; the opening knows nothing else of the stash and the persist catalog.

**Epochs.** The first writable open of a new back end has epoch 2, as if 1 had been there before; each further one has
``max(stored + 1, epoch_lower_bound)``. Nothing else moves the epoch.

**Fences.** Every operation of a handle, reads too, checks in the same transaction or at the same upper that nobody has
opened the back end writable since: ``FencedByGeneration`` if a larger generation did, else ``FencedByEpoch``. A fenced
handle stays fenced.

**Modes.** See ``OpenMode``. A handle is used by one thread at a time.

**Tombstone.** The config key ``TOMBSTONE`` lives in the stash alone: the persist catalog never holds it. A flip is an
ordinary transaction of the stash (``Transaction.set_config``), or part of its ``replace_all``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, Self, TypeVar

from tidemark.catalog.items.contents import Contents
from tidemark.catalog.items.item import Change
from tidemark.catalog.items.kinds import DATA_VERSION_KEY, GENERATION_KEY, TOMBSTONE
from tidemark.catalog.items.transaction import Transaction
from tidemark.clock import Clock
from tidemark.errors import CorruptState, NotWritable, Uninitialized

R = TypeVar("R")


class OpenMode(StrEnum):
    """How a back end is open.

    - ``WRITABLE``: raises the epoch and so fences everybody else; initialises an empty back end, runs data migrations.
    - ``SAVEPOINT``: a dry run. Only the handle itself sees its migrations and writes, until ``close``. The handle does
      not see later commits of others, and so it is never fenced. Locks nobody out.
    - ``READ_ONLY``: sees later commits, is fenced by a later open, refuses every change.
    """

    WRITABLE = "writable"
    SAVEPOINT = "savepoint"
    READ_ONLY = "read-only"


@dataclass(frozen=True, slots=True)
class Head:
    """The part of a back end that can be read without opening it, all as of one instant.

    ``epoch`` is None if the back end was never opened writable (its tables or its shard may be missing altogether);
    ``config`` is then empty. An epoch without a data version: the first open crashed between fencing and initialising.
    ``deployments`` are the stored items of kind ``deployment`` by key. They hold the mode, which is read more often
    than anything else (``deployment/modes.py``).
    """

    epoch: int | None
    config: Mapping[str, int]
    deployments: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_initialized(self) -> bool:
        return DATA_VERSION_KEY in self.config

    @property
    def tombstone(self) -> bool | None:
        """The stash's tombstone: True if the persist catalog is the truth, False or None (unset) if the stash is."""
        value = self.config.get(TOMBSTONE)
        return None if value is None else bool(value)

    def deployment_generation(self, where: str) -> int:
        """Return the generation that opened the back end ``where`` last. Raises ``Uninitialized`` without an open."""
        if GENERATION_KEY not in self.config:
            raise Uninitialized(f"{where} was never opened writable", hint="run `tidemark catalog open`")
        return self.config[GENERATION_KEY]


@dataclass(frozen=True, slots=True)
class Replaced:
    """The net insertions and retractions of a replacement of all items, 0 and 0 if nothing differed."""

    inserted: int
    retracted: int

    @classmethod
    def by(cls, changes: Sequence[Change]) -> Replaced:
        inserted = sum(change.diff > 0 for change in changes)
        return cls(inserted=inserted, retracted=len(changes) - inserted)


class Handle(Protocol):
    """An open back end; the caller closes it, or uses it as a context manager.

    Every method may raise ``Fenced`` (see the module), and if the store is lost for longer than retries last,
    ``Unreachable``, or ``CommitStateUnknown`` if nobody can tell whether a commit has landed.
    """

    @property
    def name(self) -> str:
        """``stash`` or ``persist``."""

    @property
    def mode(self) -> OpenMode:
        """The mode of the open; ``WRITABLE`` for a joined handle."""

    @property
    def generation(self) -> int:
        """The deployment that opened or joined."""

    @property
    def epoch(self) -> int:
        """The epoch that this handle holds: a writable open raised it, other opens and a join found it."""

    @property
    def fence_mark(self) -> str:
        """Differs for a fence of the same epoch in a back end that was dropped and made anew; not a secret."""

    @property
    def fence_damage(self) -> CorruptState | None:
        """Why nobody can join, although the fence stands and readers go on; None if nothing is wrong."""

    def snapshot(self) -> Contents:
        """Return the items of all kinds, the tombstone included, in contents that the caller may keep.

        Raises ``CorruptState`` if the multiplicity of an item is not 1, or a key has two values.
        """

    def stored_items(self) -> Sequence[Change]:
        """Return all items with their multiplicities; items of garbage may contradict each other."""

    def transact(self, change: Callable[[Transaction], R]) -> R:
        """Run ``change`` on a transaction over the present contents and commit the pending changes, all or nothing.

        ``change`` may be run several times, each time on new contents, so it must have no other effect; the result of
        the last run is returned. If nothing is pending, only the fence is checked. An error of ``change`` is passed on,
        and nothing is committed.

        Raises:
            NotWritable: If something is pending and the mode is read-only.
            CatalogOutOfSync: If others changed the contents in between and the back end does not run it again.
        """

    def replace_all(self, contents: Contents, *, tombstone: bool | None = None) -> Replaced:
        """Make the stored items equal to ``contents`` in one transaction, as net changes, whatever was there before.

        The tombstone is left out: one in ``contents`` is ignored, a stored one stays, unless ``tombstone`` is its value
        after the same transaction (for the stash; the persist catalog refuses it with ValueError). All other config
        of ``contents`` is copied, but for the deployment generation, which stays this handle's. See
        ``replacement_changes``.

        Raises:
            StaleState: If the stored config says that the open of this handle's epoch is complete (``LEADER_EPOCH``).
            NotWritable: If the mode is read-only and something differs.
            IncompatibleDataVersion: If ``contents`` are not of this program's data version.
        """

    def confirm_leadership(self) -> None:
        """Check the fence only."""

    def close(self) -> None:
        """Close, and discard the changes of a savepoint. May be called again."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Closable:
    """A handle that a ``with`` block closes. ``close`` has nothing to do unless a subclass holds something."""

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _SupportsClose(Protocol):
    def close(self) -> None: ...


@contextmanager
def closed_on_error(resource: _SupportsClose) -> Iterator[None]:
    """Close ``resource`` if the block fails. The caller never gets the resource, so only this block can close it."""
    try:
        yield
    except BaseException:
        resource.close()
        raise


class BackEnd(Protocol):
    """A back end that is not open; the constructor opens nothing.

    Every method may raise ``Unreachable``, within 5 s.
    """

    @property
    def name(self) -> str:
        """``stash`` or ``persist``."""

    def head(self) -> Head:
        """Return epoch and config without opening, creating or fencing anything, readable in any data version."""

    def open(self, mode: OpenMode, *, generation: int, clock: Clock, epoch_lower_bound: int = 0) -> Handle:
        """Open the back end for the deployment ``generation``; see ``OpenMode``.

        ``clock`` gives the times of transactions, which increase even if the clock goes back. A writable open takes no
        epoch below ``epoch_lower_bound``.

        Raises:
            FencedByGeneration: If a newer deployment opened the back end last; nothing was changed.
            NotWritable: If the mode is not ``WRITABLE`` and the back end is not initialised, or the mode is
                ``READ_ONLY`` and the items have to be migrated. Nothing was created.
            IncompatibleDataVersion: If the data version cannot be read or migrated; nothing was changed.
        """

    def join(self, *, generation: int, clock: Clock) -> Handle:
        """Take the present leader's epoch, for a task of its deployment: a ``WRITABLE`` handle that raised nothing.

        Raises:
            FencedByGeneration: If a newer deployment leads.
            NotWritable: If the back end is not initialised, has an older data version, or an older deployment leads.
            IncompatibleDataVersion: If the data version cannot be read or migrated.
        """

    def dump(self) -> Iterator[str]:
        """Yield every durable record as one line of JSON, fence, frontiers and updates included, in a fixed order.

        Needs no fence; all records are as of one instant. Two dumps are equal exactly when nothing durable changed in
        between. Yields nothing if the back end does not exist.
        """


def open_to_read(end: BackEnd, *, generation: int, clock: Clock) -> Handle:
    """Open a back end that nobody is to change; items of an older data version are migrated, in memory alone.

    Raises as ``BackEnd.open``: ``NotWritable`` if it was never opened writable.
    """
    try:
        return end.open(OpenMode.READ_ONLY, generation=generation, clock=clock)
    except NotWritable:  # perhaps because of an older data version
        return end.open(OpenMode.SAVEPOINT, generation=generation, clock=clock)
