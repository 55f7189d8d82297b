"""Raises the tokens of many shards with one transaction of the catalog's database, as a switch of the mode has to.

A transaction for each would be a quarter of the time that a switch takes with a thousand collections.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError

from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.branch_commit import delete_files
from tidemark.iceberg.commit.publisher import Publication
from tidemark.iceberg.commit.writer import propose_fence
from tidemark.iceberg.shard.catalog import StagedCommit
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.shard import Shard

log = logging.getLogger(__name__)

FAIL_POINTS = ("fence.before-commit",)


@dataclass(frozen=True, slots=True)
class Fence:
    """The next token of a shard, in files that the catalog does not name yet."""

    shard: Shard
    staged: StagedCommit
    written: tuple[str, ...]  # garbage if the commit fails


def prepare_fence(shard: Shard, head: ShardHead, generation: int) -> Fence:
    """Raise the token on top of the fresh ``head``; ``land`` fences. Raises as ``Writer.join``."""
    publication = Publication(shard)
    attempt = publication.prepare(head, propose_fence(publication, head, generation))
    staged = shard.iceberg.stage_commit(head.table, attempt.requirements, attempt.updates)  # type: ignore[arg-type]  # ours are validated too
    return Fence(shard, staged, attempt.written)


def land(fences: Sequence[Fence]) -> list[Shard]:
    """Let the tokens count, in one transaction; return the shards whose token may be the old one nevertheless.

    Another commit came between, or nobody knows whether the transaction landed: ``Writer.raise_token`` looks again.
    """
    if not fences:
        return []
    fail_point("fence.before-commit")
    try:
        overtaken = fences[0].shard.iceberg.land(fence.staged for fence in fences)
    except SQLAlchemyError as error:  # the transaction may still land, so that its files stay
        log.warning("whether %s fences landed is unknown: %s", len(fences), type(error).__name__)
        return [fence.shard for fence in fences]
    locations = {staged.location for staged in overtaken}
    lost = [fence for fence in fences if fence.staged.location in locations]
    for fence in lost:
        delete_files(fence.staged.table, [*fence.written, fence.staged.location])
    return [fence.shard for fence in lost]
