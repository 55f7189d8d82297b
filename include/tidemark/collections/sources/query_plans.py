"""Reads Spark plans: whether a query returns the same rows twice, and which tables a query reads."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]  # py4j has no annotations
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from tidemark.errors import ConfigurationInvalid

# These operators return the same rows twice, in whatever order their inputs come. An aggregate of doubles, a window
# with ties or a limit does not, so the rows of both passes are compared.
_REPEATABLE = frozenset(
    {
        "CTERelationDef", "CTERelationRef", "DataSourceV2Relation", "Distinct", "Filter", "Join", "LogicalRelation",
        "OneRowRelation", "Project", "RelationV2", "SubqueryAlias", "Union", "View", "WithCTE",
    }
)  # fmt: skip
_RELATIONS = frozenset({"DataSourceV2Relation", "HiveTableRelation", "LogicalRelation", "RelationV2"})
_CHANCE = frozenset({"Sample", "ScriptTransformation"})  # a seed of each run, and a program
# Texts that Spark replaces before it parses, and a function that takes a random number without saying so.
_OF_SESSION = re.compile(r"\$\{|\baes_encrypt\b", re.IGNORECASE)
# Spark takes a constant that begins so for a time of the present day, wherever a date or a time is wanted. How the
# characters of a constant are escaped is not looked into.
_OF_TODAY = re.compile(
    r"['\"]\s*(now|today|tomorrow|yesterday)\b|\b(date|timestamp\w*)\s*'[^']*\\|\b(date|timestamp\w*)\s*\"[^\"]*\\",
    re.IGNORECASE,
)
# Where a row lies, which a compaction changes, though the rows have the same name.
_OF_FILES = re.compile(
    r"\b_(file|pos|partition|deleted|spec_id|metadata|row_id|last_updated_sequence_number)\b", re.IGNORECASE
)

_SPECIAL_TIMES = "org.apache.spark.sql.catalyst.optimizer.SpecialDatetimeValues"
_TREE_PATTERN = "org.apache.spark.sql.catalyst.trees.TreePattern"
_PLAN_EXPRESSION = "org.apache.spark.sql.catalyst.expressions.PlanExpression"


def rests_on_rows(spark: SparkSession, frame: DataFrame, text: str) -> bool:
    """Say whether ``frame`` depends on the rows of its inputs alone: on no clock, no chance, no files, no program.

    ``text`` is the SQL of the frame, in whose plan a literal such as ``DATE 'today'`` does not show. Rounding, and the
    choice among ties, may differ from run to run all the same.
    """
    if any(pattern.search(text) for pattern in (_OF_TODAY, _OF_FILES, _OF_SESSION)):
        return False
    of_today = getattr(spark._jvm, _SPECIAL_TIMES)  # noqa: SLF001 - Spark's rule, for constants that only a plan shows
    return _is_deterministic(spark, frame) and all(
        _class_of(node) not in _CHANCE and of_today.apply(node).fastEquals(node) for node in _nodes(_analysed(frame))
    )


def is_repeatable(spark: SparkSession, frame: DataFrame) -> bool:
    """Say whether ``frame`` returns the same rows whenever its inputs hold the same rows."""
    return _is_deterministic(spark, frame) and all(_class_of(node) in _REPEATABLE for node in _nodes(_analysed(frame)))


def count_relations(frame: DataFrame) -> int:
    """Return how many times ``frame`` reads a table, files or a database, its subqueries included."""
    return sum(map(_is_relation, _nodes(_analysed(frame))))


def refuse_strangers(frame: DataFrame, views: Mapping[str, str], where: str) -> None:
    """Refuse a query that reads what lies behind none of the ``views`` of its inputs, whatever its text looks like.

    Raises as ``refuse_other_tables``.
    """
    behind = _nodes(_analysed(frame), but_below={*views.values()})
    _refuse({_name_of(node) for node in behind if _is_relation(node)}, views, where)


def refuse_other_tables(spark: SparkSession, query: str, inputs: set[str], where: str) -> None:
    """Refuse a query that reads a table which is not one of its ``inputs``.

    Raises ``ConfigurationInvalid`` if it does, with the names of the tables.
    """
    plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(query)  # noqa: SLF001 - parsing has no Python form
    relations, aliases = set[str](), {name.lower() for name in inputs}
    for node in _nodes(plan):
        if _class_of(node) == "UnresolvedRelation":
            relations.add(node.multipartIdentifier().mkString("."))
        if _class_of(node) == "UnresolvedWith":
            aliases |= {named.alias().lower() for named in _elements(node.innerChildren())}
    _refuse({name for name in relations if name.lower() not in aliases}, inputs, where)


def _refuse(others: set[str], inputs: Iterable[str], where: str) -> None:
    """Refuse what a query reads besides its ``inputs``, if there is any."""
    if others:
        raise ConfigurationInvalid(
            f"{where}: the query reads {', '.join(map(repr, sorted(others)))}, which is not among its inputs",
            hint="declare it under `inputs`: what a query reads must be pinned; the inputs are "
            + ", ".join(sorted(inputs)),
        )


def refuse_second_statement(desired: DataFrame, inputs: Mapping[str, DataFrame], where: str) -> None:
    """Refuse a query that reads a database twice: two statements see two states, and the result would mix both.

    Spark repeats an input at each reference, and again where Spark turns a correlated subquery into a join. So this
    counts statements in the optimised plan, not references in the text.

    Raises ``ConfigurationInvalid`` if it does, with the inputs that are databases.
    """
    databases = [name for name, frame in inputs.items() if any(map(_is_database, _nodes(_analysed(frame))))]
    if not databases:
        return
    statements = _count_statements(desired._jdf.queryExecution().optimizedPlan())  # noqa: SLF001 - plans have no Python form
    if statements > 1:
        raise ConfigurationInvalid(
            f"{where}: the query needs {', '.join(map(repr, databases))} more than once, and each time is a database "
            "statement of its own, which may see another state",
            hint="let the database answer the query (`format: jdbc` with a `query`), use a window function, or make "
            "the input a collection of its own",
        )


def _count_statements(plan: Any) -> int:
    """Return how many statements an optimised plan sends to databases; for a loop, at least 2."""
    below = [_count_statements(child) for child in _elements(plan.children())]
    if _class_of(plan) == "UnionLoop":  # a recursive query runs its second child again and again
        below.append(below[-1])
    subqueries = sum(_count_statements(subquery.plan()) for subquery in _subqueries(plan))
    return _is_database(plan) + sum(below) + subqueries


def _subqueries(plan: Any) -> Iterator[Any]:
    """Yield the subqueries of one node, without the subqueries that Spark runs only if their result exists already."""
    pending = _elements(plan.expressions())
    while pending:
        expression = pending.pop()
        # This subquery reuses the broadcast rows of a join, or Spark drops the subquery.
        if _class_of(expression) == "DynamicPruningSubquery":
            continue
        pending.extend(_elements(expression.children()))
        if is_instance_of(SparkContext._gateway, expression, _PLAN_EXPRESSION):  # noqa: SLF001 - no other way
            yield expression


def _is_deterministic(spark: SparkSession, frame: DataFrame) -> bool:
    plan = _analysed(frame)
    patterns = getattr(spark._jvm, _TREE_PATTERN)  # noqa: SLF001
    return bool(plan.deterministic()) and not plan.containsPattern(patterns.CURRENT_LIKE())


def _analysed(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - plans have no Python form


def _is_database(node: Any) -> bool:
    return _class_of(node) == "LogicalRelation" and _class_of(node.relation()) == "JDBCRelation"


def _is_relation(node: Any) -> bool:
    return _class_of(node) in _RELATIONS


def _name_of(relation: Any) -> str:
    if _class_of(relation) == "LogicalRelation":
        table = relation.catalogTable()
        return str(table.get().identifier()) if table.isDefined() else "files, or a database"
    return str(relation.name())


def _nodes(plan: Any, *, but_below: Container[str] = ()) -> Iterator[Any]:
    """Yield every node of a Java plan: its children, common table expressions and subqueries.

    What lies below one of the views ``but_below`` is left out.
    """
    pending = [plan]
    while pending:
        node = pending.pop()
        yield node
        if but_below and _class_of(node) == "View" and str(node.desc().identifier().table()) in but_below:
            continue
        for children in (node.children(), node.innerChildren(), node.subqueries()):
            pending.extend(_elements(children))


def _elements(sequence: Any) -> list[Any]:
    return [sequence.apply(number) for number in range(sequence.size())]


def _class_of(node: Any) -> str:
    name: str = node.getClass().getSimpleName()
    return name
