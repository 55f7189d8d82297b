"""The commit that appends and flushes share: batches become visible above the present upper, or nothing happens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pyiceberg.manifest import DataFile

from tidemark.clock import Clock
from tidemark.errors import FencedByEpoch, InputsGone, RangeOverlap, UpperMismatch
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.branch_commit import delete_files
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.state import CommitKind

if TYPE_CHECKING:
    from tidemark.iceberg.commit.publisher import Published
    from tidemark.iceberg.commit.writer import Writer

ATTEMPTS = 12  # of callers, which start again after InputsGone


def publish(
    writer: Writer,
    head: ShardHead,
    batches: Sequence[Batch],
    *,
    clock: Clock,
    kind: CommitKind = CommitKind.APPEND,
    raise_to: int | None = None,
    written: Iterable[DataFile] = (),
    time: int = 0,
    digest: bytes | None = None,
    digest_note: str = "",
    outdates_staged: bool = False,
    properties: Mapping[str, str] | None = None,
) -> Published:
    """Publish ``batches`` if the upper is still that of ``head``, the head for which the batches were made.

    The new upper lies above the present time, the old upper, and ``time``, that of the rows. ``kind`` names the commit
    in the history. ``raise_to`` raises the token for this generation in the same commit. ``written`` are files that
    only this attempt needs: they are deleted if another commit was faster. Digest, note,
    ``outdates_staged`` and ``properties`` are those of ``Writer.publish``.

    Raises:
        InputsGone: If another commit was faster; nothing was published: start again with a new head.
        FencedByGeneration: If a newer deployment leads.
        Sealed: If the collection is closed.
    """
    lower = head.state.open_upper(f"collection {writer.shard.name!r}")
    try:
        return writer.publish(
            *batches,
            lower=lower,
            new_upper=head.state.next_upper(max(clock.now_ms(), time)),
            kind=kind,
            raise_to=raise_to,
            digest=digest,
            digest_note=digest_note,
            outdates_staged=outdates_staged,
            properties=properties,
        )
    except (UpperMismatch, FencedByEpoch, InputsGone, RangeOverlap) as error:
        delete_files(head.table, [file.file_path for file in written])
        raise InputsGone(f"another commit to {writer.shard.name!r} was faster: {error}") from error
