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
    """Make a sink, or alter how it is watched; its next run writes to the target."""

    name: str
    sink: SinkDeclaration
    fields: tuple[str, ...] = ()  # the changed ones; empty for a new sink

    @property
    def action(self) -> str:
        return "alter sink" if self.fields else "create sink"

    def __str__(self) -> str:
        if self.fields:
            return f"change {', '.join(self.fields)}"
        key = f", key {', '.join(self.sink.key_columns)}" if self.sink.key_columns else ""
        return f"create sink: {self.sink.mode} of {self.sink.collection} to {self.sink.to}{key}"


def plan_sinks(
    found: Declarations, applied: Applied, columns_of: Callable[[str], Columns], inspect: InspectSink
) -> tuple[list[SinkStep], list[str]]:
    """Return the steps of the declared sinks, and the names of sinks that stay as they are.

    ``columns_of`` returns the columns that a collection has after the apply. The target of a new sink is inspected.

    Raises:
        UsageError: If a collection cannot be mirrored.
        ConfigurationInvalid: If a key, or a partition, names a column that the collection does not have.
        IncompatibleChange: If what a sink carries, or where to, is changed.
        NotPossible: If two sinks have one target.
        Others as ``inspect``.
    """
    steps: list[SinkStep] = []
    unchanged: list[str] = []
    _refuse_shared_targets({**{name: each.declaration for name, each in applied.sinks.items()}, **found.sinks})
    collections = {**applied.declarations, **found.by_name}
    for name, declared in found.sinks.items():
        wanted = declared.resolve(collections[declared.collection])
        _check_columns(wanted, columns_of(wanted.collection), where=found.places[name])
        before = applied.sinks.get(name)
        if before is None:
            inspect(wanted, columns_of(wanted.collection))
            steps.append(SinkStep(name, wanted))
        elif fields := _changed_fields(before.declaration, wanted):
            steps.append(SinkStep(name, wanted, fields))
        else:
            unchanged.append(name)
    _check_carried(found.by_name, applied)
    return steps, unchanged


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
    """Return the changed fields. Raises ``IncompatibleChange`` if one of them decides what is in the target."""
    before, after = old.to_json(), new.to_json()
    fixed = [
        name
        for name in ("from", "to", "mode", "key")
        if _without_existing(before, name) != _without_existing(after, name)
    ]
    if fixed:
        raise IncompatibleChange(
            f"sink {new.name!r}: `{'`, `'.join(fixed)}` cannot be changed: what is in the target was written otherwise",
            hint="drop the sink and declare it again, or declare another one under another name; nothing was applied",
        )
    return tuple(sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name)))


def _without_existing(fields: Mapping[str, object], name: str) -> object:
    value = fields.get(name)
    return {key: part for key, part in value.items() if key != "existing"} if isinstance(value, dict) else value


def _check_carried(declared: Mapping[str, Declaration], applied: Applied) -> None:
    """Refuse a collection that its applied sinks could not carry any more (``UsageError``)."""
    for sink in applied.sinks.values():
        if sink.collection in declared:
            sink.declaration.resolve(declared[sink.collection])
