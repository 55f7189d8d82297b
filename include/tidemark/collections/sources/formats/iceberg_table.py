"""Iceberg tables that Tidemark does not own; a run reads one snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, model_validator

from tidemark.collections.sources.formats.source import SourceWithOptions, absolute_path

if TYPE_CHECKING:
    from tidemark.collections.sources.opened_source import OpenedSource, Opening


class IcebergSource(SourceWithOptions):
    """An Iceberg table, by the name in Spark's catalogs or by the folder."""

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
        """Pin the present snapshot of the table's main branch, and return the rows.

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
            if main is None:  # a table without a commit has no snapshot to pin
                desired = reader.load(self.place).limit(0)
                return OpenedSource(where=where, desired=desired, pins=(), pinnable=True, size_bytes=0)
            desired = reader.option("versionAsOf", str(main["snapshot_id"])).load(self.place)
        pins = (SnapshotPin(self.place, main["snapshot_id"]),)
        return OpenedSource(where=where, desired=desired, pins=pins, pinnable=True, size_bytes=None)

    def _forget_cached(self, opening: Opening) -> None:
        """Reload a named table: Spark's catalog may cache a state older than the last commit of others.

        Spark does not cache a table that is named by its folder.
        """
        # Ask first: Spark logs a stack trace for a missing table. Opening the table reports the missing table anyway.
        if self.table is not None and opening.spark.catalog.tableExists(self.table):
            opening.spark.sql(f"REFRESH TABLE {self.table}")
