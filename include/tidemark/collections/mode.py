"""Whether this deployment may write: one stored fact, switched by compare-and-set, audited, read in milliseconds.

Why a writer that joined before a switch to read-only cannot publish after the switch: a switch writes the mode first
and raises the token of every collection afterwards; a writer joins the token first and reads the mode afterwards
(``join_to_write``). A writer that still reads *read-write* read before the mode was written, so it joined before the
token was raised, and the publisher, which checks the token in the commit itself, fences the writer. In any other order
(tokens first, or mode read first) a writer could join between the two steps, neither informed nor fenced.

``Modes`` must guarantee that a read that begins after a switch has written returns that switch, or a later one. The
store of the mode may change in between; ``catalog/deployment/modes.py`` says why the guarantee holds all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from tidemark.collections.deployment import Deployment, Mode, StoredMode
from tidemark.errors import CorruptState, Fenced, ReadOnly, Refused, Sealed
from tidemark.fail_points import fail_point
from tidemark.iceberg.shard.token import Token

if TYPE_CHECKING:
    from tidemark.iceberg.commit.fences import Fence
    from tidemark.iceberg.commit.writer import Writer
    from tidemark.iceberg.shard.shard import Shard
    from tidemark.iceberg.shard.state import ShardState
    from tidemark.iceberg.shards import Shards

log = logging.getLogger(__name__)

FAIL_POINTS = ("mode.after-write", "mode.after-token")
SYSTEM, COLLECTIONS = "system", "collections"
TOGETHER = 100  # tokens raised in one transaction, which holds a lock, and whose metadata lie in memory


def mode_of(stored: StoredMode, generation: int) -> Mode:
    """Return the mode of a deployment of ``generation``; a deployment newer than the leading one only stages.

    Raises ``FencedByGeneration`` if a newer deployment leads.
    """
    if stored.generation > generation:
        raise Fenced.by(mine=Token(generation, 0), theirs=Token(stored.generation, 0), where="this installation")
    return stored.mode if stored.generation == generation else Mode.READ_ONLY


def read_mode(deployment: Deployment) -> Mode:
    """Return the mode of this deployment.

    Raises:
        FencedByGeneration: If a newer deployment leads.
        Others as ``Modes.read``.
    """
    return mode_of(deployment.modes.read(), deployment.generation)


def stands_by(deployment: Deployment) -> bool:
    """Tell whether an older deployment leads, of which this one must change nothing. Raises as ``read_mode``."""
    stored = deployment.modes.read()
    mode_of(stored, deployment.generation)  # raises if a newer deployment leads
    return stored.generation != deployment.generation


def join_to_write(shard: Shard, deployment: Deployment) -> tuple[Writer, Mode]:
    """Take the shard's token and then read the mode: only in this order the next switch fences the writer.

    Raises:
        FencedByGeneration: If a newer deployment owns the shard, or leads.
        Sealed: If nothing can be written to the shard any more.
        Others as ``Modes.read``.
    """
    from tidemark.iceberg.commit.writer import Writer  # noqa: PLC0415 - sensors read the mode without pyiceberg

    writer = Writer.join(shard, deployment.generation)
    mode = read_mode(deployment)
    if mode is Mode.READ_ONLY or writer.token.generation == deployment.generation:
        return writer, mode
    # The first writer of a deployment that leads raises the token, which fences the deployment before.
    writer = Writer.raise_token(shard, deployment.generation)
    return writer, read_mode(deployment)


def lead_to_write(shard: Shard, deployment: Deployment, *, what: str) -> Writer:
    """Join for a change that cannot be staged; ``what`` names the change in messages.

    Raises:
        ReadOnly: If the deployment is read-only.
        Others as ``join_to_write``.
    """
    writer, mode = join_to_write(shard, deployment)
    if mode is Mode.READ_ONLY:
        raise read_only(deployment.generation, f"{what} of {shard.name!r}", leads=not stands_by(deployment))
    return writer


def refuse_when_read_only(deployment: Deployment, what: str) -> None:
    """Refuse ``what`` early; only a courtesy, since the token of each commit fences anyway.

    Raises:
        ReadOnly: If the deployment is read-only.
        Others as ``read_mode``.
    """
    if read_mode(deployment) is Mode.READ_ONLY:
        raise read_only(deployment.generation, what, leads=not stands_by(deployment))


def read_only(generation: int, what: str, *, leads: bool = True) -> ReadOnly:
    """Build the error for ``what`` that the read-only deployment ``generation`` cannot do, whether it ``leads`` or not.

    The hint for one that stands by names the promotion: a switch of the mode is refused there.
    """
    again = "do it again after `tidemark mode read-write`"
    by_the_leader = "have the deployment that leads do it; `tidemark deployment promote` makes this one the leader"
    return ReadOnly(f"deployment {generation} is read-only: no {what}", hint=again if leads else by_the_leader)


def switch_mode(shards: Shards, deployment: Deployment, wanted: Mode, *, who: str, why: str) -> StoredMode:
    """Make ``wanted`` the mode of this deployment, unless it stands by, and fence every writer that joined before.

    Raises:
        Refused: If an older deployment leads, and this one is to write: that is a promotion, which looks first.
        Others as ``stands_by`` and ``set_mode``.
    """
    if wanted is Mode.READ_WRITE and stands_by(deployment):
        raise Refused(
            f"deployment {deployment.generation} does not lead, and cannot be made {wanted.value} by a switch",
            hint="`tidemark deployment promote`, or the DAG `promote_deployment`, makes it the leader "
            "once it has caught up, or by force",
        )
    return set_mode(shards, deployment, wanted, who=who, why=why)


def set_mode(shards: Shards, deployment: Deployment, wanted: Mode, *, who: str, why: str) -> StoredMode:
    """Make ``wanted`` the mode of this deployment, and fence every writer that joined before.

    A deployment that becomes read-write leads from then on; the one that led is fenced.
    A second switch to the same mode fences the collections that the first one did not: because it was interrupted, or
    because a collection could not be read then and was restored since. The other collections are fenced all the same.

    Raises:
        FencedByGeneration: If a newer deployment leads, or owns a collection.
        Others as ``Modes.switch``.
    """
    stored = deployment.modes.switch(wanted, who=who, why=why)
    if stored.generation != deployment.generation:
        return stored  # this deployment is read-only and another one leads: nothing to fence
    fail_point("mode.after-write")
    fence_writers(shards, stored)
    return stored


def fence_writers(shards: Shards, stored: StoredMode) -> None:
    """Raise the token of every collection for which a switch to the mode ``stored`` has to do so."""
    for namespace in (COLLECTIONS, SYSTEM):
        found = shards.all(namespace)
        for start in range(0, len(found), TOGETHER):
            _fence(found[start : start + TOGETHER], stored)
            fail_point("mode.after-token")


def _fence(shards: Sequence[Shard], stored: StoredMode) -> None:
    """Raise the tokens in one transaction, and one by one those that other commits came before."""
    from tidemark.iceberg.commit.fences import land, prepare_fence  # noqa: PLC0415 - sensors read without pyiceberg
    from tidemark.iceberg.commit.writer import Writer  # noqa: PLC0415

    fences: list[Fence] = []
    try:
        for shard in shards:
            with _leaving_out_damaged(shard):
                head = shard.load()
                if _needs_fence(head.state, stored):
                    fences.append(prepare_fence(shard, head, stored.generation))
    finally:  # a shard that refuses leaves no other one unfenced
        for shard in land(fences):
            with _leaving_out_damaged(shard), suppress(Sealed):  # meanwhile: nobody can write any more
                if _needs_fence(shard.load().state, stored):  # a writer of this deployment may have joined meanwhile
                    Writer.raise_token(shard, stored.generation)


def _needs_fence(state: ShardState, stored: StoredMode) -> bool:
    """Tell whether a switch has to raise the token.

    A switch to read-only has to fence every writer. A switch to read-write only has to fence the writers of an older
    deployment: a writer that joined while the mode was read-only has published nothing, and may go on.
    """
    return not state.is_sealed and (stored.mode is Mode.READ_ONLY or state.token.generation != stored.generation)


@contextmanager
def _leaving_out_damaged(shard: Shard) -> Iterator[None]:
    """Fence the others if ``shard`` is foreign or damaged: no writer can join, or write, what cannot be read."""
    try:
        yield
    except CorruptState as error:
        log.warning("%s is not fenced: %s", shard.identifier, error)
