"""Publishes staged rows, and then their bad rows; drops the branches of attempts that did not publish.

The rows and the new numbers of all sequencers become visible in one commit, whichever processes staged them. A table
property of this commit names the branches of their bad rows, which were written before; the next run publishes these
branches before anything else. So the quarantine always holds exactly the bad rows of what was published, whenever a
process dies, and an attempt that lost leaves only branches, which the next one drops.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import uuid4

from tidemark.clock import Clock
from tidemark.collections.declarations.append_only import Expectations
from tidemark.collections.deployment import Deployment, Mode
from tidemark.collections.mode import join_to_write
from tidemark.collections.objects.quarantine import find_quarantine
from tidemark.collections.publish import ATTEMPTS, publish
from tidemark.collections.quality.expectations import BatchFiles, check_expectations
from tidemark.collections.staged.batches import BatchName, parse_range
from tidemark.errors import DamagedBatch, FencedByEpoch, InputsGone, UpperMismatch
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.ledger import Ledger
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shard.state import CommitKind, ShardState
from tidemark.iceberg.shards import Shards
from tidemark.iceberg.staging.branches import branch_name, drop_staged, list_staged, read_intact, settle
from tidemark.ingest.buffer_log import BufferLog
from tidemark.ingest.delivery import StagedRows
from tidemark.ingest.order.log_turns import remember_turn
from tidemark.ingest.partitions.closing import Closing
from tidemark.ingest.partitions.counting import Counted
from tidemark.retry import retrying

WRITER = "ingest"  # not the name of a producer: only an ingest publishes these branches
# Of the bad rows that belong to the last publish: a line for each branch of the quarantine, and the batches that have
# such rows there.
PENDING = "tidemark.ingest.quarantine"
_PENDING_STAGED = PENDING + "."  # and the generation: the branch that belongs to the last staged range, and the batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where rows go, and the log that they come from."""

    shards: Shards
    shard: Shard
    log: BufferLog
    deployment: Deployment
    clock: Clock
    expect: Expectations | None = None

    @property
    def quarantine(self) -> Shard | None:
        """The quarantine of the collection; None while there is none."""
        return find_quarantine(self.shards, self.shard)

    @property
    def pending_staged(self) -> str:
        """The table property that names the bad rows of the range that this deployment has staged last."""
        return f"{_PENDING_STAGED}{self.deployment.generation}"


def name_attempt(target: Target) -> str:
    """Return a new name for the branches of one attempt."""
    return branch_name(generation=target.deployment.generation, writer=WRITER, batch=uuid4().hex)


def find_attempts(target: Target, mode: Mode) -> list[str]:
    """Return the branches of attempts that died or still write: this deployment's, and, where it leads, earlier ones'.

    Only a leader may drop attempts of others: an earlier one may be a leader that is at work.
    """
    own = target.deployment.generation
    oldest = own if mode is Mode.READ_ONLY else 0
    return sorted(
        {
            staged.branch
            for shard in (target.shard, target.quarantine)
            if shard is not None
            for staged in list_staged(shard.load())
            if oldest <= staged.generation <= own and staged.writer == WRITER
        }
    )


def drop_attempts(target: Target, branches: Sequence[str]) -> None:
    """Drop attempts that have not published: an attempt that is still at work then plans again.

    The rows are dropped first: from then on the attempt cannot publish, so its bad rows belong to nothing.
    """
    if not branches:
        return
    drop_staged(target.shard, branches)
    quarantine = target.quarantine
    if quarantine is not None:
        properties = target.shard.load().table.properties
        texts = [text for key, text in properties.items() if key.startswith(PENDING)]
        pending = {line.split(" ")[0] for text in texts for line in text.splitlines()}
        drop_staged(quarantine, set(branches) - pending)


def finish_staged(target: Target, head: ShardHead) -> None:
    """Name the bad rows of staged ranges as their batches, if the process that staged died before it did so."""
    texts = head.table.properties
    found = {int(key.removeprefix(_PENDING_STAGED)): key for key in texts if key.startswith(_PENDING_STAGED)}
    for generation in sorted(target.deployment.heir_of(found)):
        attempt, [name] = _parse_bad(texts[found[generation]])
        settle_quarantine(target, attempt, name)


