"""What a replacement of all items changes: the copy of a migration or a rollback, the same for both back ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.catalog.items.contents import Contents
from tidemark.catalog.items.data_versions import DATA_VERSION
from tidemark.catalog.items.item import Change, net
from tidemark.catalog.items.kinds import (
    CONFIG,
    DATA_VERSION_KEY,
    GENERATION_KEY,
    KINDS,
    TOMBSTONE,
    ConfigKey,
    config_item,
)
from tidemark.errors import CorruptState, IncompatibleDataVersion, StaleState

if TYPE_CHECKING:
    from collections.abc import Sequence

_OWN = {CONFIG.key_text(ConfigKey(key)) for key in (TOMBSTONE, GENERATION_KEY)}


def check_not_led(announced: int | None, *, epoch: int, where: str) -> None:
    """Refuse to replace what the open of this very ``epoch`` has announced to be complete.

    A copy comes before the announcement. One that comes after it is a task that was run twice, or was slow: what it
    would replace is the truth, and holds what tasks have written since. ``announced`` is its ``LEADER_EPOCH``.

    Raises:
        StaleState: If so: look at the tombstone again.
    """
    if announced == epoch:
        raise StaleState(
            f"{where} is the truth and led at epoch {epoch}: the copy that this open was to make was made already",
            hint="look again: `tidemark catalog status`",
        )


def replacement_changes(
    stored: Contents, wanted: Contents, *, generation: int, tombstone: bool | None = None
) -> list[Change]:
    """Return the net changes of ``Handle.replace_all``; empty if nothing differs.

    Args:
        stored: Everything that the destination holds; what is only there is retracted.
        wanted: Everything that the source holds; its tombstone and its deployment generation are ignored.
        generation: The deployment generation that the destination shows afterwards.
        tombstone: The tombstone that the destination shows afterwards; None keeps the stored one, or none.

    Raises:
        IncompatibleDataVersion: If ``wanted`` is not of this program's data version.
        CorruptState: If ``wanted`` holds items of a kind that there is not.
    """
    version = wanted.config(DATA_VERSION_KEY)
    if version != DATA_VERSION:
        raise IncompatibleDataVersion(
            f"the contents to copy have data version {version}, this program writes {DATA_VERSION}",
            hint="open their back end writable first, which migrates them",
        )
    if unknown := sorted(wanted.counts().keys() - KINDS.keys()):
        raise CorruptState(
            f"the contents to copy have items of kinds that there are not: {unknown}",
            hint="another tool wrote them, or a newer Tidemark: take them out, or use that one",
        )
    own = [config_item(GENERATION_KEY, generation)]
    flag = stored.config(TOMBSTONE) if tombstone is None else int(tombstone)
    if flag is not None:
        own.append(config_item(TOMBSTONE, flag))
    carried = (item for item in wanted if item.kind != CONFIG.name or item.key not in _OWN)
    return stored.difference(Contents([*carried, *own]))


def replacement_of_damaged(
    stored: Sequence[Change], wanted: Contents, *, own: Contents, generation: int, tombstone: bool | None = None
) -> list[Change]:
    """Return as ``replacement_changes`` what replaces items that contradict each other: garbage may hold anything.

    Args:
        stored: Everything that the destination holds, with its multiplicities.
        wanted: As above, like the rest.
        own: The destination's config, as far as it counts.
        generation: As above.
        tombstone: As above.
    """
    changes = replacement_changes(own, wanted, generation=generation, tombstone=tombstone)
    after = own.copy()
    after.apply(changes)
    retracted = (Change(item, -diff) for item, diff in stored)
    return net([*retracted, *after.insertions()])
