"""Gives a collection another name, with its rows, its history, its state and its audit.

The catalog's transaction decides: the item of the new name takes the number and the state of the old one. Then the
tables get the new name. A process that dies in between leaves a table whose name no collection has; every apply, and
every drop, first completes that, from the applied declaration, which names the old name.
"""

from __future__ import annotations

from tidemark.collections.declarations.collection import QUARANTINE_SUFFIX
from tidemark.collections.deployment import Deployment
from tidemark.fail_points import fail_point
from tidemark.iceberg.shards import COLLECTIONS, Shards

FAIL_POINTS = ("rename.quarantine-renamed", "rename.renamed")


def finish_renames(shards: Shards, deployment: Deployment) -> None:
    """Give the tables of renamed collections their new names, where that is not done yet.

    Raises ``ConflictsUnsettled`` if writers kept winning against the new name.
    """
    applied = deployment.registry.read().declarations
    for name, declaration in applied.items():
        old = declaration.renamed_from
        if old is None or old in applied or shards.exists(name):
            continue
        # The collection's own table last: it tells that all is done.
        _rename(shards, old + QUARANTINE_SUFFIX, name + QUARANTINE_SUFFIX)
        fail_point("rename.quarantine-renamed")
        _rename(shards, old, name)
        fail_point("rename.renamed")


def _rename(shards: Shards, old: str, new: str) -> None:
    if shards.exists(old):
        uuid = str(shards.open(old).load_table().metadata.table_uuid)
        shards.rename((COLLECTIONS, old), (COLLECTIONS, new), uuid=uuid)
