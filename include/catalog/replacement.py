"""What a replacement of all items changes: the copy of a migration or a rollback, the same for both back ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from include.catalog.contents import Contents
from include.catalog.data_versions import DATA_VERSION
from include.catalog.item_kinds import (
    CONFIG,
    DATA_VERSION_KEY,
    GENERATION_KEY,
    LEADER_EPOCH,
    TOMBSTONE,
    ConfigKey,
    config_item,
)
from include.errors import IncompatibleDataVersion, StaleState

if TYPE_CHECKING:
    from include.catalog.items import Change

_OWN = {CONFIG.key_text(ConfigKey(key)) for key in (TOMBSTONE, GENERATION_KEY)}


def check_not_led(stored: Contents, *, epoch: int, where: str) -> None:
    """Refuse to replace what the open of this very ``epoch`` has announced to be complete.

    A copy comes before the announcement. One that comes after it is a task that was run twice, or was slow: what it
    would replace is the truth, and holds what tasks have written since.

    Raises:
        StaleState: If so: look at the tombstone again.
    """
    if stored.config(LEADER_EPOCH) == epoch:
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
    """
    version = wanted.config(DATA_VERSION_KEY)
    if version != DATA_VERSION:
        raise IncompatibleDataVersion(
            f"the contents to copy have data version {version}, this program writes {DATA_VERSION}",
            hint="open their back end writable first, which migrates them",
        )
    own = [config_item(GENERATION_KEY, generation)]
    flag = stored.config(TOMBSTONE) if tombstone is None else int(tombstone)
    if flag is not None:
        own.append(config_item(TOMBSTONE, flag))
    carried = (item for item in wanted if item.kind != CONFIG.name or item.key not in _OWN)
    return stored.difference(Contents([*carried, *own]))
