"""Appends one batch to an append-only collection: visible at once where the deployment may write, staged otherwise.

Every form of appending (rows, a file, a slice of files, a data frame, a range of a buffer) takes the same steps with
one `Append`: look, fit the columns (``batch_fit.py``), write, finish. ``append_rows`` is the shortest list of these
steps. The retry loop stands around the steps, and each attempt begins with a fresh look, also at what the declaration
says about rows on their way in (``ways_in.py``).

The range of the batch goes into the ledger in the commit that makes its rows visible, and a range that is in the
ledger is done. So a batch may be appended again at any time, whatever became of earlier attempts. Where the rows go
into a write buffer (``forward.py``), the buffer remembers the range, and the ledger is that of who ingests it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Self

import pyarrow as pa
from tenacity import Retrying

from tidemark.clock import Clock
from tidemark.collections.append.forward import Appended, forward, look_in
from tidemark.collections.append.statuses import StatusFilter, refuse_if_moved
from tidemark.collections.append.ways_in import NOTHING_ASKED, Rules, Writing, rules_of
from tidemark.collections.declarations.append_only import Expectations
from tidemark.collections.deployment import Deployment, Mode
from tidemark.collections.mode import join_to_write
from tidemark.collections.publish import ATTEMPTS, publish
from tidemark.collections.quality.expectations import BatchFiles, check_expectations
from tidemark.collections.staged.batches import BatchName, Standing, queued_batches, read_whole, standing_in
from tidemark.errors import DamagedBatch, ExpectationFailed, InputsGone, TidemarkError, UsageError
from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.branch_commit import delete_files
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.arrow_values import with_constants
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.leases.holding import holding
from tidemark.iceberg.shard.branch_names import pending_name
from tidemark.iceberg.shard.column_names import BATCH, PRODUCER
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.ledger import FORWARDED, Ledger
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.staging.branches import StagedBatch, drop_staged, settle
from tidemark.iceberg.staging.files import stage_files
from tidemark.report import Outcome
from tidemark.retry import retrying

log = logging.getLogger(__name__)

FAIL_POINTS = ("append.after-files",)


def append_rows(
    shard: Shard,
    name: BatchName,
    rows: pa.Table,
    *,
    deployment: Deployment,
    clock: Clock,
    stage_when_read_only: bool = True,
    expect: Expectations | None = None,
) -> Appended:
    """Append rows in memory as the batch ``name``, once, to an append-only collection.

    ``rows`` have exactly its user columns, in any order. The applied declaration says what rows it expects, whether a
    read-only deployment stages or refuses them, and which statuses are left out; the caller may ask for more: rows as
    ``expect`` says, and no staging (``stage_when_read_only``).

    Raises:
        OnlyThroughBuffer: If all rows of the collection come out of a write buffer.
        Paused: If somebody paused the collection.
        Dropped: If the collection is dropped meanwhile.
        ExpectationFailed: If the rows are not what is expected; nothing was appended.
        UsageError: If the collection is not append-only, or the producer has a name that is kept for forwarded batches.
        RangeOverlap: If a part of the range was accepted before; names both ranges.
        ReadOnly: If the deployment is read-only and such batches are not staged; the rows were not looked at.
        FencedByGeneration: If a newer deployment leads.
        Sealed: If the collection is closed.
        ConflictsUnsettled: If other commits kept winning; the next append finds out whether the batch is there.
    """
    own = Rules.asked(stage_when_read_only=stage_when_read_only, expect=expect)
    batch = Append(shard=shard, name=name, deployment=deployment, clock=clock, own=own)
    return batch.run(_append_rows_once, batch, rows)


def _append_rows_once(batch: Append, rows: pa.Table) -> Appended:
    if (answer := batch.look()) is not None:
        return answer
    if not batch.is_written:
        batch.write(rows)
    return batch.finish()


@dataclass(slots=True, kw_only=True)
class Append:
    """One batch on its way into a collection: what is asked for, what the last look found, and what was written.

    The methods are the steps, in their order. As a context manager it drops its pending branch at the end.
    """

    shard: Shard
    name: BatchName
    deployment: Deployment
    clock: Clock
    own: Rules = NOTHING_ASKED  # what the caller asks for beyond the declaration
    rules: Rules = field(init=False)  # that hold for the present attempt
    head: ShardHead = field(init=False)
    _writer: Writer = field(init=False)
    _mode: Mode = field(init=False)
    _written: Batch | None = field(init=False, default=None)
    _pending: str = field(init=False, default="")  # nobody else has this name
    _news: StatusFilter | None = field(init=False, default=None)
    _only_own: tuple[Expectations, ...] = field(init=False)  # which no flush knows of

    def run(self, append_once: Callable[..., Appended], *arguments: object) -> Appended:
        """Call ``append_once`` in the loop of ``attempts``, and hold a lease meanwhile."""
        with holding(self.deployment.settings, "append", [self.shard.name]):
            return self.attempts()(append_once, *arguments)

    def attempts(self) -> Retrying:
        """Return the loop to call the steps with: it calls them again while other commits are faster."""
        return retrying(InputsGone, attempts=ATTEMPTS, what=f"the append of {self.name} to {self.shard.name!r}")

    # -- step 1 ------------------------------------------------------------------------------------------------------

    def look(self) -> Appended | None:
        """Read the rules, join, load the head; return the answer if the batch was accepted before, else None.

        A staged batch is published if the deployment may write by now. A damaged one counts as absent.

        Raises as ``append_rows``.
        """
        generation = self.deployment.generation
        if f".{self.name.producer}".endswith(FORWARDED):  # also behind the name of a collection that forwards batches
            raise UsageError(
                f"{self.name.producer!r} cannot name a producer: `{FORWARDED}` marks what was forwarded into a buffer",
                hint="give the producer another name",
            )
        declared = rules_of(self.shard, self.deployment)
        self.rules = declared.tightened(self.own)
        self._only_own = tuple(expect for expect in self.rules.expect if expect not in declared.expect)
        self.rules.refuse_direct_write()
        self._writer, self._mode = join_to_write(self.shard, self.deployment)
        self.head = self.shard.load()
        check_append_only(self.head, self.shard.name)
        if (answer := self._look_in_buffer()) is not None:
            return answer
        standing = standing_in(self.head, self.name, collection=self.shard.name, deployment=self.deployment)
        if standing is Standing.PUBLISHED:
            return Appended(outcome=Outcome.SKIPPED)
        if standing is Standing.STAGED:
            return self._publish_staged()
        self.rules.refuse_when_read_only(self._mode, generation=generation)
        branch = self.name.branch(generation)
        if branch in self.head.staged_branches:  # it is damaged, or the batch would stand as staged
            drop_staged(self.shard, [branch], seen=self.head)
            self.head = self.shard.load()
        return None

    def _look_in_buffer(self) -> Appended | None:
        """Return the answer for a batch that is in the buffer, if the collection writes to one."""
        role = self.rules.role
        if not isinstance(role, Writing):
            return None
        if self.rules.status is not None:
            self.rules.refuse_statuses()
        with role.open(self.shard.name, self.deployment) as log:
            answer = look_in(log, self.name)
        if answer is not None and self.head.state.ledgers.get(self.name.producer, Ledger()).covers(self.name.range):
            return Appended(outcome=Outcome.SKIPPED)  # it came back by an ingest
        return answer

    def _publish_staged(self) -> Appended:
        """Publish the staged batch if the deployment may write and the branch is this very batch."""
        for own in queued_batches(self.head, collection=self.shard.name, deployment=self.deployment):
            if own.name == self.name and not isinstance(staged := read_whole(self.head.table, own), DamagedBatch):
                break
        else:
            return Appended(outcome=Outcome.STAGED)  # inside larger ranges, which a flush publishes whole
        if self._mode is Mode.READ_ONLY:
            return Appended(outcome=Outcome.STAGED, rows=own.rows)
        hint = f"discard it ({own.discard_command}) and append the repaired rows, or alter `expect` and apply it"
        self._check(BatchFiles(own.collection, str(self.name), staged.files, hint), self.rules.expect)
        return self._publish(self._batch_on(staged))

    # -- step 2: write, or begin_pending and take ----------------------------------------------------------------------

    @property
    def is_written(self) -> bool:
        """Whether the files of an earlier attempt can be taken; files of an older schema are deleted."""
        written = self._written
        if written is None or written.branches or self.rules.status is not None:  # statuses are chosen anew
            return False
        if written.schema_id != self.head.table.metadata.current_schema_id:
            delete_files(self.head.table, [file.file_path for file in written.added])
            return False
        return True

    def write(self, rows: pa.Table) -> int:
        """Write rows, exactly the user columns, as data files; return how many, without superseded statuses.

        Files that lose are left to orphan removal.
        """
        if (status := self.rules.status) is not None:
            known = self._news or StatusFilter(status, collection=self.shard.name, deployment=self.deployment)
            self._news = known.of(status)
            rows = self._news.choose(self.head, rows)
        self._written = write_batch(self.head, rows, self.name)
        written: int = rows.num_rows
        return written

    def begin_pending(self) -> str:
        """Return a branch for rows that take their time, such as Spark's; nobody lists, flushes or waits for it.

        So a branch with a batch's own name is always whole, and an append that dies, or whose source moves while it is
        read, leaves nothing that could be published. Maintenance removes the branches of the dead.
        """
        self._pending = self._pending or pending_name(self.name.branch(self.deployment.generation))
        return self._pending

    def take(self, staged: StagedBatch) -> None:
        """Take the rows that were written onto the pending branch."""
        self._written = self._batch_on(staged)

    def _batch_on(self, staged: StagedBatch) -> Batch:
        branches = ((staged.branch, staged.snapshot_id),)
        return Batch(added=staged.files, branches=branches, producer=self.name.producer, range=self.name.range)

    # -- step 3 ------------------------------------------------------------------------------------------------------

    def finish(self) -> Appended:
        """Publish what was written, once it is as expected; stage it while the deployment is read-only.

        The flush checks staged rows as the declaration then says; what the caller expects besides is checked here.

        Raises:
            ExpectationFailed: If the rows are not what is expected; nothing was appended.
            InputsGone: If another commit was faster: look again.
        """
        batch = self._written
        if batch is None:
            raise ValueError("nothing was written")
        is_staged = self._mode is Mode.READ_ONLY
        if not is_staged:
            fail_point("append.after-files")
        if batch.branches:  # Spark took its time
            self.head = self.shard.load()
        hint = "repair the rows, or alter `expect` and apply it; then append the batch again"
        files = BatchFiles(self.shard.name, str(self.name), batch.added, hint)
        try:
            self._check(files, self._only_own if is_staged else self.rules.expect)
        except ExpectationFailed:
            if not batch.branches:
                delete_files(self.head.table, [file.file_path for file in batch.added])
            raise
        return self._stage(batch) if is_staged else self._publish(batch)

    def _check(self, files: BatchFiles, expectations: Iterable[Expectations]) -> None:
        for expect in expectations:
            check_expectations(self.head.table, files, expect)

    def _publish(self, batch: Batch) -> Appended:
        if isinstance(self.rules.role, Writing):
            return self._forward(batch, self.rules.role)
        published = publish(self._writer, self.head, [batch], clock=self.clock)
        return Appended(
            outcome=Outcome.APPENDED, rows=batch.inserted_rows, lower=self.head.state.upper, upper=published.state.upper
        )

    def _forward(self, batch: Batch, role: Writing) -> Appended:
        """Write the rows, which are durable and as expected, into the buffer; then nobody needs their files.

        A switch to read-only that comes after the look at the mode does no harm: who ingests the rows is asked again.
        """
        _, mode = join_to_write(self.shard, self.deployment)  # Spark took its time
        if mode is Mode.READ_ONLY:
            raise InputsGone(f"the deployment became read-only while {self.name} was read")
        with role.open(self.shard.name, self.deployment) as log:
            answer = forward(log, self.head.table, batch, self.name, clock=self.clock)
        drop_staged(self.shard, [branch for branch, _ in batch.branches if branch != self._pending])
        if not batch.branches:
            delete_files(self.head.table, [file.file_path for file in batch.added])
        return answer

    def _stage(self, batch: Batch) -> Appended:
        seen, branch = self.head, self.name.branch(self.deployment.generation)

        def check(fresh: ShardHead) -> None:
            standing = standing_in(fresh, self.name, collection=self.shard.name, deployment=self.deployment)
            if standing is not Standing.FREE:
                raise InputsGone(f"{self.name} of {self.shard.name!r} was accepted meanwhile")
            if self.rules.status is not None:
                refuse_if_moved(seen, fresh, collection=self.shard.name)

        if batch.branches:
            settle(self.shard, batch.branches[0][0], branch, check)
            return Appended(outcome=Outcome.STAGED, rows=batch.inserted_rows)
        staged = stage_files(
            self.shard,
            batch.added,
            branch=branch,
            fingerprint=str(self.name),
            schema_id=seen.table.metadata.current_schema_id,
            check=check,
        )
        return Appended(outcome=Outcome.STAGED, rows=staged.rows)

    # -- the end -----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._pending:
            return
        try:
            drop_staged(self.shard, [self._pending])
        except TidemarkError as error:  # the batch is there or is not, either way
            log.warning("pending branch %s of %s is left to maintenance: %s", self._pending, self.shard.name, error)


def check_append_only(head: ShardHead, collection: str) -> None:
    """Refuse to append to a collection whose rows come from its source.

    Raises ``UsageError`` if the collection is not append-only.
    """
    if head.state.layout is not ShardKind.APPEND_ONLY:
        raise UsageError(
            f"{collection!r} is a {head.state.layout} collection: its rows come from its source",
            hint=f"run `tidemark reconcile {collection}`",
        )


def write_batch(head: ShardHead, rows: pa.Table, name: BatchName) -> Batch:
    """Write ``rows``, exactly the user columns, as data files of the present schema."""
    files = write_rows(head.table, with_batch_columns(rows, name))
    schema_id = head.table.metadata.current_schema_id
    return Batch(added=files, schema_id=schema_id, producer=name.producer, range=name.range)


def with_batch_columns(rows: pa.Table, name: BatchName) -> pa.Table:
    """Return ``rows`` with the columns that say which batch they came in."""
    return with_constants(rows, ((PRODUCER, name.producer), (BATCH, name.range.start)))
