"""Plans the sinks of an ``apply``: which are new, which are altered, and what cannot be altered in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.declarations.columns import ColumnUse, Need, check_columns
from tidemark.collections.declarations.files import Declarations
from tidemark.collections.declarations.sink import SinkDeclaration
from tidemark.collections.deployment import Applied
from tidemark.collections.schema.types import Columns
from tidemark.errors import ConfigurationInvalid, IncompatibleChange, NotPossible

InspectSink = Callable[[SinkDeclaration, Columns], None]  # raises if the target cannot take rows of these columns


@dataclass(frozen=True, slots=True)
class SinkStep:
    """Make a sink, or alter how it is watched, or how its columns are called; its next run writes to the target."""

    name: str
    sink: SinkDeclaration
    fields: tuple[str, ...] = ()  # the changed ones; empty for a new sink

    @property
    def action(self) -> str:
        return "alter sink" if self.fields else "create sink"

    def __str__(self) -> str:
        if self.fields:
            return f"change {', '.join(self.fields)}"
        key = f", key {', '.join(self.sink.key_columns)}" if self.sink.key_columns and self.sink.writes_by_key else ""
        return f"create sink: {self.sink.mode} of {self.sink.collection} to {self.sink.to}{key}"


def plan_sinks(
    found: Declarations,
    applied: Applied,
    columns_of: Callable[[str], Columns],
    inspect: InspectSink,
    moved: Mapping[str, Mapping[str, str]],
) -> tuple[list[SinkStep], list[str]]:
    """Return the steps of the declared sinks, and the names of sinks that stay as they are.

    ``columns_of`` returns the columns that a collection has after the apply, ``moved`` has the names that columns of
    collections get, by the present ones. The target of a new sink is inspected.

    Raises:
        UsageError: If a collection cannot be mirrored.
        ConfigurationInvalid: If a key, or a partition, names a column that the collection does not have, also of an
            applied sink that is not declared here; or if the environment lacks the way to the targets of new sinks.
        IncompatibleChange: If what a sink carries, or where to, is changed.
        NotPossible: If two sinks have one target.
        Others as ``inspect``.
    """
    steps: list[SinkStep] = []
    unchanged: list[str] = []
    invalid: list[ConfigurationInvalid] = []
    _refuse_shared_targets({**{name: each.declaration for name, each in applied.sinks.items()}, **found.sinks})
    collections = {**applied.declarations, **found.by_name}
    for name, declared in found.sinks.items():
        collection = collections[declared.collection]
        wanted, columns = declared.resolve(collection), columns_of(declared.collection)
        _check_columns(wanted, columns, where=found.places[name])
        before = applied.sinks.get(name)
        if before is None:
            try:
                inspect(wanted, columns)
            except ConfigurationInvalid as error:  # such as a login that is not set: all of them are said at once
                invalid.append(ConfigurationInvalid(f"{found.places[name]}: sink {name!r}: {error}", hint=error.hint))
            steps.append(SinkStep(name, wanted))
            continue
        moves = moved.get(collection.name, {})
        _refuse_another_target(_follow_renames(before.declaration, collection, columns, moves), wanted)
        if fields := _changed_fields(before.declaration, wanted):
            steps.append(SinkStep(name, wanted, fields))
        else:
            unchanged.append(name)
    if invalid:
        hints = dict.fromkeys(error.hint for error in invalid)
        raise ConfigurationInvalid("\n".join(map(str, invalid)), hint="; ".join(filter(None, hints))) from invalid[0]
    for name in applied.sinks.keys() - found.sinks.keys():
        before = applied.sinks[name]
        if (carried := found.by_name.get(before.collection)) is None:
            continue
        columns = columns_of(carried.name)
        wanted = _follow_renames(before.declaration, carried, columns, moved.get(carried.name, {})).resolve(carried)
        _check_columns(wanted, columns, where=found.places[carried.name])
        if fields := _changed_fields(before.declaration, wanted):
            steps.append(SinkStep(name, wanted, fields))
    return steps, unchanged


def _follow_renames(
    sink: SinkDeclaration, collection: Declaration, columns: Columns, moved: Mapping[str, str]
) -> SinkDeclaration:
    """Return an applied sink with the names that its columns have after the apply: what it writes stays the same.

    Raises ``IncompatibleChange`` if what is in the target bears the old names of the key.
    """
    present = {column.name for column in columns}
    others = {old: new for old, new in collection.renames.items() if old not in present and new in present}
    followed = sink.follow({**others, **moved})  # another engine has made the others
    if followed.key_columns != sink.key_columns and sink.to.keys_have_names:
        raise IncompatibleChange(
            f"sink {sink.name!r}: the messages in {sink.to} are keyed by {', '.join(sink.key_columns)}, and those to "
            f"come would be keyed by {', '.join(followed.key_columns)}: what is there would never be replaced",
            hint="drop the sink, apply the new name, and declare the sink again with a topic of its own, or with "
            "`existing: replace`; nothing was applied",
        )
    return followed


def _refuse_shared_targets(sinks: Mapping[str, SinkDeclaration]) -> None:
    owners: dict[str, str] = {}
    for name, sink in sinks.items():
        owner = owners.setdefault(str(sink.to), name)
        if owner != name:
            raise NotPossible(
                f"the sinks {owner!r} and {name!r} have one target, {sink.to}: each would undo what the other wrote",
                hint="give each a target of its own, or drop one of them",
            )


def _check_columns(sink: SinkDeclaration, columns: Columns, *, where: str) -> None:
    uses = [ColumnUse("key", name, Need.KEY) for name in sink.key_columns]
    uses += [ColumnUse("to.partition", name) for name in sink.to.columns]
    try:
        check_columns(uses, columns)
    except ValueError as error:
        raise ConfigurationInvalid(f"{where}: sink {sink.name!r}: {error}") from error


def _changed_fields(old: SinkDeclaration, new: SinkDeclaration) -> tuple[str, ...]:
    before, after = old.to_json(), new.to_json()
    return tuple(sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name)))


def _refuse_another_target(old: SinkDeclaration, new: SinkDeclaration) -> None:
    """Raise ``IncompatibleChange`` if a field differs that decides what is in the target."""
    before, after = old.to_json(), new.to_json()
    deciding = ("from", "to", "mode", *(("key",) if old.writes_by_key else ()))
    fixed = [name for name in deciding if _without_existing(before, name) != _without_existing(after, name)]
    if fixed:
        raise IncompatibleChange(
            f"sink {new.name!r}: `{'`, `'.join(fixed)}` cannot be changed: what is in the target was written otherwise",
            hint="drop the sink and declare it again, with `existing: replace` to load the same target anew, or "
            "declare another one under another name; nothing was applied",
        )


def _without_existing(fields: Mapping[str, object], name: str) -> object:
    value = fields.get(name)
    return {key: part for key, part in value.items() if key != "existing"} if isinstance(value, dict) else value
