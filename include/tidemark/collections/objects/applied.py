"""Opens the table of a declaration, which may be stale by then: a process may have been away for a while."""

from __future__ import annotations

from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.deployment import Deployment
from tidemark.errors import AppliedMeanwhile, Dropped
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shards import Shards


def open_applied(shards: Shards, deployment: Deployment, declaration: Declaration) -> Shard:
    """Return the shard of a collection, which is a table that ``declaration`` is applied to.

    What a stale declaration puts into the table of another one would stay for good: the ledger would name the rows as
    those that the new one wants. So the table comes first, to which the shard is bound from then on, and the look into
    the catalog second: a drop takes the declaration from the catalog before the table loses its name.

    Raises as ``check_applied`` and as ``Shard.load``.
    """
    shard = shards.open(declaration.name)
    shard.load_table()
    check_applied(deployment, declaration)
    return shard


def check_applied(deployment: Deployment, declaration: Declaration) -> None:
    """Refuse to go on with a declaration that is applied no longer.

    Whoever reads a buffer asks after the watermarks: what is below was then written while the declaration was applied,
    and what somebody writes after the next apply is left to the next declaration.

    Raises:
        Dropped: If the collection was dropped.
        AppliedMeanwhile: If another declaration was applied, to this table or to one that was made anew.
    """
    applied = deployment.registry.find(declaration.name)
    if applied is None:
        raise Dropped.meanwhile(declaration.name)
    if applied != declaration:
        raise AppliedMeanwhile(
            f"another declaration of {declaration.name!r} was applied since this run began: nothing was written",
            hint="run it again",
        )
