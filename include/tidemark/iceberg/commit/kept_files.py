"""A commit adds no file that an orphan removal has taken, or may be about to take.

Between its writing and its commit nothing names a file. A writer that stands still for days (a suspended process or
machine) finds its file gone, or commits it in the moment of its removal. So a removal takes only files that are older
than ``ORPHAN_AGE_MS``, and changes the table's metadata before it looks which files are named. A commit requires, on
the metadata that it replaces, that its files are there, and that they are younger than half of that age. Whichever of
the two comes second sees the other. Times are the store's own, since clocks of machines differ. An operation that holds
a lease may take longer: ``leases/protection.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pyarrow.fs import FileType
from pydantic import PrivateAttr
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import ValidatableTableRequirement

from tidemark.errors import InputsGone
from tidemark.iceberg.commit.snapshot_builder import SnapshotBuilder
from tidemark.iceberg.files.manifests import filesystem_of, read_added_files
from tidemark.iceberg.leases.protection import own_protection

ORPHAN_AGE_MS = 3 * 24 * 3600 * 1000  # longer than any job writes before it commits


class AssertFilesKept(ValidatableTableRequirement):
    """Every added file is there, and is young or named by a staging branch that the commit requires to stand."""

    type: Literal["assert-files-kept"] = "assert-files-kept"
    added: tuple[str, ...]
    written_now: str  # a manifest list of this attempt
    branches: tuple[str, ...]
    _table: Table = PrivateAttr()

    @classmethod
    def of(cls, table: Table, builder: SnapshotBuilder, branches: Iterable[str] = ()) -> AssertFilesKept:
        """Return the requirement for what ``builder`` has built; ``branches`` hold some of its files."""
        made = cls(added=tuple(builder.added), written_now=builder.written[-1], branches=tuple(branches))
        made._table = table
        return made

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]  # as its base does
        if not self.added or base_metadata is None:
            return
        filesystem, _ = filesystem_of(self._table, self._table.location())
        paths = [PyArrowFileIO.parse_location(location)[2] for location in (self.written_now, *self.added)]
        now, *infos = filesystem.get_file_info(paths)
        for info in infos:
            if info.type is not FileType.File:
                raise InputsGone(f"{info.path} was removed before its commit: nothing was written", hint="run it again")
        oldest_ns = (now.mtime_ns or 0) - ORPHAN_AGE_MS // 2 * 1_000_000
        written_ns = {file: info.mtime_ns or oldest_ns for file, info in zip(self.added, infos, strict=True)}
        old = {file for file, at_ns in written_ns.items() if at_ns < oldest_ns}
        if old and (since_ms := self._leased_since_ms()) is not None:
            old = {file for file in old if written_ns[file] < since_ms * 1_000_000}
        if old and (unnamed := old - self._staged(base_metadata)):
            raise InputsGone(
                f"{min(unnamed)} waited too long for its commit, and may be removed at any moment: nothing was written",
                hint="run it again",
            )

    def _leased_since_ms(self) -> int | None:
        settings = getattr(self._table.catalog, "settings", None)
        return None if settings is None else own_protection(settings, self._table.name()[-1])

    def _staged(self, metadata: TableMetadata) -> set[str]:
        snapshots = filter(None, map(metadata.snapshot_by_name, self.branches))
        return {file.file_path for snapshot in snapshots for file in read_added_files(self._table.io, snapshot)}
