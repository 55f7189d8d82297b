"""Plans ``apply`` as a list of steps, which explainer and executor share; reads and writes no store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidemark.collections.apply.left_buffers import LeftBuffers
from tidemark.collections.apply.renames import find_renames
from tidemark.collections.apply.sinks import SinkStep
from tidemark.collections.declarations.collection import MAX_BUCKETS, Declaration, Kind
from tidemark.collections.declarations.sink import SinkDeclaration
from tidemark.collections.schema.renaming import ColumnRenames, Renaming, plan_renames
from tidemark.collections.schema.types import Column, Columns, Decimal, Primitive, Type, columns_text, fits, widens
from tidemark.errors import IncompatibleChange

BUCKET_BYTES = 128 * 1024 * 1024  # of the source: a bucket is then one file of a good size, or a few


@dataclass(frozen=True, slots=True)
class Stored:
    """A collection as its table describes it."""

    kind: Kind
    columns: Columns
    key: tuple[str, ...]
    buckets: int
    numbers_entries: bool = False  # whether rows bear the numbers of their entries
    open_rows: int = 0  # that are accepted, and visible once they are persisted
    renaming: Renaming = field(default_factory=Renaming)  # what the table says of earlier renames


@dataclass(frozen=True, slots=True)
class Wanted:
    """A collection as its declaration and its source describe it."""

    declaration: Declaration
    columns: Columns
    buckets: int | None  # None: not declared, so the stored number stays

    @property
    def name(self) -> str:
        return self.declaration.name


@dataclass(frozen=True, slots=True)
class Create:
    """Make the table."""

    name: str
    kind: Kind
    columns: Columns
    key: tuple[str, ...]
    buckets: int
    numbers_entries: bool = False  # whether rows bear the numbers of their entries

    action = "create"

    def __str__(self) -> str:
        key = f"key {', '.join(self.key)}" if self.key else "no key"
        buckets = f", {self.buckets} buckets" if self.buckets > 1 else ""
        return f"create {self.kind} collection, {key}{buckets}: {columns_text(self.columns)}"


@dataclass(frozen=True, slots=True)
class RenameCollection:
    """Give the collection another name; its rows, its history and its state stay."""

    name: str
    old: str

    action = "rename collection"

    def __str__(self) -> str:
        return f"rename the collection {self.old!r}, with its rows and its history"


@dataclass(frozen=True, slots=True)
class Rename:
    """Give a column another name; its values stay."""

    name: str
    old: str
    new: str

    action = "rename column"

    def __str__(self) -> str:
        return f"rename column {self.old!r} to {self.new!r}"


@dataclass(frozen=True, slots=True)
class Add:
    """Add a column, NULL in the rows that are there."""

    name: str
    column: Column

    action = "add column"

    def __str__(self) -> str:
        return f"add column {self.column}"


@dataclass(frozen=True, slots=True)
class Widen:
    """Give a column a type that holds every value of the present type."""

    name: str
    column: str
    old: Type
    new: Type

    action = "widen column"

    def __str__(self) -> str:
        return f"widen column {self.column!r} from {self.old} to {self.new}"


@dataclass(frozen=True, slots=True)
class Drop:
    """Remove a column from the schema; old snapshots keep the values."""

    name: str
    column: str

    action = "drop column"

    def __str__(self) -> str:
        return f"drop column {self.column!r}"


@dataclass(frozen=True, slots=True)
class Register:
    """Store a declaration as applied."""

    name: str
    fields: tuple[str, ...]  # the changed fields; empty for a new declaration
    writes_to: str | None = None
    note: str = ""  # what becomes of what was appended before

    action = "register"

    def __str__(self) -> str:
        what = f"change {', '.join(self.fields)}" if self.fields else "register the declaration"
        where = "" if self.writes_to is None else f"rows that are appended go to the buffer {self.writes_to!r}"
        return "; ".join(part for part in (what, where, self.note) if part)


@dataclass(frozen=True, slots=True)
class NumberEntries:
    """Give rows the numbers of the entries that they come in, from now on."""

    name: str

    action = "number entries"

    def __str__(self) -> str:
        return "add column '_entry': the number of the entry that a row comes in, NULL in the rows that are there"


Alteration = Rename | Add | Widen | Drop | NumberEntries
Step = Create | RenameCollection | Alteration | Register | SinkStep


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """The steps, in order, and the ``declarations`` and ``sinks`` that the steps register.

    ``kept`` are applied collections and sinks that are not among the declarations: they stay until somebody drops them.
    ``renames`` are those of columns, by the collections that are there.
    """

    steps: tuple[Step, ...]
    declarations: dict[str, Declaration]
    unchanged: tuple[str, ...]
    kept: tuple[str, ...] = ()
    sinks: dict[str, SinkDeclaration] = field(default_factory=dict)
    renames: dict[str, ColumnRenames] = field(default_factory=dict)

    def alterations(self, name: str) -> list[Alteration]:
        """Return the changes of one collection's columns, to make in one commit."""
        return [step for step in self.steps if step.name == name and isinstance(step, Alteration)]

    def to_json(self) -> dict[str, Any]:
        return {
            "steps": [
                {"sink" if isinstance(step, SinkStep) else "collection": step.name}
                | {"action": step.action, "detail": str(step)}
                for step in self.steps
            ],
            "unchanged": list(self.unchanged),
            "kept": list(self.kept),
        }


