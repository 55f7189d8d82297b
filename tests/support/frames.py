"""Collections whose rows a test hands over as data frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidemark.collections.reconcile.frames import apply_changes, reconcile_frame
from tidemark.collections.reconcile.pinned_snapshot import Pinned, pin_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession

    from tests.support.homes import Home
    from tidemark.collections.declarations.collection import Declaration
    from tidemark.report import CollectionReport

Row = tuple[Any, ...]
SCHEMA = "k int, v string"


def frame_declaration(home: Home, name: str = "c", **more: Any) -> Declaration:
    return home.declaration(name, source={"format": "frame"}, schema=home.schema, **more)


class Hands:
    """Hands rows over to a collection of a home, which it declares."""

    def __init__(self, home: Home, spark: SparkSession, name: str = "c", **declared: Any) -> None:
        self.home, self.spark, self.name = home, spark, name
        self.declaration = frame_declaration(home, name, **declared)
        home.apply(self.declaration)

    def frame(self, rows: Iterable[Row], schema: str = SCHEMA) -> DataFrame:
        types = to_arrow_schema(StructType.fromDDL(schema))
        columns = [*zip(*rows, strict=True)] or [()] * len(types)
        return self.spark.createDataFrame(pa.table(columns, schema=types))  # which no job of Spark converts

    def reconcile(self, frame: DataFrame | Iterable[Row], **more: Any) -> CollectionReport:
        given = self.frame(frame) if isinstance(frame, list) else frame
        return reconcile_frame(self.spark, self.name, given, **self._with_defaults(more))  # type: ignore[arg-type]

    def apply(self, frame: DataFrame | Iterable[Row], **more: Any) -> CollectionReport:
        given = self.frame(frame, f"{SCHEMA}, _diff int") if isinstance(frame, list) else frame
        return apply_changes(self.spark, self.name, given, **self._with_defaults(more))  # type: ignore[arg-type]

    def _with_defaults(self, more: dict[str, Any]) -> dict[str, Any]:
        self.home.clock.step(10)
        return {"deployment": self.home.deployment, "clock": self.home.clock, **more}

    def rows(self) -> list[Row]:
        return [tuple(row.values()) for row in self.home.user_rows(self.name)]

    def pinned(self) -> Pinned:
        shard = self.home.shard(self.name)
        return pin_snapshot(self.spark, shard, shard.load(), self.declaration.key)
