"""Finds collections whose source has the state still that they were made equal to: nothing is scanned, no JVM starts.

A run that compares all rows leaves the name of the state that it read, and of all else that decides the result, with
the contents. A change of the contents by anybody else loses the name, or is seen as a foreign commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

from tidemark.clock import Clock
from tidemark.collections.declarations.collection import NOTHING_ABOUT_ROWS, Declaration
from tidemark.collections.deployment import Deployment, Mode
from tidemark.collections.digest.digest import HASH_VERSION, DigestNote
from tidemark.collections.isolation import NeedsSpark, find_resting, isolate
from tidemark.collections.mode import join_to_write
from tidemark.collections.objects.applied import open_applied
from tidemark.collections.reconcile.choosing.choice import skip_handed_over, skip_stale
from tidemark.collections.reconcile.choosing.input_order import run_inputs_first
from tidemark.collections.sources.formats.source import find_state
from tidemark.collections.sources.pins import Looking, Pin, name_state
from tidemark.collections.staged.batches import own_corrections
from tidemark.errors import TidemarkError, UpperMismatch
from tidemark.iceberg.leases.holding import holding
from tidemark.iceberg.leases.protection import is_alone
from tidemark.iceberg.shard.digest_file import bound_file, is_current
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.shard import naming_drop
from tidemark.iceberg.shards import Shards
from tidemark.interval import Interval, time_text
from tidemark.report import CollectionReport, Outcome, Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAME_SOURCE = "same-source"  # the word in a report's ``strategy``
COMPARED = "compared_at"  # in the details: when all rows were compared last, in ms
LOOKS_MS = 60_000
LOOKERS = 8  # threads: more would crowd a small database
_READING = 1  # raise it whenever this program reads other rows out of the same files or tables than before


def name_desired(state: Sequence[Pin], declaration: Declaration, head: ShardHead, slice_: Interval | None) -> str:
    """Return the name of the rows that a collection should hold: of its source's state, and all that decides else."""
    return name_state(state, *_list_decisive(declaration, head), str(slice_))


def name_decisive(declaration: Declaration, head: ShardHead) -> str:
    """Return the name of all that decides, beside the state of the source, which rows a collection should hold."""
    return name_state((), *_list_decisive(declaration, head))


def _list_decisive(declaration: Declaration, head: ShardHead) -> list[str]:
    return [
        str(HASH_VERSION),
        str(_READING),
        version("pyspark"),
        declaration.model_dump_json(warnings=False, exclude=NOTHING_ABOUT_ROWS),
        head.table.schema().model_dump_json(),  # with the ids: a column that went and came again has no values
    ]


def reconcile_unchanged(
    deployment: Deployment,
    declarations: Mapping[str, Declaration],
    *,
    interval: Interval | None = None,
    dry_run: bool = False,
    full: bool = False,
    clock: Clock,
) -> tuple[Report, list[str]]:
    """Reconcile the collections whose sources have not changed; return their reports, and the names of the others.

    Of a ``full`` run all are left but for those that are skipped; and all that were not looked at within a minute, as
    of stores that are slow: what Spark does then is worth its start. ``LOOKERS`` threads look at once, since a look
    waits for the store.

    A collection that reads another one of the ``declarations`` which is left is left, too: it may change. Those that
    are paused, or read one that is skipped, are reported as ``reconcile_all`` does.

    Raises as ``find_resting``.
    """
    started_at, shards = clock.now_ms(), Shards.connect(deployment.settings)
    resting = {} if dry_run else find_resting(deployment, clock)

    def run(declaration: Declaration) -> CollectionReport:
        if (report := resting.get(declaration.name) or skip_handed_over(declaration)) is not None:
            return report
        looks = partial(reconcile_same, shards, deployment, declaration, interval=interval, dry_run=dry_run)
        if full or (report := looks(clock=clock)) is None:
            raise NeedsSpark
        return report

    def look(declaration: Declaration, inputs: Mapping[str, CollectionReport | None]) -> CollectionReport | None:
        """Return the report of a collection; None leaves it."""
        reported = {name: report for name, report in inputs.items() if report is not None}
        if (skipped := skip_stale(declaration, reported)) is not None:
            return skipped
        if len(reported) < len(inputs) or clock.now_ms() - started_at > LOOKS_MS:
            return None
        try:
            return isolate(declaration.name, partial(run, declaration), clock=clock, settings=deployment.settings)
        except NeedsSpark:
            return None

    with nullcontext() if dry_run or not declarations else holding(deployment.settings, "reconcile", [*declarations]):
        found = run_inputs_first(declarations, look, threads=LOOKERS)
    report = Report(
        operation="plan" if dry_run else "reconcile",
        started_at=started_at,
        finished_at=clock.now_ms(),
        generation=deployment.generation,
        collections={name: done for name in declarations if (done := found[name]) is not None},
    )
    return report, [name for name in declarations if found[name] is None]


