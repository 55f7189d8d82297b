"""Targets without a collection: a test hands them rows and changes as a run does, and reads them as others do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.sinks.foreign_readers import duckdb_rows, files_of, iceberg_rows, read_manifest
from tidemark.collections.declarations.sink import SinkDeclaration
from tidemark.collections.schema.ddl import parse_columns
from tidemark.sinks.progress import Owner, Progress, SinkColumn
from tidemark.sinks.targets.files.columns import file_schema
from tidemark.sinks.targets.registry import open_target

if TYPE_CHECKING:
    from tidemark.settings import Settings
    from tidemark.sinks.target import Target

OWNER = Owner("copies", 1, "events", "a-uuid")


def columns(**types: str) -> tuple[SinkColumn, ...]:
    """Columns as ``NAME_ID="type"``."""
    split = ((*name.rsplit("_", 1), type_) for name, type_ in types.items())
    return tuple(SinkColumn(int(id_), name, parse_columns(f"c {type_}")[0].type) for name, id_, type_ in split)


PLAIN = columns(id_1="bigint", name_2="string")


@dataclass
class Driven:
    """One target, and the run that has claimed it last."""

    settings: Settings
    to: dict[str, Any]
    mode: str = "mirror"
    key: tuple[str, ...] = ("id",)
    progress: Progress = field(init=False)
    target: Target = field(init=False)

    @property
    def sink(self) -> SinkDeclaration:
        fields = {"name": "copies", "from": "events", "mode": self.mode, "to": self.to, "key": list(self.key)}
        return SinkDeclaration.model_validate(fields)

    def run(self, *, owner: Owner = OWNER, generation: int = 1) -> Driven:
        """Claim the target as a new run does, beside this one."""
        other = replace(self)
        other.target = open_target(self.sink, self.settings)
        other.target.check()
        other.progress = other.target.claim(owner, generation=generation)
        return other

    def table(self, cols: tuple[SinkColumn, ...], rows: list[dict[str, Any]]) -> pa.Table:
        return pa.Table.from_pylist(rows, schema=file_schema(cols, with_times=self.mode == "changes"))

    def load(self, rows: list[dict[str, Any]], cols: tuple[SinkColumn, ...] = PLAIN, *, time: int = 10) -> int:
        after = replace(self.progress, time=time, columns=cols)
        count = self.target.load(self.progress, after, iter(self.table(cols, rows).to_batches(max_chunksize=2)))
        self.progress = after
        return count

    def mirror(
        self,
        upserts: list[dict[str, Any]],
        deletes: list[dict[str, Any]] = [],  # noqa: B006 - nobody changes it
        cols: tuple[SinkColumn, ...] = PLAIN,
    ) -> None:
        after = replace(self.progress, time=(self.progress.time or 0) + 1, columns=cols)
        keys = self.table(cols, deletes).select(list(self.key))
        self.target.mirror(self.progress, after, keys, self.table(cols, upserts))
        self.progress = replace(after, columns=self.known(after))

    def append(self, updates: list[dict[str, Any]], cols: tuple[SinkColumn, ...] = PLAIN) -> None:
        after = replace(self.progress, time=(self.progress.time or 0) + 1, columns=cols)
        self.target.append(self.progress, after, iter(self.table(cols, updates).to_batches(max_chunksize=2)))
        self.progress = replace(after, columns=self.known(after))

    def known(self, after: Progress) -> tuple[SinkColumn, ...]:
        ids = {column.id for column in after.columns}
        return (*after.columns, *(column for column in self.progress.columns if column.id not in ids))

    def target_time(self) -> int | None:
        with open_target(self.sink, self.settings) as target:
            found = target.look()
        return None if found is None else found.time

    def rows(self) -> list[dict[str, Any]]:
        """Return what a reader sees who knows nothing of Tidemark."""
        if "path" in self.to:
            return duckdb_rows(files_of(self.to["path"], read_manifest(self.to["path"])))
        return iceberg_rows(self.settings, self.to["catalog"], self.to["table"])
