"""Makes one collection equal to its source, step by step: pin, open, follow, scan, compare, judge, write, publish.

If the changes of the source can be followed, nothing is left for the steps scan and compare. A program may hand over
the rows in place of a source, or changes of the stored rows, which one step compares and judges. A plan runs the steps
up to judge. The steps work on one value, the ``Attempt``; if another process changes the collection or the source
meanwhile, the steps start again with a fresh ``Attempt``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DateType

from tidemark.clock import Clock
from tidemark.collections.declarations.collection import Declaration, Guards
from tidemark.collections.deployment import Deployment
from tidemark.collections.digest.row_layout import NEW, OLD
from tidemark.collections.digest.scan import FILE, VALUE
from tidemark.collections.quality.guards import SAMPLE_ROWS, Overrides, check_foreign_commits
from tidemark.collections.reconcile.choosing.same_source import (
    explain_due,
    is_due,
    name_decisive,
    name_desired,
    vouches,
)
from tidemark.collections.reconcile.comparison import Comparison, CopyNeeded, Difference, Scan, kept_rows
from tidemark.collections.reconcile.following.follow import (
    Followable,
    Followed,
    are_worth_digests,
    digests_of,
    were_touched,
)
from tidemark.collections.reconcile.following.handed_changes import HandedChanges
from tidemark.collections.reconcile.following.row_lookup import RowLookup
from tidemark.collections.reconcile.pinned_snapshot import Pinned, in_slice, pin_snapshot
from tidemark.collections.reconcile.vanished_columns import check_columns_occur
from tidemark.collections.schema.conform import conform
from tidemark.collections.schema.convert import from_spark
from tidemark.collections.schema.renaming import refuse_if_pending
from tidemark.collections.sources.errors import CannotFollow, first_line
from tidemark.collections.sources.followed.file_set import FollowedFiles
from tidemark.collections.sources.followed.iceberg_changes import FollowedTable
from tidemark.collections.sources.formats.source import open_source
from tidemark.collections.sources.opened_source import OpenedSource, Opening
from tidemark.collections.sources.scratch_folder import scratch_folder
from tidemark.collections.staged.batches import corrections_branch, own_corrections
from tidemark.collections.staged.slices import Coverage, Slice, read_slice, slice_text
from tidemark.errors import (
    CommitStateUnknown,
    ConflictsUnsettled,
    InputsGone,
    NotPossible,
    SourceMoved,
    TidemarkError,
    Unreachable,
    UpperMismatch,
)
from tidemark.fail_points import fail_point
from tidemark.frontier import Frontier
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.branch_commit import delete_files
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.leases.protection import is_alone
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shards import Shards
from tidemark.iceberg.staging.branches import drop_staged
from tidemark.iceberg.staging.correction_branches import stage_whole
from tidemark.interval import Interval, Unit
from tidemark.report import (
    COMPARED_BECAUSE,
    FALLBACK,
    FILES,
    INPUT_COLUMNS,
    UNNOTICED,
    CollectionReport,
    ErrorReport,
    Outcome,
)
from tidemark.retry import retrying
from tidemark.settings import Settings

if TYPE_CHECKING:
    Step = Callable[["Attempt"], None]

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 5
FAIL_POINTS = ("reconcile.pinned", "reconcile.compared", "reconcile.before-publish", "reconcile.published")
_DOUBTS_FROM_ATTEMPT = 3


@dataclass(frozen=True, kw_only=True)
class Reconciliation:
    """One run over one collection."""

    spark: SparkSession
    settings: Settings  # have the connections, and the folder for temporary files
    shards: Shards  # open the collections that the source reads
    shard: Shard  # the stored collection
    declaration: Declaration
    data_interval: Interval | None  # limits a collection that has a scope
    overrides: Overrides  # of guards, for this run alone
    clock: Clock
    deployment: Deployment | None = None  # None: nothing that is staged is its to publish
    sample_rows: int = SAMPLE_ROWS  # how many corrections of each sort a plan shows
    is_full: bool = False  # whether all rows are compared, also if the changes of the source can be followed
    stages: bool = False  # whether the deployment is read-only, so that corrections are staged and not published
    handed_over: OpenedSource | None = None  # by a program, in place of the declared source
    hands_changes: bool = False  # whether what is handed over are changes of the stored rows, and not all rows
    computed_at: Frontier | None = None  # the upper that the changes were computed against; None: it does not matter
    # Of a plan: the collections that the source reads, and that the plan changes first.
    planned_inputs: Mapping[str, Reconciliation] = field(default_factory=dict)

    def run(self, writer: Writer) -> CollectionReport:
        """Correct the collection; start again from the source whenever the collection or the source changes meanwhile.

        The ``writer`` joined once, before: an attempt that joined again would not notice that it was fenced.

        Raises:
            Refused: If a guard refused, or rows of another engine must not be dropped; nothing was written.
            UpperMismatch: If the collection is not at ``computed_at``; nothing was written.
            StaleState: If the collection or the source kept changing until the attempts were used up.
            Fenced: If another writer took over.
        """
        report = self._until_settled(self._steps, writer)
        fail_point("reconcile.published")
        return report

    def plan(self) -> CollectionReport:
        """Return what ``run`` would do now, with samples and any refusal; write nothing."""
        steps = self._steps
        return self._until_settled((*steps[: steps.index(write)], sample_corrections), None)

    def expected(self, scratch: str) -> OpenedSource:
        """Return the rows that the collection will hold after ``run``, for the plans of collections that read it.

        What cannot be pinned is copied below ``scratch``, a folder (URI), since a query may read the rows twice.
        """
        attempt = Attempt(run=self, writer=None, scratch=scratch, copies_source=False)
        pin(attempt)
        open_declared(attempt)
        if not attempt.source.pinnable:
            attempt.source = attempt.source.materialise(f"{scratch}/{self.shard.name}")
        pinned, source, desired = attempt.pinned, attempt.source, wanted_rows(attempt)
        rows = kept_rows(desired, pinned.shape, attempt.guards).select(*pinned.shape.named_columns(NEW))
        if attempt.condition is not None:  # no row outside of the slice is corrected
            others = pinned.read(~F.coalesce(attempt.condition, F.lit(False)))  # noqa: FBT003 - a value of SQL
            rows = rows.union(others.select(*pinned.shape.named_columns(OLD)))
        return replace(source, where=f"collection {self.shard.name!r}, as planned", desired=rows)

    @cached_property
    def slice(self) -> Interval | None:
        """The whole units of time that a run with a scope corrects; None for the whole collection."""
        return self.declaration.slice_of(self.data_interval)

    @property
    def branch(self) -> str:
        """The branch for staged corrections of this slice; a later run replaces the branch."""
        bounds = None if self.slice is None else (self.slice.start_ms, self.slice.end_ms)
        return corrections_branch(self.settings.generation, bounds)

    @property
    def _steps(self) -> Sequence[Step]:
        return CHANGE_STEPS if self.hands_changes else STEPS

    def _until_settled(self, steps: Sequence[Step], writer: Writer | None) -> CollectionReport:
        copies = doubts = False
        moves = () if self.computed_at is not None else (UpperMismatch,)
        for attempt in retrying(
            *(CopyNeeded, InputsGone, SourceMoved, *moves),
            attempts=MAX_ATTEMPTS,
            what=f"the reconcile of {self.shard.name!r}",
            first_pause_s=0.1,
            give_up=lambda failure: failure,
        ):
            number = attempt.retry_state.attempt_number
            with attempt:
                try:
                    report = self._attempt(steps, writer, copies=copies or doubts, doubts=doubts)
                except CopyNeeded:
                    copies = True
                    raise
                except SourceMoved:
                    # Two digests of one state differ: the source moves, or the kept digest is of other rows.
                    doubts = number + 1 >= _DOUBTS_FROM_ATTEMPT
                    raise
        if number > 1:
            report.details["attempts"] = number
        return report

    def _attempt(self, steps: Sequence[Step], writer: Writer | None, *, copies: bool, doubts: bool) -> CollectionReport:
        with scratch_folder(self.spark, self.settings) as scratch:
            attempt = Attempt(run=self, writer=writer, scratch=scratch, copies_source=copies, trusts_digest=not doubts)
            try:
                for step in steps:
                    step(attempt)
            except (CommitStateUnknown, ConflictsUnsettled, Unreachable):
                raise  # the commit may have landed; if not, maintenance removes the files
            except TidemarkError:
                attempt.discard()
                raise
            return attempt.report()


@dataclass(kw_only=True)
class Attempt:
    """What the steps of one attempt found so far; the comment beside a field names the step that sets the field."""

    run: Reconciliation
    writer: Writer | None  # None for a plan
    scratch: str  # a folder (URI) for this attempt alone; the folder need not exist
    copies_source: bool
    trusts_digest: bool = True  # otherwise the stored rows are scanned, whatever digest is kept

    began_ms: int = field(init=False)  # pin: before the source was looked at
    pinned: Pinned = field(init=False)  # pin
    source: OpenedSource = field(init=False)  # open
    followed: Followed | None = None  # follow: None if all rows are compared
    compared_because: str = ""  # follow: why all rows are compared, and nobody tried to follow the changes
    fallback: str = ""  # follow: why the changes could not be followed
    comparison: Comparison = field(init=False)  # scan, unless the corrections are known from what changed
    scanned: Scan = field(init=False)  # scan, unless the digests are known from what changed
    difference: Difference = field(init=False)  # follow or compare, and judge
    time: int = field(init=False)  # write: of the corrections, in ms since the Unix epoch
    batch: Batch | None = None  # write
    upper: Frontier = field(init=False)  # the one that was pinned; publish
    superseded: list[str] = field(default_factory=list)  # publish: branches of staged corrections of the same rows
    sample: dict[str, list[dict[str, object]]] | None = None  # sample_corrections

    @cached_property
    def guards(self) -> Guards:
        """The guards of this run."""
        return self.run.overrides.apply(self.run.declaration.guards)

    @cached_property
    def condition(self) -> Column | None:
        """What limits the rows of both sides to the slice; None without one."""
        run = self.run
        if run.slice is None or run.declaration.scope is None:
            return None
        return in_slice(run.declaration.scope.column, run.slice, self.pinned.shape.schema)

    @cached_property
    def state(self) -> str:
        """The name of the state of the source, of the declaration, and of the slice; empty without one."""
        run, state = self.run, self.source.state
        return "" if state is None else name_desired(state, run.declaration, self.pinned.head, run.slice)

    @cached_property
    def state_to_keep(self) -> str:
        """``state``, if a run as declared would accept it, and a change from now on gives it another name.

        Ask after all rows were read: the source is looked at once more.
        """
        is_to_keep = not self.run.overrides.are_given and self.source.is_still_named(self.began_ms)
        return self.state if is_to_keep else ""

    @property
    def compared_ms(self) -> int:
        """When all rows were compared last, for the next run: by this run, or by one before."""
        compares_all = self.followed is None and not self.run.hands_changes
        return self.began_ms if compares_all else self.pinned.note.compared_ms

    @property
    def why_all_rows(self) -> str:
        """Why the run compares all rows, whatever is known of the changes of the source; empty: it need not."""
        run, compared_ms = self.run, self.pinned.note.compared_ms
        if run.is_full:
            return "guards of this run alone ask for it" if run.overrides.are_given else "`full` asks for it"
        if is_due(compared_ms, run.declaration.verify_after_ms, now_ms=self.began_ms):
            return explain_due(compared_ms, now_ms=self.began_ms)
        return "" if self.trusts_digest else "what is kept of the rows is in doubt: it did not add up in this run"

    @property
    def is_followable(self) -> bool:
        """Whether the changes of the source alone decide what the next run corrects."""
        declaration = self.run.declaration
        rule = declaration.guards.on_duplicate_key  # which row of a key is the first one depends on all of them
        is_whole = declaration.scope is None and rule is None and not self.run.overrides.are_given
        return is_whole and self.source.pinnable and self.source.followed is not None

    @property
    def files_to_scan(self) -> FollowedFiles | None:
        """The files of which a scan of all rows keeps the digests one by one; None if the next run cannot use these."""
        files = self.source.followed
        if not isinstance(files, FollowedFiles) or not self.is_followable:
            return None
        try:
            return files if files.by_number and are_worth_digests(files, self.pinned.file_digests) else None
        except CannotFollow as reason:
            log.warning("the next run of %s will compare all rows: %s", self.run.shard.name, reason)
            return None

    @property
    def expects_nothing(self) -> bool:
        """Whether all files have other times than those that were read last, and no other sizes."""
        files = self.source.followed
        if not isinstance(files, FollowedFiles) or not self.is_followable:  # then nothing is kept of the files
            return False
        return were_touched(files, self.pinned.file_digests)

    @property
    def mark(self) -> str:
        """What the next run needs to follow the changes of an Iceberg table; empty if it cannot."""
        followed = self.source.followed
        if not isinstance(followed, FollowedTable) or not self.is_followable or not self.state_to_keep:
            return ""
        return str(followed.mark(name_decisive(self.run.declaration, self.pinned.head)))

    @property
    def file_digests(self) -> bytes | None:
        """What the next run needs to follow the changes of files; None if it cannot, or if nothing changes."""
        files, difference, kept = self.source.followed, self.difference, self.pinned.file_digests
        if not isinstance(files, FollowedFiles) or not self.is_followable or difference.digest is None:
            return None
        found = self.followed.file_digests if self.followed else None
        if self.followed is None and (self.scanned.by_file is not None or not self.has_nothing_to_publish):
            decided_by, by_file = name_decisive(self.run.declaration, self.pinned.head), self.scanned.by_file
            with suppress(CannotFollow):
                found = digests_of(files, by_file, decided_by=decided_by, since_ms=self.began_ms)
        if found is None or (self.has_nothing_to_publish and kept is not None and found.says_the_same_as(kept)):
            return None
        return found.to_bytes(self.pinned.shape.layout)

    @property
    def unnoticed(self) -> str:
        """What to say of a source that has other rows in a state of the same name; empty if that is not so."""
        is_same = self.state != "" and self.state == self.pinned.note.source and vouches(self.pinned.head)
        if not is_same or self.difference.is_empty or not self.source.is_named_exactly:
            return ""
        return f"{self.source.where} has other rows, although its state has the same name: look at what changed it"

    @property
    def has_nothing_to_publish(self) -> bool:
        return self.difference.is_empty and not self.pinned.head.foreign

    @property
    def about(self) -> Slice | None:
        """The rows that the run corrects; None: all."""
        bounds, scope = self.run.slice, self.run.declaration.scope
        if bounds is None or scope is None:
            return None
        if isinstance(self.pinned.shape.schema[scope.column].dataType, DateType):
            bounds = Unit.DAY.covering(bounds)  # a date belongs to every unit that touches the day
        return Slice(scope.column, Range(bounds.start_ms, bounds.end_ms))

    def staged_corrections(self, head: ShardHead) -> tuple[list[str], list[str]]:
        """Return the branches of this deployment's staged corrections that the run makes obsolete, whole or in part.

        That is, all of their rows are among those that the run corrects, or only some.
        """
        about = self.about
        mine = Coverage()
        mine.add(about)
        branches = own_corrections(head, self.run.deployment) if self.run.deployment else []
        slices = {branch: read_slice(head, branch, column=about.column if about else "") for branch in branches}
        covered = [branch for branch, found in slices.items() if mine.covers(found)]
        return covered, [branch for branch, found in slices.items() if mine.touches(found) and branch not in covered]

    def check_staged(self, head: ShardHead) -> None:
        """Raise ``InputsGone`` if somebody else staged corrections of these rows since: their source may be newer."""
        pinned = self.pinned.head
        before, now = (
            {(b, each.staged_branches[b]) for b in chain(*self.staged_corrections(each))} for each in (pinned, head)
        )
        if before != now:
            raise InputsGone(f"another run staged corrections of the same rows of {self.run.shard.name!r}")

    def check_source_stands_still(self) -> None:
        if self.source.moved():
            raise SourceMoved(f"{self.source.where} was changed while it was read")

    def discard(self) -> None:
        """Remove the files and branches of a failed batch, which nobody will ever publish."""
        if self.batch is None:
            return
        batch, shard = self.batch, self.run.shard
        staged = drop_staged(shard, [branch for branch, _ in batch.branches])
        written = batch.deletes if staged else (*batch.added, *batch.retracted, *batch.deletes)
        delete_files(self.pinned.head.table, [file.file_path for file in written])

    def report(self) -> CollectionReport:
        run, difference, head = self.run, self.difference, self.pinned.head
        counts, refusal = difference.counts, difference.refusal
        could_be_spared = not head.is_empty and (self.source.followed is not None or self.source.state is not None)
        details: dict[str, object] = {
            "guard_overrides": run.overrides.to_json(),
            "foreign_commits": head.foreign and str(head.foreign),
            "foreign_updates": head.foreign_updates and str(head.foreign_updates),
            "slice": run.slice and str(run.slice),
            "superseded": self.superseded,
            UNNOTICED: self.unnoticed,
            "sample": self.sample,
            COMPARED_BECAUSE: could_be_spared and self.compared_because,
            FALLBACK: self.fallback,
            FILES: self.followed and self.followed.files,
            INPUT_COLUMNS: self.source.input_columns,
        }
        corrected = Outcome.STAGED if run.stages else Outcome.CORRECTED
        outcome = Outcome.UNCHANGED if self.has_nothing_to_publish else corrected
        return CollectionReport(
            outcome=Outcome.REFUSED if refusal else outcome,
            lower=self.pinned.upper,
            upper=self.upper,
            inserted=counts.inserted,
            retracted=counts.retracted,
            rows_source=counts.source,
            batches=0 if difference.is_empty else 1,
            strategy=difference.method.value,
            details={name: detail for name, detail in details.items() if detail},
            error=ErrorReport.of(refusal) if refusal else None,
        )


def pin(attempt: Attempt) -> None:
    """Pin the stored rows: all later steps compute for this snapshot, and publish only onto this snapshot."""
    run = attempt.run
    attempt.began_ms = run.clock.now_ms()
    head = run.shard.load()
    if run.computed_at is not None and run.computed_at != head.state.upper:
        raise UpperMismatch(run.computed_at, head.state.upper)
    check_foreign_commits(head.foreign or head.foreign_updates, run.declaration)
    named = [use.column for use in run.declaration.column_uses]
    properties, renames = head.table.properties, run.declaration.renames
    refuse_if_pending(named, properties, renames=renames, collection=run.shard.name)
    attempt.pinned = pin_snapshot(run.spark, run.shard, head, run.declaration.key, trusts_digest=attempt.trusts_digest)
    attempt.upper = attempt.pinned.upper
    fail_point("reconcile.pinned")


def open_declared(attempt: Attempt) -> None:
    """Open the source after the pin, so that no commit rests on an older state of the source than the commit before."""
    run = attempt.run
    source = run.handed_over
    if source is None:
        assert run.declaration.source is not None  # noqa: S101 - a differential declaration has one
        expected = {name: read.expected(f"{attempt.scratch}/inputs") for name, read in run.planned_inputs.items()}
        opening = Opening(run.spark, run.shards, run.settings, run.slice or run.data_interval, expected)
        source = open_source(run.declaration.source, opening, collection=run.declaration.name)
    attempt.source = source.materialise(f"{attempt.scratch}/source") if attempt.copies_source else source


def follow(attempt: Attempt) -> None:
    """Find the corrections by what changed in the source, or note why all rows are to be compared."""
    run, pinned, source = attempt.run, attempt.pinned, attempt.source
    attempt.compared_because = attempt.why_all_rows
    if attempt.compared_because:
        return
    followable = Followable(
        source=source,
        lookup=RowLookup(run.spark, pinned),
        guards=attempt.guards,
        decided_by=name_decisive(run.declaration, pinned.head),
        leaves_out_others=run.declaration.declares_columns,
        began_ms=attempt.began_ms,
    )
    try:
        attempt.followed = followable.follow()
    except CannotFollow as reason:
        attempt.fallback = str(reason)
    except TidemarkError:
        raise
    except Exception as error:  # whatever it is: if it is of the source, the next step meets it
        attempt.check_source_stands_still()
        log.warning("the changes of %s cannot be followed", run.shard.name, exc_info=True)
        attempt.fallback = f"the files that changed cannot be read: {first_line(error)}"
    if attempt.followed is None and not attempt.fallback and attempt.is_followable:
        attempt.compared_because = "nothing is kept from which the changes could be followed"
    if attempt.fallback:
        log.info("all rows of %s are compared: %s", run.shard.name, attempt.fallback)


def wanted_rows(attempt: Attempt, files: FollowedFiles | None = None) -> DataFrame:
    """Return the rows of the open source that the run is about, numbered.

    With ``files`` the rows also have the columns ``FILE`` and ``VALUE``.
    """
    run, shape, source = attempt.run, attempt.pinned.shape, attempt.source
    stored = from_spark(shape.schema, where=f"collection {run.shard.name!r}")
    desired = conform(
        source.desired,
        stored,
        where=source.where,
        leave_out_others=run.declaration.declares_columns,
        also=[] if files is None else [files.number.alias(FILE)],
    )
    if attempt.condition is not None:
        desired = desired.where(attempt.condition)
    if files is None:
        return shape.number(desired, NEW)
    return shape.number(desired, NEW, F.col(FILE)).withColumn(VALUE, RowLookup(run.spark, attempt.pinned).value)


def scan(attempt: Attempt) -> None:
    """Compute the digest of the source, and look up or compute the digest of the pinned rows."""
    source, followed = attempt.source, attempt.followed
    if followed is not None and followed.difference is not None:
        return
    with source.reading():
        files = attempt.files_to_scan if followed is None else None
        attempt.comparison = Comparison(
            pinned=attempt.pinned,
            condition=attempt.condition,
            desired=wanted_rows(attempt, files),
            source_is_pinned=source.pinnable,
            state=attempt.state,
            guards=attempt.guards,
            scratch=attempt.scratch,
            expects_nothing=attempt.expects_nothing,
            files=source.followed if isinstance(source.followed, FollowedFiles) else None,
            keeps_files=files is not None,
        )
        if followed is None:
            attempt.scanned = attempt.comparison.scan()


def compare(attempt: Attempt) -> None:
    """Find the corrections: rows to insert, rows to retract."""
    followed = attempt.followed
    if followed is not None and followed.difference is not None:
        attempt.difference = followed.difference
        return
    scanned = attempt.scanned if followed is None or followed.scan is None else followed.scan
    with attempt.source.reading():
        attempt.difference = attempt.comparison.compare(scanned)


def judge(attempt: Attempt) -> None:
    """Ask the guards, and verify that all passes read one state of the source."""
    run, pinned, condition = attempt.run, attempt.pinned, attempt.condition
    with attempt.source.reading():
        difference = attempt.difference.judged(attempt.guards)
        if difference.corrections is not None:
            check_columns_occur(attempt.source, pinned, condition, difference.corrections)
    attempt.check_source_stands_still()
    if condition is not None:  # the stored digest covers all slices: add the corrections of this slice
        whole = pinned.digest
        if whole is not None and difference.corrections is not None:
            whole += difference.corrections.digest(whole.bucket_count)
        difference = replace(difference, digest=whole)
    attempt.difference = difference
    if attempt.unnoticed:
        log.warning("%s: %s", run.shard.name, attempt.unnoticed)


def apply_changes(attempt: Attempt) -> None:
    """Find the corrections that changes of the stored rows make, and ask the guards.

    Raises ``NotPossible`` if corrections are staged, which were computed against rows without the changes.
    """
    run, pinned, source = attempt.run, attempt.pinned, attempt.source
    if run.deployment and own_corrections(pinned.head, run.deployment):
        raise NotPossible(
            f"corrections of {run.shard.name!r} are staged, so that it is not known yet what the changes are to change",
            hint=f"publish them: `tidemark flush {run.shard.name}`; or hand all rows over, by `reconcile_frame`",
        )
    changes = HandedChanges(source.desired, source.where, RowLookup(run.spark, pinned), attempt.guards)
    with source.reading():
        attempt.difference = changes.compare().judged(attempt.guards)


def write(attempt: Attempt) -> None:
    """Write the corrections into files that are not visible yet."""
    difference, pinned = attempt.difference, attempt.pinned
    if difference.refusal is not None:
        raise difference.refusal
    fail_point("reconcile.compared")
    attempt.time = max(attempt.run.clock.now_ms(), pinned.upper)
    if attempt.has_nothing_to_publish:
        pass
    elif difference.corrections is None:  # a commit without rows drops the rows of other engines
        attempt.batch = Batch(schema_id=pinned.head.table.metadata.current_schema_id)
    else:
        assert attempt.writer is not None  # noqa: S101 - a plan does not write
        with attempt.source.reading():
            clustered_by = attempt.run.declaration.cluster_by or ()
            attempt.batch = difference.corrections.write(attempt.writer, pinned, attempt.time, cluster_by=clustered_by)
        attempt.check_source_stands_still()
    fail_point("reconcile.before-publish")


def publish(attempt: Attempt) -> None:
    """Publish or stage the corrections; without corrections only advance the upper.

    The commit also settles what was staged from an older state of the source, because the contents may still be those
    that it was computed against: it is removed, or out of date from then on if it is about other rows, too.
    """
    run, pinned, batch, lower = attempt.run, attempt.pinned, attempt.batch, attempt.pinned.upper
    assert attempt.writer is not None  # noqa: S101 - a plan does not publish
    file_digests = attempt.file_digests
    note, digest = pinned.digest_to_keep(
        attempt.difference.digest,
        changed=attempt.difference.counts.inserted + attempt.difference.counts.retracted,
        source=attempt.state_to_keep,
        compared_ms=attempt.compared_ms,
        mark=attempt.mark,
        keeps_file=attempt.has_nothing_to_publish and file_digests is None,
    )
    covered, touched = attempt.staged_corrections(pinned.head)
    schema_id = pinned.head.table.metadata.current_schema_id
    if run.stages and batch is None and not touched and is_alone(run.settings, run.shard.name):
        attempt.check_staged(run.shard.load())  # by a run that has ended: one that is at work has a lease
        attempt.superseded = drop_staged(run.shard, covered, seen=pinned.head)
    elif run.stages:  # without rows it still says that what looked earlier is out of date, staged or still at work
        stage_whole(
            run.shard,
            batch or Batch(schema_id=schema_id),
            branch=run.branch,
            lower=lower,
            time=attempt.time,
            digest=digest,
            digest_note=note,
            about=slice_text(attempt.about),
            check=attempt.check_staged,
        )
    else:
        attempt.superseded = covered
        obsolete = tuple((branch, pinned.head.staged_branches[branch]) for branch in covered)
        if batch is None:
            published = attempt.writer.advance(
                lower=lower,
                new_upper=attempt.time + 1,
                digest=digest,
                digest_parts=file_digests,
                digest_note=note,
                digest_schema_id=schema_id,
                branches=obsolete,
                outdates_staged=bool(touched),
            )
        else:
            published = attempt.writer.publish(
                batch,
                Batch(branches=obsolete),
                lower=lower,
                new_upper=attempt.time + 1,
                digest=digest,
                digest_parts=file_digests,
                digest_note=note,
            )
        attempt.upper = published.state.upper


def sample_corrections(attempt: Attempt) -> None:
    """Keep some of the corrections for the report of a plan."""
    if attempt.difference.corrections is not None:
        attempt.sample = attempt.difference.corrections.samples(attempt.run.sample_rows)


STEPS = (pin, open_declared, follow, scan, compare, judge, write, publish)
CHANGE_STEPS = (pin, open_declared, apply_changes, write, publish)
