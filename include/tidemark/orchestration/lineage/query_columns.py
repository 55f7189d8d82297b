"""Which columns of its inputs each column of a query comes from; by sqlglot, which may be missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tidemark.interval import fill_interval

if TYPE_CHECKING:
    from sqlglot.lineage import Node

_DIALECT = "spark"
_ANY_TIME = "2000-01-01T00:00:00Z"  # in the place of {start} and {end}, which are no SQL


@dataclass(frozen=True, slots=True, order=True)
class InputColumn:
    """A column of an input of a query; ``is_copied`` if the values come out of the query as they are."""

    input: str
    column: str
    is_copied: bool


def trace_columns(query: str, inputs: Mapping[str, Sequence[str]]) -> dict[str, list[InputColumn]]:
    """Return the columns that each column of a Spark SQL query comes from; ``inputs`` are the columns of each input.

    A key that is joined by `USING` comes from both sides. What cannot be told for certain is left out: all of it where
    the query does not fit the columns of the inputs, or is one that sqlglot does not read, or if sqlglot is missing.
    """
    if find_spec("sqlglot") is None:
        return {}
    from sqlglot import exp, parse_one  # noqa: PLC0415 -- optional
    from sqlglot.errors import SqlglotError  # noqa: PLC0415
    from sqlglot.lineage import lineage  # noqa: PLC0415
    from sqlglot.optimizer.qualify import qualify  # noqa: PLC0415
    from sqlglot.optimizer.scope import build_scope  # noqa: PLC0415

    schema: dict[str, object] = {name: dict.fromkeys(columns, "unknown") for name, columns in inputs.items()}
    try:
        parsed = parse_one(fill_interval(query, _ANY_TIME, _ANY_TIME), dialect=_DIALECT)
        if parsed.find(exp.Except):  # sqlglot tells the right side, too, which no value comes from
            return {}
        qualified = qualify(parsed, schema=schema, dialect=_DIALECT)
        scope = build_scope(qualified)
        names: list[str] = getattr(qualified, "named_selects", [])  # a query has them, and other statements do not
        nodes = {
            name: lineage(name, qualified, schema=schema, dialect=_DIALECT, scope=scope, trim_selects=False)
            for name in names
        }
    except SqlglotError:
        return {}
    spelled = {(name.lower(), column.lower()): (name, column) for name, columns in inputs.items() for column in columns}
    may_copy = qualified.find(exp.Pivot) is None  # a pivot aggregates, and is no part of any column
    return {name: sorted(_leaves(node, spelled, may_copy=may_copy)) for name, node in nodes.items()}


def _leaves(node: Node, spelled: Mapping[tuple[str, str], tuple[str, str]], *, may_copy: bool) -> set[InputColumn]:
    """Return the columns of inputs below a column of the query; ``spelled`` has their names by those in lower case."""
    from sqlglot import exp, parse_one  # noqa: PLC0415

    found: dict[tuple[str, str], bool] = {}
    for leaf, is_copied in _walk(node, is_copied=may_copy):
        if isinstance(leaf.source, exp.Table):
            column = leaf.source.name.lower(), parse_one(leaf.name).name.lower()
            if column in spelled:
                found[column] = found.get(column, True) and is_copied
    return {InputColumn(*spelled[column], is_copied) for column, is_copied in found.items()}


def _walk(node: Node, *, is_copied: bool) -> Iterator[tuple[Node, bool]]:
    """Yield the ends of the ways from a column to the columns of tables, and whether each way only copies."""
    if not node.downstream:
        yield node, is_copied
    for below in node.downstream:
        yield from _walk(below, is_copied=is_copied and _copies(node))


def _copies(node: Node) -> bool:
    """Tell whether a column has the values of another one, as they are."""
    from sqlglot import exp  # noqa: PLC0415

    selected: Any = node.expression.unalias()
    if isinstance(node.source, exp.SetOperation):  # its branches say so themselves
        return True
    return isinstance(selected, exp.Column)
