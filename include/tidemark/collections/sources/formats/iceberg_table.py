"""Iceberg tables of others, each read at one snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, model_validator

from tidemark.collections.sources.formats.source import SourceWithOptions, absolute_path

if TYPE_CHECKING:
    from tidemark.collections.sources.opened_source import OpenedSource, Opening


class IcebergSource(SourceWithOptions):
    """An Iceberg table, by its name in Spark's catalogs or by its folder; read at one snapshot."""

    form = "iceberg"
    format: Literal["iceberg"]
    table: str | None = None
    path: Annotated[str, AfterValidator(absolute_path)] | None = None

    @model_validator(mode="after")
    def _names_one_table(self) -> IcebergSource:
        if (self.table is None) == (self.path is None):
            raise ValueError("needs exactly one of `table` (its name in a Spark catalog) and `path` (its folder)")
        return self

    @property
    def place(self) -> str:
        return self.table or self.path or ""

    def open_whole(self, opening: Opening, where: str) -> OpenedSource:
        """Pin the present snapshot of the table's main branch, and return its rows.

        Raises:
            InputMissing: If there is no such table.
        """
        from tidemark.collections.sources.errors import translating
        from tidemark.collections.sources.opened_source import OpenedSource, SnapshotPin

        separator = "." if self.table else "#"
        with translating(where):
            self._forget_cached(opening)
            refs = opening.spark.read.format("iceberg").load(f"{self.place}{separator}refs")
            main = refs.where("name = 'main'").select("snapshot_id").first()
            reader = opening.spark.read.format("iceberg").options(**self.spark_options)
            if main is None:  # a table without a commit: there is nothing that a snapshot could pin
                desired = reader.load(self.place).limit(0)
                return OpenedSource(where=where, desired=desired, pins=(), pinnable=True, size_bytes=0)
            desired = reader.option("versionAsOf", str(main["snapshot_id"])).load(self.place)
        pins = (SnapshotPin(self.place, main["snapshot_id"]),)
        return OpenedSource(where=where, desired=desired, pins=pins, pinnable=True, size_bytes=None)

    def _forget_cached(self, opening: Opening) -> None:
        """Have a named table loaded anew: its catalog may keep what it loaded, older than what others committed.

        A table that is named by its folder is never kept.
        """
        # Asked first, because a statement on a table that is not there is logged with a stack trace; opening it tells.
        if self.table is not None and opening.spark.catalog.tableExists(self.table):
            opening.spark.sql(f"REFRESH TABLE {self.table}")
