"""One query over named inputs; and the list of all forms of source."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pydantic import Field, model_validator

from tidemark.collections.sources.formats.buffer import BufferSource
from tidemark.collections.sources.formats.frame import FrameSource
from tidemark.collections.sources.formats.registry import INPUTS, InputDeclaration, form_of_input, one_of
from tidemark.collections.sources.formats.source import IDENTIFIER, Source
from tidemark.interval import has_interval

if TYPE_CHECKING:
    from tidemark.collections.sources.opened_source import OpenedSource, Opening
    from tidemark.collections.sources.pins import Looking, Pin


class SqlSource(Source):
    """One Spark SQL query over named inputs and no other tables, so that everything it reads can be pinned."""

    form = "sql"
    takes_no_events = "belongs to the input that changes: write it there"

    sql: str
    inputs: dict[str, InputDeclaration] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_inputs(self) -> SqlSource:
        if not self.sql.strip():
            raise ValueError("`sql` is empty")
        if not self.inputs:
            raise ValueError(
                "`sql` needs `inputs`: every table that it reads is declared there, so that it can be pinned"
            )
        for name in self.inputs:
            if not IDENTIFIER.fullmatch(name):
                raise ValueError(f"the input name {name!r} is no identifier: use letters, digits and underscores")
        if len({name.lower() for name in self.inputs}) < len(self.inputs):
            raise ValueError("two input names differ only in case, which SQL does not see")
        if (databases := sorted(name for name, read in self.inputs.items() if read.is_database))[1:]:
            raise ValueError(
                f"the inputs {', '.join(databases)} are read by one database statement each, which see two states: "
                "join in the database with one input that has a `query`, or make each a collection of its own"
            )
        return self

    @property
    def needs_interval(self) -> bool:
        return has_interval(self.sql) or any(read.needs_interval for read in self.inputs.values())

    @property
    def inputs_read(self) -> tuple[Source, ...]:
        return tuple(self.inputs.values())

    def find_state(self, looking: Looking, where: str) -> tuple[Pin, ...] | None:
        found = [read.find_state(looking, f"input {name!r} of {where}") for name, read in self.inputs.items()]
        return _together(found)

    def find_size(self, looking: Looking, where: str) -> int | None:
        total = 0
        for name, read in self.inputs.items():
            size = read.find_size(looking, f"input {name!r} of {where}")
            if size is None:
                return None
            total += size
        return total

    def open(self, opening: Opening, where: str) -> OpenedSource:
        """Open the inputs, and return the result of the query.

        Raises:
            ConfigurationInvalid: If the query is not valid, reads other tables, or reads a database more than once.
        """
        from tidemark.collections.sources.errors import translating
        from tidemark.collections.sources.opened_source import OpenedSource
        from tidemark.collections.sources.query_plans import (
            is_repeatable,
            refuse_other_tables,
            refuse_second_statement,
            refuse_strangers,
            rests_on_rows,
        )

        spark = opening.spark
        inputs = {name: read.open(opening, f"input {name!r} of {where}") for name, read in self.inputs.items()}
        query = opening.fill(self.sql).strip().rstrip(";")
        views = {name: f"tidemark_{uuid4().hex}" for name in inputs}  # threads share the views of the session
        with translating(where):
            refuse_other_tables(spark, query, set(inputs), where)
            try:
                for name, opened in inputs.items():
                    opened.desired.createOrReplaceTempView(views[name])
                named = ", ".join(f"`{name}` AS (SELECT * FROM {view})" for name, view in views.items())  # noqa: S608 - both are identifiers
                desired = spark.sql(f"WITH {named}\n(\n{query}\n)")  # line breaks: a comment may end the query
            finally:
                for view in views.values():  # the query is analysed, and does not need the views any more
                    spark.catalog.dropTempView(view)
            refuse_strangers(desired, views, where)
            refuse_second_statement(desired, {name: opened.desired for name, opened in inputs.items()}, where)
        state = _together(opened.state for opened in inputs.values())
        return OpenedSource(
            where=where,
            desired=desired,
            pins=tuple(pin for opened in inputs.values() for pin in opened.pins),
            input_columns={name: opened.desired.columns for name, opened in inputs.items()},
            pinnable=all(opened.pinnable for opened in inputs.values()) and is_repeatable(spark, desired),
            state=state if rests_on_rows(spark, desired, query) else None,
        )


def _together(states: Iterable[tuple[Pin, ...] | None]) -> tuple[Pin, ...] | None:
    """Return the state of several inputs, in order; None if that of one has no name."""
    found: list[Pin] = []
    for state in states:
        if state is None:
            return None
        found += state
    return tuple(found)


def _form_of(value: Any) -> str:
    if isinstance(value, dict):
        if "buffer" in value:
            return BufferSource.form
        if "sql" in value or "inputs" in value:
            return SqlSource.form
        if value.get("format") == FrameSource.form:
            return FrameSource.form
    return form_of_input(value)


SOURCES: tuple[type[Source], ...] = (*INPUTS, SqlSource, BufferSource, FrameSource)
if TYPE_CHECKING:
    SourceDeclaration = Source
else:
    SourceDeclaration = one_of(SOURCES, _form_of)
