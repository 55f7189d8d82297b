"""Follows an Iceberg table from one snapshot to another by the files that came and went, deletes applied.

The two snapshots are compared as sets of files, whatever the history between them: a rollback, a compaction or another
branch needs no rule of its own. Rows that are on both sides in different files cancel out when they are added up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.sql import functions as F

from tidemark.collections.sources.errors import CannotFollow
from tidemark.spark.quoting import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SPARK = "org.apache.iceberg.spark"
_LISTS = "org.apache.iceberg.relocated.com.google.common.collect.Lists"
_MARK = re.compile(r"([0-9a-f-]+)@(-?\d+)/(-?\d+)\+([0-9a-f]+)")
_HIDES_METADATA_FROM = 3  # Spark finds no metadata columns of single files of a table of this format version
_NUMBERS_FILES_FROM = 2  # the format version that says when a file came
_NO_DELETES = "[]"
_ANSWERED_BY = {
    "file": "org.apache.iceberg.FileScanTask",
    "deletes": "org.apache.iceberg.FileScanTask",
    "fileSizeInBytes": "org.apache.iceberg.ContentFile",
    "recordCount": "org.apache.iceberg.ContentFile",
    "fileSequenceNumber": "org.apache.iceberg.ContentFile",
    "dataSequenceNumber": "org.apache.iceberg.ContentFile",
    "size": "java.util.List",
    "toString": "java.lang.Object",
}
FILE, POSITION, DELETED = "_file", "_pos", "_deleted"  # Iceberg's metadata columns
MOST_SHARE = 1.0  # of the table's bytes: to hash all rows, which a full comparison begins with, reads them once
MOST_DELETES = 50_000  # pairs of a file and a file of deletes that applies there: planning takes 0.05 ms for each
# A look at keys alone, for the rows that were deleted, costs so much of a look at all columns, roughly.
_KEYS_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Mark:
    """The snapshot to which a collection was made equal, and all else that decided the result."""

    uuid: str  # of the table
    snapshot_id: int
    schema_id: int
    decided_by: str  # names the declaration, the columns of the collection, and the versions of the program

    def __str__(self) -> str:
        return f"{self.uuid}@{self.snapshot_id}/{self.schema_id}+{self.decided_by}"

    @classmethod
    def parse(cls, text: str) -> Mark | None:
        """Read the text of ``str``; None for any other text."""
        found = _MARK.fullmatch(text)
        return None if found is None else cls(found[1], int(found[2]), int(found[3]), found[4])


@dataclass(frozen=True)
class FollowedTable:
    """One snapshot of a table, and the condition that limits its rows."""

    spark: SparkSession
    loaded: Any  # Iceberg's object in the JVM
    snapshot_id: int
    columns: tuple[str, ...]
    condition: str | None = None

    def mark(self, decided_by: str) -> Mark:
        """Return the mark of a collection that equals this snapshot."""
        schema_id = self.loaded.snapshot(self.snapshot_id).schemaId()
        return Mark(str(self.loaded.uuid()), self.snapshot_id, -1 if schema_id is None else schema_id, decided_by)

    def find_changes(self, since: Mark, *, keys_suffice: bool) -> FileChanges:
        """Return the files that came and went since.

        ``keys_suffice`` if of the deleted rows only the keys are read.

        Raises ``CannotFollow`` if that is not known, or if comparing all rows is less work.
        """
        now = self.mark(since.decided_by)
        if since.uuid != now.uuid:
            raise CannotFollow("another table has taken the place of the one that was read last")
        # Files are read under the table's present columns, a snapshot under those that it was made with.
        if not since.schema_id == now.schema_id == self.loaded.schema().schemaId():
            raise CannotFollow("the columns of the table were changed")
        if self._format_version() < _NUMBERS_FILES_FROM:
            raise CannotFollow("a table of format version 1 does not tell a file from a later one of its name")
        base = self._find_base(since.snapshot_id)
        if self.loaded.snapshot(base) is None:
            raise CannotFollow("the snapshot that was read last has expired")
        planned = self._plan(self.snapshot_id)
        changes = self._compare(self._plan(base), planned)
        whole_bytes = self._summary(self.snapshot_id).get("total-files-size")
        cost_bytes = changes.cost_bytes(_KEYS_SHARE if keys_suffice else 1.0)
        if whole_bytes is not None and cost_bytes > MOST_SHARE * int(whole_bytes):
            raise CannotFollow("too much has changed: comparing all rows reads less")
        most = sum(each.row_count for each in planned.values())
        untouched = sum(each.row_count for each in planned.values() if each.deletes == _NO_DELETES)
        deleted = self._most_deleted(self.snapshot_id)
        least = 0 if self.condition is not None else int(max(untouched, most - deleted))
        return replace(changes, most_deleted=self._most_deleted(base) + deleted, rows_now=(least, most))

    def _compare(self, then: dict[str, _PlannedFile], now: dict[str, _PlannedFile]) -> FileChanges:
        both = [name for name in then if name in now]
        if any(then[name].content != now[name].content for name in both):
            raise CannotFollow("a file went, and another one came under its name")
        changed = [name for name in both if then[name].deletes != now[name].deletes]
        came = [now[name] for name in now if name not in then]
        went = [then[name] for name in then if name not in now]
        less, more = ([side[name] for name in changed] for side in (then, now))
        if self._format_version() >= _HIDES_METADATA_FROM:
            return FileChanges(self, (*came, *more), (*went, *less))
        less, more = ([each for each in side if each.deletes != _NO_DELETES] for side in (less, more))
        return FileChanges(self, tuple(came), tuple(went), tuple(less), tuple(more), len(changed))

    def _find_base(self, snapshot_id: int) -> int:
        """Return the youngest ancestor of this snapshot that has the rows of ``snapshot_id``: only files were replaced.

        So a compaction between two runs is not read.
        """
        line, snapshot = list[Any](), self.loaded.snapshot(self.snapshot_id)
        while snapshot is not None and snapshot.snapshotId() != snapshot_id:
            line.append(snapshot)
            parent = snapshot.parentId()
            if parent == snapshot_id:
                for older, younger in pairwise([None, *reversed(line)]):
                    if str(younger.operation()) != "replace":
                        return snapshot_id if older is None else int(older.snapshotId())
                return self.snapshot_id
            snapshot = None if parent is None else self.loaded.snapshot(parent)
        return snapshot_id

    def _plan(self, snapshot_id: int) -> dict[str, _PlannedFile]:
        """Return the data files of a snapshot, each with the deletes that apply to it."""
        planned = self.loaded.newScan().useSnapshot(snapshot_id).planFiles()
        try:
            tasks = getattr(self.spark._jvm, _LISTS).newArrayList(planned)  # noqa: SLF001 - Iceberg has no Python form
        finally:
            planned.close()
        if sum(map(int, self._ask(tasks, "deletes", "size"))) > MOST_DELETES:
            raise CannotFollow("too many files of deletes apply to the files of the table: it wants to be compacted")
        # The text of a task has the path of its file and the values of its partition, that of a delete all that it has.
        names, deletes = (self._ask(tasks, *calls) for calls in (("toString",), ("deletes", "toString")))
        calls = ("fileSizeInBytes", "recordCount", "fileSequenceNumber", "dataSequenceNumber")
        contents = zip(*(self._ask(tasks, "file", call) for call in calls), strict=True)
        files = {
            name: _PlannedFile(tasks, number, deleted, content)
            for number, (name, deleted, content) in enumerate(zip(names, deletes, contents, strict=True))
        }
        if len(files) < len(names):
            raise CannotFollow("the table lists a file twice")
        return files

    def _most_deleted(self, snapshot_id: int) -> float:
        """Return how many rows in the files of a snapshot are deleted at most; infinite if nothing says so."""
        summary = self._summary(snapshot_id)
        by_position = summary.get("total-position-deletes")
        is_known = by_position is not None and summary.get("total-equality-deletes") == "0"
        return int(by_position) if is_known else math.inf

    def _summary(self, snapshot_id: int) -> Any:
        return self.loaded.snapshot(snapshot_id).summary() or {}  # format version 1 may leave it out

    def _ask(self, tasks: Any, *calls: str) -> list[str]:
        """Return what each task answers to the calls, one after the other, as text: at once, as one call takes 0.1 ms.

        The calls are made by Java's own function objects, since nothing in Python can be called from there.
        """
        jvm: Any = self.spark._jvm  # noqa: SLF001
        gateway: Any = self.spark.sparkContext._gateway  # noqa: SLF001
        invoke, loader, nothing = jvm.java.lang.invoke, self.loaded.getClass().getClassLoader(), jvm.java.lang.Class
        stream = tasks.stream()
        for call in (*calls, "toString"):
            method = loader.loadClass(_ANSWERED_BY[call]).getMethod(call, gateway.new_array(nothing, 0))
            handle = invoke.MethodHandles.publicLookup().unreflect(method)
            function = loader.loadClass("java.util.function.Function")
            stream = stream.map(invoke.MethodHandleProxies.asInterfaceInstance(function, handle))
        joined = str(stream.collect(jvm.java.util.stream.Collectors.joining("\0")))
        return joined.split("\0") if tasks.size() else []

    def _format_version(self) -> int:
        return int(self.spark._jvm.org.apache.iceberg.TableUtil.formatVersion(self.loaded))  # type: ignore[union-attr]  # noqa: SLF001

    @contextmanager
    def reading(self, files: tuple[_PlannedFile, ...]) -> Iterator[DataFrame]:
        """Open these files alone, with the deletes that apply to them, for the time of the block."""
        jvm: Any = self.spark._jvm  # noqa: SLF001
        tasks, name = jvm.java.util.ArrayList(), f"tidemark-{uuid4().hex}"
        for file in files:
            tasks.add(file.tasks.get(file.number))
        manager, cache = getattr(jvm, f"{_SPARK}.ScanTaskSetManager").get(), self._cache()
        manager.stageTasks(self.loaded, name, tasks)
        cache.add(name, self.loaded)
        try:
            yield self.spark.read.format("iceberg").load(name)
        finally:
            cache.remove(name)
            manager.removeTasks(self.loaded, name)

    def _cache(self) -> Any:
        """Return Iceberg's cache of tables whose files were chosen by hand; py4j confuses its two methods ``get``."""
        jvm: Any = self.spark._jvm  # noqa: SLF001
        gateway: Any = self.spark.sparkContext._gateway  # noqa: SLF001
        found = self.loaded.getClass().getClassLoader().loadClass(f"{_SPARK}.SparkTableCache")
        nothing = gateway.new_array(jvm.java.lang.Object, 0)
        return found.getMethod("get", gateway.new_array(jvm.java.lang.Class, 0)).invoke(None, nothing)

    def choose(self, rows: DataFrame, *, deleted: bool) -> DataFrame:
        """Return the rows that meet the condition, or the ``deleted`` ones of them, in the table's columns."""
        chosen = rows if self.condition is None else rows.where(self.condition)
        if deleted:
            chosen = chosen.where(F.col(DELETED))
        return chosen.select(*map(quoted, self.columns))


