"""An open that goes on in another process: one task of a workflow fences, others copy, flip and announce.

The tasks hand on the epoch and the mark of each fence. A task may be killed, cleared, or run twice at once: it fails if
another open has fenced since, and the back end refuses a copy after the announcement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from pydantic import TypeAdapter

from tidemark.catalog.back_end import BackEnd, Handle, closed_on_error
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
        """Read the result of ``to_json``. Raises ``UsageError`` if ``found`` is something else."""
        try:
            return TypeAdapter(cls).validate_python(dict(found))
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"these are no fences: {found!r}", hint="hand on what the task that fences said"
            ) from error


def resume(ends: BackEnds, direction: Direction, fences: Fences, *, stash_alone: bool = False) -> Opening:
    """Take over the fences of an open in ``direction``, and read the tombstone; the caller closes the result.

    ``stash_alone`` is for steps that do not touch the persist catalog: only its epoch is compared, because reading many
    items takes seconds.

    Raises:
        FencedByEpoch: If a back end was opened since, or dropped and made anew: start over, with new fences.
        Others as ``BackEnd.join``.
    """
    # Read anew: the announcements on both sides tell whether the flip is in the audit already.
    heads = (ends.stash.head(), ends.persist.head())
    if stash_alone:
        _check_same(ends.persist.name, heads[1].epoch, fences.persist_epoch)
    opening = Opening(
        direction=direction,
        heads=heads,
        stash_handle=_take_over(ends, ends.stash, fences.stash_epoch, fences.stash_mark),
    )
    if not stash_alone:
        with closed_on_error(opening):
            persist = _take_over(ends, ends.persist, fences.persist_epoch, fences.persist_mark)
        opening = replace(opening, persist_handle=persist)
    return run_steps(ends, opening, (READ_TOMBSTONE,))


def _take_over(ends: BackEnds, end: BackEnd, epoch: int, mark: str) -> Handle:
    handle = end.join(generation=ends.generation, clock=ends.clock)
    with closed_on_error(handle):
        _check_same(end.name, handle.epoch, epoch)
        if handle.fence_mark != mark:
            raise FencedByEpoch(f"the {end.name} was dropped and made anew since this open fenced it", hint=START_OVER)
    return handle


def _check_same(name: str, found: int | None, epoch: int) -> None:
    if found != epoch:
        raise FencedByEpoch(
            f"the {name} is at epoch {found}, this open fenced it at {epoch}: somebody opened it since", hint=START_OVER
        )