def describe_bad(attempt: str, names: Iterable[BatchName]) -> str:
    """Return a line of a table property that says which batches have the bad rows on the branch ``attempt``."""
    return " ".join((attempt, *(f"{name.producer}/{name.range_text}" for name in names)))


def _parse_bad(text: str) -> tuple[str, list[BatchName]]:
    """Read back what ``describe_bad`` wrote."""
    attempt, *batches = text.split(" ")
    parts = (batch.rpartition("/") for batch in batches)
    return attempt, [BatchName(producer, parse_range(numbers)) for producer, _, numbers in parts]


def waits_for_name(target: Target, head: ShardHead) -> bool:
    """Tell whether the bad rows of the range that this deployment staged last are no batch yet."""
    attempt = head.table.properties.get(target.pending_staged, "").split(" ")[0]
    return target.quarantine is not None and attempt in target.quarantine.load().staged_branches


def settle_quarantine(target: Target, attempt: str, name: BatchName) -> None:
    """Rename the bad rows on ``attempt`` to this deployment's batch ``name``; do nothing if another run has done so."""
    branch = name.branch(target.deployment.generation)
    if (quarantine := target.quarantine) is not None:
        retrying(InputsGone, attempts=ATTEMPTS, what=f"the quarantine of {target.shard.name!r}")(
            _settle_quarantine_once, quarantine, attempt, branch
        )


def _settle_quarantine_once(quarantine: Shard, attempt: str, branch: str) -> None:
    head = quarantine.load()
    if attempt not in head.staged_branches:
        return
    if branch in head.staged_branches:  # bad rows of a batch that was given up
        drop_staged(quarantine, [branch], seen=head)
    settle(quarantine, attempt, branch, lambda _head: None)


def finish_pending(target: Target, head: ShardHead) -> None:
    """Publish the bad rows of the collection's last publish, if the process that published died before it did so."""
    if pending := head.table.properties.get(PENDING):
        finish_quarantine(target, pending)


def finish_quarantine(target: Target, pending: str) -> None:
    """Publish the bad rows that the lines of ``pending`` describe, without those that another run has published.

    Nothing is done while the deployment is read-only. The batches go into the ledger of the quarantine: a batch that
    another deployment has staged brings no bad row again.

    Raises:
        DamagedBatch: If a branch does not hold what was staged on it.
        ConflictsUnsettled: If other commits kept winning; the bad rows are durable, and the next run tries again.
    """
    if (quarantine := target.quarantine) is not None:
        retrying(InputsGone, attempts=ATTEMPTS, what=f"the quarantine of {target.shard.name!r}")(
            _finish_quarantine_once, target, quarantine, [_parse_bad(line) for line in pending.splitlines()]
        )


def _finish_quarantine_once(
    target: Target, quarantine: Shard, described: Sequence[tuple[str, Sequence[BatchName]]]
) -> None:
    writer, mode = join_to_write(quarantine, target.deployment)
    head = quarantine.load()
    waiting = [(branch, names) for branch, names in described if branch in head.staged_branches]
    if not waiting or mode is Mode.READ_ONLY:
        return
    batches = []
    for branch, names in waiting:
        staged = read_intact(head.table, branch, None, of_present_schema=False)
        if staged is None:
            raise DamagedBatch(
                f"the bad rows on {branch!r} of {quarantine.name!r} are not what was staged there",
                hint="look at the branch, then drop it with the table's own tools: ALTER TABLE … DROP BRANCH",
            )
        new = [name for name in names if not head.state.ledgers.get(name.producer, Ledger()).overlaps(name.range)]
        batches.append(Batch(added=staged.files, branches=((branch, staged.snapshot_id),)))
        batches += [Batch(producer=name.producer, range=name.range) for name in new]
    publish(writer, head, batches, clock=target.clock)


