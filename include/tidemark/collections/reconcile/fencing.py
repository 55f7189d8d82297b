"""Fences earlier tries of one's own run, before the next one starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.collections.deployment import Mode
from tidemark.collections.mode import read_mode
from tidemark.errors import Fenced, NotPossible
from tidemark.iceberg.commit.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tidemark.collections.deployment import Deployment
    from tidemark.iceberg.shards import Shards


def fence_earlier_tries(shards: Shards, names: Iterable[str], deployment: Deployment) -> None:
    """Raise the token of the stored collections among ``names``; none means all that are stored.

    Whoever joined before stops at its next commit. A collection that cannot be fenced, because it is sealed or
    belongs to a newer deployment, cannot be written by this run either, which then says so for that collection alone.
    A read-only deployment fences nobody: it publishes nothing that an earlier try could undo, and the tokens may be
    those of a leader that goes on.
    """
    if read_mode(deployment) is Mode.READ_ONLY:
        return
    for name in list(names) or shards.names():
        if not shards.exists(name):
            continue
        try:
            Writer.raise_token(shards.open(name), deployment.generation)
        except (Fenced, NotPossible):
            continue