def plan_apply(
    wanted: Sequence[Wanted], stored: Mapping[str, Stored], applied: Mapping[str, Declaration], left: LeftBuffers
) -> ApplyPlan:
    """Return the steps that turn the ``stored`` tables and the ``applied`` declarations into the ``wanted`` ones.

    Raises ``IncompatibleChange`` if changes cannot be made in place, or leave batches behind; with all these changes.
    """
    steps: list[Step] = []
    problems = list(left.problems)
    declared = {collection.name: collection.declaration for collection in wanted}
    renames = find_renames(declared, applied)
    columns: dict[str, ColumnRenames] = {}
    for collection in wanted:
        if collection.name in renames:
            steps.append(RenameCollection(collection.name, renames[collection.name]))
        present = stored.get(collection.name)
        if present is None:
            new, buckets = collection.declaration, collection.buckets or 1
            steps.append(Create(new.name, new.kind, collection.columns, new.key, buckets, new.event_time is not None))
            continue
        stored_as = renames.get(collection.name, collection.name)
        before = applied.get(stored_as)
        columns[collection.name] = plan_renames(
            collection.declaration.renames,
            {column.name for column in present.columns},
            registered=None if before is None else before.renames,
            said=present.renaming,
        )
        if present.open_rows and (why := _why_stranded(collection.declaration, before)):
            problems.append(
                f"collection {collection.name!r}: {present.open_rows} rows wait to be persisted{why}; "
                f"tidemark buffer persist {stored_as} --now"
            )
        try:
            steps.extend(plan_alterations(collection, present, columns[collection.name].needed))
        except IncompatibleChange as error:
            problems.append(f"{error}; {error.hint}" if error.hint else str(error))
    if problems:
        raise IncompatibleChange("\n".join(problems), hint="nothing was applied")
    changed = {name: declaration for name, declaration in declared.items() if applied.get(name) != declaration}
    steps.extend(
        Register(name, _changed_fields(applied.get(name), new), new.writes_to, left.notes.get(name, ""))
        for name, new in changed.items()
    )
    touched = {step.name for step in steps}
    unchanged = tuple(name for name in declared if name not in touched)
    kept = tuple(sorted(applied.keys() - {*declared, *renames.values()}))
    return ApplyPlan(tuple(steps), changed, unchanged, kept=kept, renames=columns)


