"""An open that goes on in another process: one task of a workflow fences, others copy, flip and announce.

The tasks hand on the epoch and the mark of each fence. A task may be killed, cleared, or run twice at once: it fails if
another open has fenced since, and the back end refuses a copy after the announcement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from tidemark.catalog.back_end import BackEnd, Handle
from tidemark.catalog.opening.opening import BackEnds, Direction, Opening, run_steps
from tidemark.catalog.opening.protocol import READ_TOMBSTONE
from tidemark.errors import FencedByEpoch, UsageError

START_OVER: Final = "start over from the task that fences: everything before it is void"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fences:
    """The fences of an open, as tasks hand them on. Not a secret: useless without access to the stores."""

    stash_epoch: int
    stash_mark: str
    persist_epoch: int
    persist_mark: str

    @classmethod
    def of(cls, opening: Opening) -> Fences:
        stash, persist = opening.stash, opening.persist
        return cls(
            stash_epoch=stash.epoch,
            stash_mark=stash.fence_mark,
            persist_epoch=persist.epoch,
            persist_mark=persist.fence_mark,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> Fences:
        """Read the result of ``to_json``; raise ``UsageError`` if ``found`` is something else."""
        try:
            return cls(
                stash_epoch=int(found["stash_epoch"]),
                stash_mark=str(found["stash_mark"]),
                persist_epoch=int(found["persist_epoch"]),
                persist_mark=str(found["persist_mark"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"these are no fences: {found!r}", hint="hand on what the task that fences said"
            ) from error


def resume(ends: BackEnds, direction: Direction, fences: Fences) -> Opening:
    """Take over the fences of an open in ``direction``, and read the tombstone. To be closed.

    Raises:
        FencedByEpoch: If a back end was opened since, or dropped and made anew: start over, with new fences.
        Others as ``BackEnd.join``.
    """
    # Read anew: the announcements on both sides tell whether the flip is in the audit already.
    heads = (ends.stash.head(), ends.persist.head())
    stash = _take_over(ends, ends.stash, fences.stash_epoch, fences.stash_mark)
    try:
        persist = _take_over(ends, ends.persist, fences.persist_epoch, fences.persist_mark)
    except BaseException:
        stash.close()
        raise
    opening = Opening(direction=direction, heads=heads, stash_handle=stash, persist_handle=persist)
    return run_steps(ends, opening, (READ_TOMBSTONE,))


def resume_on_stash(ends: BackEnds, direction: Direction, fences: Fences) -> Opening:
    """Take over the fence of the stash, and compare only the epoch of the persist catalog, whose items stay unread.

    For steps that do not touch the persist catalog: reading many items takes seconds. Else like ``resume``.
    """
    heads = (ends.stash.head(), ends.persist.head())
    _check_same(ends.persist.name, heads[1].epoch, fences.persist_epoch)
    stash = _take_over(ends, ends.stash, fences.stash_epoch, fences.stash_mark)
    opening = Opening(direction=direction, heads=heads, stash_handle=stash)
    return run_steps(ends, opening, (READ_TOMBSTONE,))


def _take_over(ends: BackEnds, end: BackEnd, epoch: int, mark: str) -> Handle:
    handle = end.join(generation=ends.generation, clock=ends.clock)
    try:
        _check_same(end.name, handle.epoch, epoch)
        if handle.fence_mark != mark:
            raise FencedByEpoch(f"the {end.name} was dropped and made anew since this open fenced it", hint=START_OVER)
    except BaseException:
        handle.close()
        raise
    return handle


def _check_same(name: str, found: int | None, epoch: int) -> None:
    if found != epoch:
        raise FencedByEpoch(
            f"the {name} is at epoch {found}, this open fenced it at {epoch}: somebody opened it since",
            hint=START_OVER,
        )