@dataclass(frozen=True)
class _PlannedFile:
    tasks: Any  # Iceberg's objects for all files of the snapshot
    number: int  # of this one
    deletes: str  # those that apply to the file
    content: tuple[str, ...]  # size, number of rows, and when it came: another file of its name has others

    @property
    def size_bytes(self) -> int:
        return int(self.content[0])

    @property
    def row_count(self) -> int:
        """The number of rows; deleted ones are counted."""
        return int(self.content[1])


@dataclass(frozen=True)
class FileChanges:
    """The files that differ between two snapshots."""

    table: FollowedTable
    came: tuple[_PlannedFile, ...]  # only in the new one
    went: tuple[_PlannedFile, ...]  # only in the old one
    less: tuple[_PlannedFile, ...] = ()  # in both, with other deletes: as in the old one, if some applied there
    more: tuple[_PlannedFile, ...] = ()  # the same as in the new one
    with_other_deletes: int = 0  # the number of the files in both
    rows_now: tuple[int, int] = (0, 0)  # the new snapshot has at least, and at most, so many that meet the condition
    most_deleted: float = math.inf  # no more rows than that are deleted, in both snapshots together

    @property
    def most_rows(self) -> int:
        """No more rows than that are read."""
        deleted = sum(each.row_count for each in (*self.less, *self.more))
        return sum(each.row_count for each in (*self.came, *self.went)) + int(min(deleted, self.most_deleted))

    def cost_bytes(self, deleted_share: float) -> float:
        whole, deleted = (*self.came, *self.went), (*self.less, *self.more)
        return sum(each.size_bytes for each in whole) + deleted_share * sum(each.size_bytes for each in deleted)

    def to_json(self) -> dict[str, int]:
        """Return the numbers of files, for the report."""
        return {"added": len(self.came), "removed": len(self.went), "with_other_deletes": self.with_other_deletes}
