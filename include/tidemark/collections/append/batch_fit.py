"""Compares the columns of a batch with those of its collection, which may evolve so that the batch fits."""

from __future__ import annotations

from collections.abc import Collection

from pyiceberg.exceptions import CommitFailedException

from tidemark.collections.append.append import Append
from tidemark.collections.apply.execute import alter_columns, read_stored
from tidemark.collections.apply.plan import Add, Alteration, Widen
from tidemark.collections.mode import lead_to_write
from tidemark.collections.schema.types import Column, Columns, Primitive, fits, is_reserved, stored_columns, widens
from tidemark.collections.sources.batch_file import GivenColumns
from tidemark.errors import InputsGone, SchemaMismatch


def fit_columns(batch: Append, given: GivenColumns, *, evolve: bool) -> None:
    """Make the columns of the collection those that the batch needs; the batch then has the new head.

    Raises:
        SchemaMismatch: As ``plan_fit``.
        ReadOnly: If the deployment is read-only: a schema is the leader's, and staged batches have to fit it.
        InputsGone: If another process changed the columns.
    """
    shard, stored = batch.shard, read_stored(batch.head.table).columns
    changes = plan_fit(given, stored, collection=shard.name, evolve=evolve)
    if not changes:
        return
    lead_to_write(shard, batch.deployment, what="change of the columns")
    try:
        alter_columns(shard, changes)
    except CommitFailedException as error:
        raise InputsGone(f"the columns of {shard.name!r} were changed by another process") from error
    batch.head = shard.load()


def plan_fit(given: GivenColumns, stored: Columns, *, collection: str, evolve: bool) -> list[Alteration]:
    """Return the changes of the collection, with user columns ``stored``, that make the columns of the batch fit.

    With ``evolve`` columns may be added and types widened, and columns that the batch lacks are NULL.

    Raises ``SchemaMismatch`` if the batch cannot fit, or would need a change without ``evolve``.
    """
    types = {column.name: column.type for column in stored_columns(given.types)}
    new_types = types | {column.name: column.type for column in stored_columns(given.guessed)}
    kept = {column.name: column.type for column in stored}
    _check_names(given, kept, collection=collection, evolve=evolve)
    changes: list[Alteration] = []
    for name in given.names:
        if name not in kept:
            changes.append(Add(collection, Column(name, new_types.get(name, Primitive("string")))))
        elif name in types and not fits(types[name], kept[name]):
            if not evolve or not widens(kept[name], types[name]):
                raise SchemaMismatch(
                    f"column {name!r} of {given.where} is {types[name]}, {collection!r} stores {kept[name]}",
                    hint="write it with that type",
                )
            changes.append(Widen(collection, name, kept[name], types[name]))
    return changes


def _check_names(given: GivenColumns, kept: Collection[str], *, collection: str, evolve: bool) -> None:
    missing = [name for name in kept if name not in given.names and given.is_complete]
    others = [name for name in given.names if name not in kept]
    if reserved := sorted(filter(is_reserved, others)):
        raise SchemaMismatch(
            f"{given.where} has the column {reserved[0]!r}, whose name is Tidemark's own or Iceberg's", hint="rename it"
        )
    if not evolve and (missing or others):
        parts = [f"lacks {_listed(missing)}"] * bool(missing) + [f"has also {_listed(others)}"] * bool(others)
        raise SchemaMismatch(
            f"{given.where} {' and '.join(parts)}, compared with {collection!r}",
            hint="repair it, or declare `on_schema_change: evolve` to add columns and read NULL for others",
        )
    if given.names and not set(kept) & set(given.names):
        raise SchemaMismatch(f"{given.where} has no column of {collection!r}", hint="is it the right one?")


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names))
