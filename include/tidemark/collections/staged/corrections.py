"""Publishes staged corrections: all slices that fit the contents and each other in one commit.

What does not fit stays staged, and is named: the source may differ from the stored rows of its slice, and no later run
need be about these rows. Only a reconcile that covers the slice removes such a correction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pyiceberg.manifest import DataFile

from tidemark.clock import Clock
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.digest.digest import add_corrections
from tidemark.collections.publish import publish
from tidemark.collections.quality.guards import check_foreign_commits
from tidemark.collections.staged.batches import taken_over
from tidemark.collections.staged.slices import Coverage, read_slice, reconcile_command, to_reconcile
from tidemark.errors import StaleCorrections
from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.restamped import restamp
from tidemark.iceberg.shard.digest_file import read_digest
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.state import CommitKind
from tidemark.iceberg.staging.correction_branches import StagedCorrections, read_current
from tidemark.report import CollectionReport, ErrorReport, Outcome

FAIL_POINTS = ("flush-corrections.after-audit", "flush-corrections.after-restamp", "flush-corrections.after-publish")
STALE, REASONS, NEXT = "stale", "reasons", "next"  # details of a report: branches that stay, why, and commands
_OUTDATED = "newer corrections are about some of its rows"


@dataclass(slots=True)
class AuditedCorrections:
    """The staged corrections of one collection, sorted into what a flush does with them."""

    current: list[StagedCorrections] = field(default_factory=list)  # to publish together
    superseded: list[str] = field(default_factory=list)  # newer ones of these are about all of their rows
    stale: dict[str, str] = field(default_factory=dict)  # branches that stay, and why


def audit_corrections(head: ShardHead, branches: Sequence[str]) -> AuditedCorrections:
    """Judge staged corrections, in the order of ``own_corrections``; of two about the same rows the first counts."""
    audited = AuditedCorrections()
    chosen = Coverage()
    for branch in branches:
        about = read_slice(head, branch)
        if chosen.covers(about):
            audited.superseded.append(branch)
        elif isinstance(found := read_current(head, branch), str):
            audited.stale[branch] = found
        elif chosen.touches(about):
            audited.stale[branch] = _OUTDATED
        else:
            chosen.add(about)
            audited.current.append(found)
    return audited


def flush_corrections(
    writer: Writer, head: ShardHead, branches: Sequence[str], *, clock: Clock, declaration: Declaration | None
) -> CollectionReport:
    """Publish the corrections on ``branches`` that can be published.

    Raises ``ForeignCommit`` if the commit would drop rows of another engine, and the declaration refuses that.
    """
    audited = audit_corrections(head, branches)
    fail_point("flush-corrections.after-audit")
    upper = head.state.upper
    foreign = (head.foreign or head.foreign_updates) if audited.current else None
    if audited.current:
        if declaration is not None:
            check_foreign_commits(foreign, declaration)
        time, batches, written = _at_one_time(head, audited.current, now_ms=clock.now_ms())
        fail_point("flush-corrections.after-restamp")
        digest, note = _digest_after(head, audited.current)
        obsolete = Batch(branches=tuple((branch, head.staged_branches[branch]) for branch in audited.superseded))
        upper = publish(
            writer,
            head,
            [*batches, obsolete],
            clock=clock,
            kind=CommitKind.FLUSH,
            raise_to=writer.generation,
            written=written,
            time=time,
            digest=digest,
            digest_note=note,
            outdates_staged=_OUTDATED in audited.stale.values(),  # the newer ones are gone, and may have had no rows
        ).state.upper
        fail_point("flush-corrections.after-publish")
    published = [found.batch for found in audited.current]
    error = _stale_error(head, audited.stale, declaration) if audited.stale else None
    done = Outcome.FLUSHED if published else Outcome.UNCHANGED
    return CollectionReport(
        outcome=Outcome.FAILED if error and not published else done,
        lower=head.state.upper,
        upper=upper,
        inserted=sum(batch.inserted_rows for batch in published),
        retracted=sum(batch.retracted_rows for batch in published),
        batches=len(published),
        details={
            **({"superseded": audited.superseded} if audited.superseded else {}),
            **({STALE: [*audited.stale], REASONS: audited.stale, NEXT: error.hint} if error else {}),
            **({"foreign_commits": str(foreign)} if foreign else {}),
            **taken_over(head, published),
        },
        error=ErrorReport.of(error) if error else None,
    )


def _stale_error(head: ShardHead, stale: dict[str, str], declaration: Declaration | None) -> StaleCorrections:
    name = head.table.name()[-1]
    column = declaration.scope.column if declaration and declaration.scope else ""
    commands = [reconcile_command(name, interval) for interval in to_reconcile(head, stale, column=column)]
    if declaration is not None and declaration.is_handed_over:
        commands = [f"have the program hand all rows of {name!r} over again, by `reconcile_frame`"]
    told = "; ".join(f"{branch}: {reason}" for branch, reason in stale.items())
    return StaleCorrections(
        f"{len(stale)} staged corrections of {name!r} were not published and stay staged: {told}",
        hint=" && ".join(commands),
    )


def _at_one_time(
    head: ShardHead, current: Sequence[StagedCorrections], *, now_ms: int
) -> tuple[int, list[Batch], tuple[DataFile, ...]]:
    """Return the time of the flush, the batches to publish at that time, and the files that were written for them.

    Times below the upper are final, and one commit has one time: rows with another time are written anew.
    """
    upper = head.state.open_upper(f"collection {head.table.name()[-1]!r}")
    newest = max(found.time for found in current)
    time = newest if newest >= upper else max(now_ms, upper)
    late = [found.batch for found in current if found.time != time]
    batches = [found.batch for found in current if found.time == time]
    if not late:
        return time, batches, ()
    added = restamp(head.table, [file for batch in late for file in batch.added], time=time)
    retracted = restamp(head.table, [file for batch in late for file in batch.retracted], time=time)
    batches += [replace(batch, added=(), retracted=()) for batch in late]
    batches.append(Batch(added=added, retracted=retracted, schema_id=head.table.metadata.current_schema_id))
    return time, batches, (*added, *retracted)


def _digest_after(head: ShardHead, current: Sequence[StagedCorrections]) -> tuple[bytes | None, str]:
    """Return the digest of the contents after ``current``, and its note for the next run; None if it is not known."""
    changing = [found for found in current if found.batch.inserted_rows or found.batch.retracted_rows]
    if not changing:
        return read_digest(head), head.state.digest
    digest = changing[0].digest
    if len(changing) > 1:
        digest = add_corrections(read_digest(head), [found.digest for found in changing], is_empty=head.is_empty)
    return digest, changing[0].digest_note