def reconcile_same(
    shards: Shards,
    deployment: Deployment,
    declaration: Declaration,
    *,
    interval: Interval | None,
    dry_run: bool,
    clock: Clock,
    spark: SparkSession | None = None,
) -> CollectionReport | None:
    """Advance a collection that equals its source already; None if that is not known, so that rows are to be compared.

    The order is that of every run: the token first, then the contents, then the source. With ``spark`` the states of
    remote files, and of tables in Spark's catalogs, are known, too. Raises as ``join_to_write``.
    """
    shard = open_applied(shards, deployment, declaration)
    writer, mode = (None, Mode.READ_ONLY) if dry_run else join_to_write(shard, deployment)
    with naming_drop(shard):
        now_ms, head = clock.now_ms(), shard.load()
        note = DigestNote.parse(head.state.digest)
        if note is None or not note.source or is_due(note.compared_ms, declaration.verify_after_ms, now_ms=now_ms):
            return None
        if not vouches(head) or (not dry_run and _is_about_to_change(head, deployment, mode, shard.name)):
            return None
        slice_ = declaration.slice_of(interval)
        looking = Looking(shards, deployment.settings, slice_, spark)
        if _find_name(looking, declaration, head) != note.source:
            return None
        upper = lower = head.state.open_upper(shard.name)
        if writer is not None and mode is Mode.READ_WRITE:
            try:
                advanced = writer.advance(lower=lower, new_upper=max(now_ms, lower) + 1)
            except UpperMismatch:  # somebody else is at work: what that does is to be compared
                return None
            upper = advanced.state.open_upper(shard.name)
    return CollectionReport(
        outcome=Outcome.UNCHANGED,
        lower=lower,
        upper=upper,
        rows_source=head.row_count if slice_ is None else None,
        strategy=SAME_SOURCE,
        details={COMPARED: note.compared_ms},
    )


def vouches(head: ShardHead) -> bool:
    """Say whether the note of the last run is about the present contents: nobody else wrote rows or changed columns."""
    is_ours = head.is_of_last_commit and not (head.foreign or head.foreign_updates)
    return is_ours and bound_file(head) is not None and is_current(head)


def _is_about_to_change(head: ShardHead, deployment: Deployment, mode: Mode, name: str) -> bool:
    """Say whether corrections are staged, or may be by somebody at work, whom this run would not find out of date."""
    if own_corrections(head, deployment):
        return True
    return mode is Mode.READ_ONLY and not is_alone(deployment.settings, name)


def is_due(compared_ms: int, verify_after_ms: int, *, now_ms: int) -> bool:
    """Say whether all rows are to be compared, whatever names say: the last time was too long ago, or is to come."""
    return not compared_ms <= now_ms < compared_ms + verify_after_ms


def explain_due(compared_ms: int, *, now_ms: int) -> str:
    """Say why ``is_due`` is true, for the report."""
    if not compared_ms:
        return "when all rows were compared last is not known"
    why = "`verify_after` makes it due" if compared_ms <= now_ms else "the clock was set back"
    return f"{why}: all rows were compared last at {time_text(compared_ms)} UTC"


def _find_name(looking: Looking, declaration: Declaration, head: ShardHead) -> str | None:
    """Return the name of the rows that the collection should hold now; None if nothing but a full run can tell.

    Whatever is wrong with the source is left to that run, which says so.
    """
    assert declaration.source is not None  # noqa: S101 - a differential declaration has one
    try:
        state = find_state(declaration.source, looking, collection=declaration.name)
    except TidemarkError:
        return None
    return None if state is None else name_desired(state, declaration, head, looking.interval)