def plan_alterations(wanted: Wanted, stored: Stored, renames: Mapping[str, str]) -> list[Alteration]:
    """Return the changes that turn the ``stored`` columns into the ``wanted`` ones; ``renames`` are still to be made.

    Raises ``IncompatibleChange`` if the kind, the key or the buckets differ, or a column cannot be changed in place.
    """
    name, declaration = wanted.name, wanted.declaration
    _refuse_one_name_for_two(name, renames)
    _refuse_another_shape(wanted, stored, renames)
    present = {renames.get(column.name, column.name): column.type for column in stored.columns}
    steps: list[Alteration] = [Rename(name, old, new) for old, new in renames.items()]
    for column in wanted.columns:
        if column.name not in present:
            steps.append(Add(name, column))
        elif step := _change_type(wanted, column, present[column.name]):
            steps.append(step)
    names = {column.name for column in wanted.columns}
    dropped = [column for column in present if column not in names]
    if dropped and not declaration.declares_columns:
        raise IncompatibleChange(
            f"collection {name!r}: its source no longer has the column{'s' if len(dropped) > 1 else ''} "
            f"{', '.join(map(repr, dropped))}",
            hint="declare `renames: {OLD: NEW}` to rename, or a `schema` without it to drop it",
        )
    steps += [Drop(name, column) for column in dropped]
    if declaration.event_time is not None and not stored.numbers_entries:
        steps.append(NumberEntries(name))
    return steps


def choose_buckets(size_bytes: int | None) -> int:
    """Return the number of buckets for a source of that size: a power of two; 1 if the size is unknown."""
    full_buckets = 0 if size_bytes is None else size_bytes // BUCKET_BYTES
    return min(1 << full_buckets.bit_length(), MAX_BUCKETS)


def _why_stranded(new: Declaration, before: Declaration | None) -> str:
    """Return why rows that wait to be persisted would never be; empty if they will be."""
    if before is not None and before.event_time != new.event_time:
        return f" by their `event_time` {before.event_time!r}"
    if new.lifecycle is not None and not new.lifecycle.persist:
        return ", and `persist: false` would never show them"
    return ""


def _refuse_one_name_for_two(name: str, renames: Mapping[str, str]) -> None:
    olds: dict[str, str] = {}
    for old, new in renames.items():
        if (other := olds.setdefault(new, old)) != old:
            raise IncompatibleChange(
                f"collection {name!r}: `renames` gives the columns {other!r} and {old!r} one name, {new!r}",
                hint="leave one of them out",
            )


def _refuse_another_shape(wanted: Wanted, stored: Stored, renames: Mapping[str, str]) -> None:
    name, declaration = wanted.name, wanted.declaration
    hint = "declare it under another name, with its own table"
    key = tuple(renames.get(column, column) for column in stored.key)
    if declaration.kind is not stored.kind:
        what = f"it is {stored.kind}, and cannot become {declaration.kind}"
    elif declaration.kind is not Kind.APPEND_ONLY and key != declaration.key:
        what = f"its key is {', '.join(key) or 'none'}, and cannot become {', '.join(declaration.key) or 'none'}"
        hint += "; or drop it and apply it anew: its rows come from its source again, with a history of their own"
    elif wanted.buckets is not None and wanted.buckets != stored.buckets:
        what = f"it has {stored.buckets} bucket{'s' if stored.buckets > 1 else ''}, and cannot get {wanted.buckets}"
    else:
        return
    raise IncompatibleChange(f"collection {name!r}: {what}", hint=hint)


def _change_type(wanted: Wanted, column: Column, stored: Type) -> Widen | None:
    name, declared = wanted.name, column.type
    if declared == stored:
        return None
    if widens(stored, declared) and isinstance(declared, Primitive | Decimal):
        return Widen(name, column.name, stored, declared)
    if fits(declared, stored) and not wanted.declaration.declares_columns:
        return None  # the type of the source is narrower now: its values fit unchanged
    raise IncompatibleChange(
        f"collection {name!r}: column {column.name!r} is {stored}, and cannot become {declared} in place",
        hint="only int to bigint, float to double and more digits of a decimal can be widened; "
        "cast it in the source, or give it another name",
    )


def _changed_fields(old: Declaration | None, new: Declaration) -> tuple[str, ...]:
    if old is None:
        return ()
    before, after = old.to_json(), new.to_json()
    return tuple(sorted(field for field in before.keys() | after.keys() if before.get(field) != after.get(field)))
