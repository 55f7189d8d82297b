"""The changes of a replacement of all items, as a migration or a rollback copies them; the same for both back ends."""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.catalog.items.contents import Contents
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

_OWN = {CONFIG.key_text(ConfigKey(key)) for key in (TOMBSTONE, GENERATION_KEY)}


def check_not_led(announced: int | None, *, epoch: int, where: str) -> None:
    """Raise ``StaleState`` if the open of this ``epoch`` was announced: a copy must come before the announcement.

    A copy after the announcement is a task that was run twice, or was slow. Its destination is the truth by now, and
    holds what tasks have written since. ``announced`` is the ``LEADER_EPOCH`` of the destination.
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

    ``stored`` are all items of the destination, ``wanted`` all items of the source, whose tombstone and deployment
    generation are ignored: ``generation`` and ``tombstone`` are the destination's afterwards. None leaves its tombstone
    as it is.

    Raises:
        IncompatibleDataVersion: If ``wanted`` is not of the data version of ``stored``.
        CorruptState: If ``wanted`` holds items of an unknown kind.
    """
    version, own_version = wanted.config(DATA_VERSION_KEY), stored.config(DATA_VERSION_KEY)
    if version != own_version:
        raise IncompatibleDataVersion(
            f"the contents to copy have data version {version}, their destination has {own_version}",
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
    """Return ``replacement_changes`` for a destination whose items contradict each other: garbage may hold anything.

    ``stored`` are all items of the destination with their multiplicities, ``own`` is its readable config.
    """
    changes = replacement_changes(own, wanted, generation=generation, tombstone=tombstone)
    after = own.copy()
    after.apply(changes)
    retracted = (Change(item, -diff) for item, diff in stored)
    return net([*retracted, *after.insertions()])