class PublishedRows(NamedTuple):
    """What the publish of rows left: the state of the collection, and of its partitions if it has some."""

    state: ShardState
    counted: Counted | None


def publish_rows(
    target: Target,
    names: Sequence[BatchName],
    staged: Sequence[StagedRows],
    closing: Closing | None,
    *,
    turn: int,
    pending: str,
) -> PublishedRows:
    """Publish all staged rows and their ``names`` in one commit, which also describes the ``pending`` bad rows.

    The rows bear the ``turn`` of the log.

    The state of partitions moves in the same commit. If another commit was faster, the same rows are published after
    it.

    Raises:
        RangeOverlap: If another run published some of the numbers before; nothing became visible.
        InputsGone: If the columns changed, the deployment became read-only, or another run dropped the branches of
            this one, or began to read another log: plan again.
        ExpectationFailed: If the rows are not what the collection expects.
        ConflictsUnsettled: If other commits kept winning.
    """
    attempts = retrying(UpperMismatch, FencedByEpoch, attempts=ATTEMPTS, what=f"the publish to {target.shard.name!r}")
    return attempts(_publish_rows_once, target, names, staged, closing, turn=turn, pending=pending)


def _publish_rows_once(
    target: Target,
    names: Sequence[BatchName],
    staged: Sequence[StagedRows],
    closing: Closing | None,
    *,
    turn: int,
    pending: str,
) -> PublishedRows:
    shard, is_open = target.shard, closing is not None and closing.rules.keeps_open
    rows = [
        Batch(
            added=part.batch.files,
            branches=((part.batch.branch, part.batch.snapshot_id),),
            schema_id=part.schema_id,
            is_open=is_open,
        )
        for part in staged
    ]
    numbers = [Batch(producer=name.producer, range=name.range) for name in names]
    writer, mode = join_to_write(shard, target.deployment)
    if mode is Mode.READ_ONLY:
        raise InputsGone(f"the deployment became read-only while {shard.name!r} was ingested", hint="run again")
    head = shard.load()
    finish_pending(target, head)  # the publish below requires the upper of this head: nothing else can be pending
    if target.expect is not None:
        name = ", ".join(map(str, names))
        hint = "repair the rows, or alter `expect` and apply it; then ingest again"
        files = tuple(file for part in staged for file in part.batch.files)
        check_expectations(head.table, BatchFiles(shard.name, name, files, hint), target.expect)
    remembered = {PENDING: pending} | remember_turn(target.log, turn, head.table.properties)
    tallies = [tally for part in staged for tally in part.tallies]
    counted = None if closing is None else closing.advance(head, names, tallies)
    published = writer.publish(
        *rows,
        *numbers,
        lower=head.state.open_upper(f"collection {shard.name!r}"),
        new_upper=head.state.next_upper(target.clock.now_ms()),
        kind=CommitKind.APPEND,
        properties=remembered | ({} if counted is None else counted.properties),
    )
    return PublishedRows(published.state, counted)


def publish_closed(target: Target, names: Sequence[BatchName], closing: Closing) -> PublishedRows | None:
    """Commit that partitions are closed, or that rows were found of which their state did not know.

    Numbers that were looked at, and have no rows, go along under their ``names``. Returns None if there is nothing to
    commit, or the deployment is read-only.

    Raises ``UpperMismatch``, ``RangeOverlap`` or ``Fenced`` if another commit was faster: look again.
    """
    writer, mode = join_to_write(target.shard, target.deployment)
    head = target.shard.load()
    if mode is Mode.READ_ONLY or not (counted := closing.advance(head, names)).is_new:
        return None
    published = writer.publish(
        *(Batch(producer=name.producer, range=name.range) for name in names),
        lower=head.state.open_upper(f"collection {target.shard.name!r}"),
        new_upper=head.state.next_upper(target.clock.now_ms()),
        kind=CommitKind.ADVANCE,
        properties=counted.properties,
    )
    return PublishedRows(published.state, counted)
