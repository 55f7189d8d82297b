"""What one run read and wrote, as its result and the declarations tell. Pure, but for the look at tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.deployment import Applied, AppliedSink
from tidemark.collections.schema.types import Columns
from tidemark.collections.sources.formats.buffer import BufferSource
from tidemark.collections.sources.formats.files import FileSource
from tidemark.collections.sources.formats.source import Source
from tidemark.collections.sources.formats.sql import SqlSource
from tidemark.orchestration.lineage.datasets import DatasetName, name_of_buffer, name_of_source, name_of_target
from tidemark.orchestration.lineage.query_columns import trace_columns
from tidemark.report import INPUT_COLUMNS, SKIPPED_BECAUSE, Outcome
from tidemark.settings import Settings

# The operations that carry rows from one place to another; all others change rows in their place.
_CARRYING: Final = frozenset({"reconcile", "append", "ingest", "replay", "flush", "sink"})
_OUT_OF_BUFFER: Final = frozenset({"ingest", "replay"})
_VISIBLE: Final = frozenset({Outcome.CORRECTED, Outcome.APPENDED, Outcome.FORWARDED, Outcome.FLUSHED, Outcome.CARRIED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The table of a collection: its folder, its name in the catalog, and what the last commit left there."""

    place: DatasetName
    in_catalog: DatasetName
    columns: Columns
    upper: int | str
    snapshot_id: int


class Origin(NamedTuple):
    """A column that a column comes from; ``is_copied`` if its values come as they are."""

    dataset: DatasetName
    column: str
    is_copied: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """The datasets that a run read, the one that it wrote, and where each column there comes from."""

    inputs: tuple[DatasetName, ...]
    output: DatasetName
    origins: Mapping[str, tuple[Origin, ...]] = field(default_factory=dict)
    rows: int | None = None  # inserted and retracted; None while nobody sees them
    table: Table | None = None  # of the collection that was written
    read: tuple[Table, ...] = ()  # the collections among the inputs
    query: str | None = None
    version: str | None = None  # the snapshot that the run left; None if it left none, or another commit has come since


Look = Callable[[str], Table]


def flow_of(result: Mapping[str, Any], applied: Applied, settings: Settings, look: Look) -> Flow | None:
    """Return what the run behind a result read and wrote; None if it carried nothing, or its object is gone.

    ``look`` returns the table of a collection. Raises as ``look`` and ``name_of_source``.
    """
    outcome, details = result["outcome"], result.get("details") or {}
    is_idle = result.get("error") or outcome == Outcome.SKIPPED or SKIPPED_BECAUSE in details
    if is_idle or result["operation"] not in _CARRYING:
        return None
    rows = result["inserted"] + result["retracted"] if outcome in {*_VISIBLE, Outcome.UNCHANGED} else None
    name = result["name"]
    if result["operation"] == "sink":
        return _flow_of_sink(applied.sinks[name], settings, look, rows=rows) if name in applied.sinks else None
    if (declaration := applied.declarations.get(name)) is None:
        return None
    return _flow_into(declaration, result, settings, look, rows=rows)


def _flow_of_sink(sink: AppliedSink, settings: Settings, look: Look, *, rows: int | None) -> Flow | None:
    if (target := name_of_target(sink.declaration.to, settings)) is None:
        return None
    table = look(sink.collection)
    origins = {column.name: (Origin(table.place, column.name, is_copied=True),) for column in table.columns}
    return Flow(inputs=(table.place,), output=target, origins=origins, rows=rows, read=(table,))


def _flow_into(
    declaration: Declaration, result: Mapping[str, Any], settings: Settings, look: Look, *, rows: int | None
) -> Flow | None:
    table, source = look(declaration.name), declaration.source
    if isinstance(source, BufferSource) != (result["operation"] in _OUT_OF_BUFFER) and result["operation"] != "flush":
        source = None  # rows that a program, or a person, appended
    read = {each: look(each) for each in (declaration.inputs if source else ())}
    places = dict(_named_inputs(source, settings, read))
    details = result.get("details") or {}
    if isinstance(source, SqlSource):
        origins = _origins_by_query(source, places, table, details.get(INPUT_COLUMNS, {}), read)
    else:
        origins = _origins_by_name(source, places.get(""), table)
    flow = partial(
        Flow,
        inputs=tuple(dict.fromkeys(place for place in places.values() if place)),
        origins=origins,
        rows=rows,
        read=tuple(read.values()),
        query=source.sql if isinstance(source, SqlSource) else None,
    )
    if result["outcome"] == Outcome.FORWARDED:
        buffer = name_of_buffer(declaration.writes_to or "", settings)
        return None if buffer is None else flow(output=buffer)
    is_newest = rows is not None and table.upper == result["upper"]
    return flow(output=table.place, table=table, version=str(table.snapshot_id) if is_newest else None)


def _named_inputs(
    source: Source | None, settings: Settings, read: Mapping[str, Table]
) -> Iterator[tuple[str, DatasetName | None]]:
    """Yield the inputs of a query by their names in it, and a source that stands alone without one."""
    inputs: Iterable[tuple[str, Source]] = () if source is None else (("", source),)
    if isinstance(source, SqlSource):
        inputs = source.inputs.items()
    for alias, each in inputs:
        collection = each.collection_name
        yield alias, name_of_source(each, settings) if collection is None else read[collection].place


def _origins_by_name(source: Source | None, place: DatasetName | None, table: Table) -> dict[str, tuple[Origin, ...]]:
    """Return the origins of the columns of a collection that has those of its source, which nothing computes."""
    if place is None or (isinstance(source, BufferSource) and source.envelope is not None):
        return {}
    return {column.name: (Origin(place, column.name, is_copied=True),) for column in table.columns}


def _origins_by_query(
    source: SqlSource,
    places: Mapping[str, DatasetName | None],
    table: Table,
    seen: Mapping[str, list[str]],
    read: Mapping[str, Table],
) -> dict[str, tuple[Origin, ...]]:
    """Return the origins of the columns that a query computes; ``seen`` are the columns that the run found.

    Nothing if the columns of an input are not known: a name alone might then be of any input.
    """
    known: dict[str, list[str]] = {}
    for alias, each in source.inputs.items():
        columns = each.columns if isinstance(each, FileSource) else None
        if each.collection_name is not None:
            columns = read[each.collection_name].columns
        known[alias] = seen.get(alias) or [column.name for column in columns or ()]
    if not all(known.values()):
        return {}
    stored = {column.name.lower(): column.name for column in table.columns}
    found: dict[str, tuple[Origin, ...]] = {}
    for name, origins in trace_columns(source.sql, known).items():
        of_datasets = [(places[each.input], each) for each in origins]
        named = tuple(Origin(place, each.column, each.is_copied) for place, each in of_datasets if place is not None)
        if named and name.lower() in stored:
            found[stored[name.lower()]] = named
    return found
