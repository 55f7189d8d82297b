"""Applies declarations: creates and alters tables first and registers last, so that a rerun completes a crashed run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType

from tidemark.clock import Clock
from tidemark.collections.apply.inspect_source import SourceInspector
from tidemark.collections.apply.left_buffers import CountWaiting, look_at_left_buffers
from tidemark.collections.apply.plan import (
    Add,
    Alteration,
    ApplyPlan,
    Create,
    Drop,
    Rename,
    RenameCollection,
    Stored,
    Wanted,
    Widen,
    choose_buckets,
    plan_apply,
)
from tidemark.collections.apply.renames import begun_renames, find_problems, find_renames
from tidemark.collections.apply.sinks import InspectSink, plan_sinks
from tidemark.collections.declarations.collection import Declaration, Kind
from tidemark.collections.declarations.columns import check_columns
from tidemark.collections.declarations.files import Declarations, order_by_inputs
from tidemark.collections.deployment import Applied, Deployment
from tidemark.collections.objects.drop import finish_drops, left_over
from tidemark.collections.objects.rename import finish_renames
from tidemark.collections.schema.convert import from_iceberg, iceberg_type, to_iceberg
from tidemark.collections.schema.renaming import RENAMED, Renaming
from tidemark.collections.schema.types import Columns
from tidemark.errors import CatalogOutOfSync, ConfigurationInvalid, ConflictsUnsettled
from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.shard.column_names import ENTRY, PRODUCER
from tidemark.iceberg.shard.foreign_commits import count_rows
from tidemark.iceberg.shard.head import OPEN
from tidemark.iceberg.shard.layout import SYSTEM_COLUMNS, partition_spec
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shards import Shards
from tidemark.retry import retrying

FAIL_POINTS = (
    "apply.planned",
    "apply.table-created",
    "apply.columns-changed",
    "apply.before-register",
    "apply.registered",
)
ATTEMPTS = 5
_LAYOUTS = {
    Kind.DIFFERENTIAL: ShardKind.DIFFERENTIAL,
    Kind.APPEND_ONLY: ShardKind.APPEND_ONLY,
    Kind.LATEST: ShardKind.DIFFERENTIAL,  # with the column `_producer`
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """Applies declarations to one installation."""

    shards: Shards
    deployment: Deployment
    inspector: SourceInspector
    count_waiting: CountWaiting
    inspect_sink: InspectSink
    clock: Clock

    def plan(self, declarations: Declarations) -> ApplyPlan:
        """Return what ``run`` would do now.

        Raises:
            ConfigurationInvalid: If a declaration names a column that its source does not have.
            IncompatibleChange: If a table cannot be changed to what is declared, or if batches wait in a buffer that
                their collection would not read any more.
            InputMissing: If columns are not declared and the source is not there.
            Others as ``plan_sinks``, and ``Buffers.open``, if a collection writes to a buffer, or leaves one.
        """
        return self._plan(declarations, self.deployment.registry.read())

    def run(self, declarations: Declarations) -> ApplyPlan:
        """Create and alter tables, then register all declarations in one commit; return the steps.

        Drops and renames that died before a table got its new name are completed first.

        Idempotent: after a crash at any point a rerun completes the steps.

        Raises:
            ConflictsUnsettled: If other processes kept changing the same tables or declarations.
            FencedByGeneration: If a newer deployment leads.
            TidemarkError: As ``plan``.
        """
        loop = retrying(
            *(CatalogOutOfSync, CommitFailedException),
            attempts=ATTEMPTS,
            what="the apply",
            give_up=lambda _: ConflictsUnsettled("others kept changing the same collections; run again"),
        )
        return loop(self._run_once, declarations)

    def _run_once(self, declarations: Declarations) -> ApplyPlan:
        finish_drops(self.shards, self.deployment, clock=self.clock)
        finish_renames(self.shards, self.deployment)
        applied = self.deployment.registry.read()
        plan = self._plan(declarations, applied)
        self._execute(plan, applied)
        return plan

    def _plan(self, declarations: Declarations, applied: Applied) -> ApplyPlan:
        wanted: list[Wanted] = []
        stored: dict[str, Stored] = {}
        planned: dict[str, Columns] = {}
        present = set(self.shards.names()) - left_over(self.shards, self.deployment)
        renames = find_renames(declarations.by_name, applied.declarations)
        renames |= begun_renames(applied.declarations, present)
        problems = find_problems(declarations.by_name, applied, present)
        for name in order_by_inputs(declarations.by_name):
            declaration = declarations.by_name[name]
            facts = self.inspector.inspect(declaration, planned)
            try:
                check_columns(declaration.column_uses, facts.columns)
            except ValueError as error:
                where = declarations.places[name]
                raise ConfigurationInvalid(f"{where}: collection {name!r}: {error}") from error
            planned[name] = facts.columns
            buckets = declaration.buckets
            if (stored_as := renames.get(name, name)) in present:
                stored[name] = read_stored(self.shards.open(stored_as).load().table)
            elif buckets is None and declaration.key:
                buckets = choose_buckets(facts.size_bytes)
            resolved = self.inspector.resolve(declaration, facts)
            wanted.append(Wanted(resolved, facts.columns, _bucket_count(declaration, facts.columns, buckets)))
        left = look_at_left_buffers(applied.declarations, declarations.by_name, self.count_waiting)
        left.problems += problems
        plan = plan_apply(wanted, stored, applied.declarations, left)

        def columns_of(name: str) -> Columns:
            return planned[name] if name in planned else read_stored(self.shards.open(name).load().table).columns

        moved = {name: renames.moved for name, renames in plan.renames.items()}
        steps, unchanged = plan_sinks(declarations, applied, columns_of, self.inspect_sink, moved)
        kept_sinks = applied.sinks.keys() - declarations.sinks.keys() - {step.name for step in steps}
        return replace(
            plan,
            steps=(*plan.steps, *steps),
            unchanged=(*plan.unchanged, *unchanged),
            kept=(*plan.kept, *sorted(kept_sinks)),
            sinks={step.name: step.sink for step in steps},
        )

    def _execute(self, plan: ApplyPlan, applied: Applied) -> None:
        fail_point("apply.planned")
        for step in plan.steps:
            if isinstance(step, Create):
                self.shards.create(
                    step.name,
                    schema=to_iceberg(step.columns),
                    layout=_LAYOUTS[step.kind],
                    key=() if step.kind is Kind.APPEND_ONLY else step.key,  # a persist goes by it, not the table
                    buckets=step.buckets,
                    of_buffer=step.numbers_entries or step.kind is Kind.LATEST,
                )
                fail_point("apply.table-created")
        old_names = {step.name: step.old for step in plan.steps if isinstance(step, RenameCollection)}
        for name, renames in plan.renames.items():
            changes = plan.alterations(name)
            if changes or renames.is_news:
                shard = self.shards.open(old_names.get(name, name))
                Writer.join(shard, self.deployment.generation)  # a newer deployment owns its tables
                alter_columns(shard, changes, said=renames.said)
                fail_point("apply.columns-changed")
        if plan.declarations or plan.sinks:
            fail_point("apply.before-register")
            registry = self.deployment.registry
            registry.replace(plan.declarations.values(), seen=applied, sinks=plan.sinks.values())
            fail_point("apply.registered")
        if old_names:
            finish_renames(self.shards, self.deployment)


def alter_columns(shard: Shard, changes: Iterable[Alteration], *, said: Renaming | None = None) -> None:
    """Change the columns in one metadata commit, which does not move ``main``; the table then has ``said`` of renames.

    Every publish names the schema of its files: the catalog refuses files that were written for the old columns, and
    the writer then writes the files again.
    """
    head = shard.load()
    first_system_column = SYSTEM_COLUMNS[head.state.layout][0]
    renames: list[Alteration] = []
    others: list[Alteration] = []
    for change in changes:
        (renames if isinstance(change, Rename) else others).append(change)
    with head.table.transaction() as transaction:
        # All renames first, at once: the other changes have the new names, and can use the old ones again.
        for step in filter(None, (renames, others)):
            with transaction.update_schema() as update:
                for change in step:
                    _alter_column(update, change, before=first_system_column)
        if said is not None and said.moved:
            transaction.set_properties({RENAMED: str(said)})
        elif said is not None and RENAMED in head.table.properties:
            transaction.remove_properties(RENAMED)


def read_stored(table: Table) -> Stored:
    """Return the collection that its table describes; the key is the sort order of the table."""
    schema = table.schema()
    layout = ShardKind(table.properties["tidemark.layout"])
    key = tuple(schema.find_column_name(field.source_id) or "" for field in table.sort_order().fields)
    return Stored(
        kind=_kind_of(layout, schema),
        columns=from_iceberg(schema, without=SYSTEM_COLUMNS[layout]),
        key=key,
        buckets=next(
            (f.transform.num_buckets for f in table.spec().fields if isinstance(f.transform, BucketTransform)), 1
        ),
        numbers_entries=ENTRY in schema.column_names,
        open_rows=_count_open(table),
        renaming=Renaming.read(table.properties),
    )


def _kind_of(layout: ShardKind, schema: Schema) -> Kind:
    if layout is ShardKind.APPEND_ONLY:
        return Kind.APPEND_ONLY
    return Kind.LATEST if PRODUCER in schema.column_names else Kind.DIFFERENTIAL


def _count_open(table: Table) -> int:
    opened = table.metadata.snapshot_by_name(OPEN)
    return 0 if opened is None else count_rows(opened)


def _bucket_count(declaration: Declaration, columns: Columns, buckets: int | None) -> int | None:
    """Return the real number of buckets: 1 if no column of the key has a type for buckets."""
    if buckets is None:
        return None
    schema = to_iceberg(columns)
    return buckets if partition_spec(schema, declaration.key, buckets).fields else 1


def _alter_column(update: UpdateSchema, change: Alteration, *, before: str) -> None:
    if isinstance(change, Rename):
        update.rename_column(change.old, change.new)
    elif isinstance(change, Add):
        update.add_column((change.column.name,), iceberg_type(change.column.type))
        update.move_before(change.column.name, before)
    elif isinstance(change, Widen):
        update.update_column(change.column, iceberg_type(change.new))
    elif isinstance(change, Drop):
        update.delete_column(change.column)
    else:
        update.add_column((ENTRY,), LongType())
