"""Parquet files in a folder as the target of a sink: data files first, then the manifest that names them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import numpy as np
import pyarrow as pa

from tidemark.collections.declarations.sink import FileFolder, SinkDeclaration, SinkMode
from tidemark.collections.schema.types import Column, columns_text
from tidemark.errors import (
    CommitStateUnknown,
    ConfigurationInvalid,
    NotPossible,
    Refused,
    SchemaMismatch,
    StaleState,
    Unreachable,
)
from tidemark.fail_points import fail_point
from tidemark.locations import parse_uri
from tidemark.retry import retrying
from tidemark.sinks import progress as rules
from tidemark.sinks.progress import Owner, Progress, SinkColumn
from tidemark.sinks.target import Extent, PartedTarget
from tidemark.sinks.targets.batches import as_table, in_time, project
from tidemark.sinks.targets.files.columns import evolve_columns, file_schema, names_before
from tidemark.sinks.targets.files.folder import Folder, reaching
from tidemark.sinks.targets.files.manifest import FileEntry, Manifest
from tidemark.sinks.targets.files.partitions import Layout, can_partition, count_buckets
from tidemark.sinks.targets.files.parts import FilesLoad
from tidemark.sinks.targets.files.spool import keep_aside, read_aside
from tidemark.sinks.targets.files.writing import FileWriter, read_rows
from tidemark.sinks.targets.keys import Keys

FAIL_POINTS = ("sink.files-read", "sink.files-written", "sink.files-committed")
_GROWTH = 4  # times more rows than the buckets were made for: then there are more buckets
_ASKS = "the next run asks the folder: nothing is written twice, or left out"
_SMALL_ROWS = 65_536  # of a log's file, which the next updates are written together with


class FilesTarget(PartedTarget):
    """Implements ``PartedTarget``."""

    def __init__(self, sink: SinkDeclaration, place: FileFolder, path: Path) -> None:
        super().__init__(sink)
        self.title = f"files in {str(path)!r}"
        self._place = place
        self._folder = Folder(path)
        self._is_mirror = sink.mode is SinkMode.MIRROR
        self._key = sink.key_columns if self._is_mirror else ()

    @classmethod
    def of(cls, sink: SinkDeclaration, place: FileFolder) -> Self:
        """Return the target. Raises ``ConfigurationInvalid`` if the folder is not on a file system of this machine."""
        path = parse_uri(place.path)
        if path is None:
            raise ConfigurationInvalid(
                f"{place.path!r} is not a folder of this machine, the only place of files that sinks write to",
                hint="declare the path of a local or mounted folder; or `to: {catalog: …}` for tables on object stores",
            )
        return cls(sink, place, path)

    def check(self) -> None:
        with reaching():
            problem = in_time(self.title, self._ask)
        if problem:
            raise Unreachable(
                f"{self.title}: the folder {problem}",
                hint="check that its file system is mounted, and who may write; history is kept until then",
            )

    def _ask(self) -> str:
        path = self._folder.path
        present = next(each for each in (path, *path.parents) if each.exists())
        if not present.is_dir():
            return f"cannot be made: {present} is a file"
        return "" if os.access(present, os.W_OK | os.X_OK) else f"cannot be written: {present} does not allow it"

    def look(self) -> Progress | None:
        with reaching():
            found = self._folder.read()
        return None if found is None else found.progress

    def looks_away(self) -> bool:
        with reaching():
            return self._folder.read() is None

    def inspect(self, columns: tuple[SinkColumn, ...]) -> None:
        self._check_layout(columns)
        with reaching():
            found = self._folder.read()
            is_used = self._folder.holds_foreign_files() if found is None else bool(found.rows)
        if is_used and not self._place.replaces:
            raise Refused(
                f"{self.title}: there are rows already, which somebody else, or a dropped sink, wrote",
                hint="declare another `path`, or `existing: replace` in `to`: the first load then takes their place; "
                "files that no sink wrote stay beside",
            )

    def claim(self, owner: Owner, *, generation: int) -> Progress:
        ask = retrying(StaleState, attempts=12, what=f"the claim of {self.title}")
        with reaching():
            claimed: Manifest = ask(self._claim, owner, generation)
            self._folder.clean(claimed)
        assert claimed.progress is not None  # noqa: S101 - for mypy
        return claimed.progress

    def _claim(self, owner: Owner, generation: int) -> Manifest:
        found = self._folder.read() or Manifest(number=0, commit_id="", progress=None)
        progress = rules.claim(
            found.progress,
            owner,
            mode=self.sink.mode.value,
            generation=generation,
            replaces=self._place.replaces,
            where=self.title,
        )
        fail_point("sink.files-read")
        return self._change_progress(found, progress)

    def _change_progress(self, found: Manifest, progress: Progress | None) -> Manifest:
        changed = replace(found, number=found.number + 1, commit_id=str(uuid4()), progress=progress)
        self._folder.publish(changed)
        if not self._folder.show_latest(changed):
            raise StaleState(f"another run has come further in {self.title}", hint="run it again")
        return changed

    def load(self, before: Progress, after: Progress, rows: Iterator[pa.RecordBatch]) -> int:
        self._check_layout(after.columns)
        with reaching():
            present, after = self._begin(before, after)
            schema = file_schema(after.columns, with_times=not self._is_mirror)
            with tempfile.TemporaryFile(dir=self._folder.path) as spool:  # without a name, and gone with the process
                buckets = 1
                if self._is_mirror:
                    pieces = (project(as_table(batch), schema) for batch in rows)
                    buckets = keep_aside(spool, schema, pieces, layout=self._layout, where=self.title)
                with self._writing(schema, buckets) as (writer, commit_id):
                    for table in read_aside(spool) if self._is_mirror else map(as_table, rows):
                        writer.add(project(table, schema))
                    files = writer.finish(empty=True)
                    self._publish(present, commit_id, after, files, buckets)
        return sum(file.rows for file in files)

    def begin_load(self, before: Progress, after: Progress, extent: Extent) -> FilesLoad:
        self._check_layout(after.columns)
        with reaching():
            present, after = self._begin(before, after)
        schema = file_schema(after.columns, with_times=not self._is_mirror)

        def commit(files: tuple[FileEntry, ...], buckets: int) -> int:
            with reaching(), self._writing(schema, buckets) as (writer, commit_id):
                named = files or writer.finish(empty=True)
                self._publish(present, commit_id, after, named, buckets)
            return sum(file.rows for file in named)

        return FilesLoad(self._folder.path, self._layout, schema, extent, commit=commit)

    def mirror(self, before: Progress, after: Progress, deletes: pa.Table, upserts: pa.Table) -> None:
        self._check_layout(after.columns)
        with reaching():
            present = self._present(before)
            touched = pa.concat_tables([deletes.select(self._key), upserts.select(self._key)])
            buckets = self._grown_buckets(present, upserts.num_rows)
            is_all = buckets != present.buckets or evolve_columns(known := _columns_of(present), after.columns) != known
            files = _all_files(present) if is_all else self._find_touched(present, touched, upserts)
            keys = Keys(touched, self._key)
            self._rewrite(present, after, files, [upserts], buckets=buckets, without=keys)

    def append(self, before: Progress, after: Progress, updates: Iterator[pa.RecordBatch]) -> None:
        self._check_layout(after.columns)
        with reaching():
            present = self._present(before)
            self._rewrite(present, after, _small_tails(present), map(as_table, updates), buckets=1)

    def forget(self, owner: Owner) -> None:
        with reaching():
            found = self._folder.read()
            if found is not None and found.progress is not None and found.progress.owner == owner:
                self._change_progress(found, None)

    def describe(self) -> dict[str, Any]:
        with reaching():
            found = self._folder.read()
        return {} if found is None else {"manifest": found.number, "files": len(found.files), "rows": found.rows}

    def _begin(self, before: Progress, after: Progress) -> tuple[Manifest, Progress]:
        """Return the state that a load takes the place of, and the progress with the columns of the files."""
        present = self._present(before)
        known = () if present.progress is None else present.progress.columns
        return present, replace(after, columns=evolve_columns(known, after.columns))

    # -- the steps of a transaction --------------------------------------------------------------------------------

    def _present(self, before: Progress) -> Manifest:
        """Return the state that a transaction changes; raise ``Fenced`` if another run has claimed the folder."""
        present = self._folder.read()
        rules.check_epoch(None if present is None else present.progress, before, where=self.title)
        assert present is not None  # noqa: S101 - it has progress
        return present

    def _rewrite(
        self,
        present: Manifest,
        after: Progress,
        files: set[str],
        rows: Iterable[pa.Table],
        *,
        buckets: int,
        without: Keys | None = None,
    ) -> None:
        """Commit a state in which the rows of ``files``, save those ``without``, and ``rows`` are in new files."""
        known = _columns_of(present)
        columns = evolve_columns(known, after.columns)
        schema = file_schema(columns, with_times=not self._is_mirror)
        names = names_before(known, columns)
        rewritten = files if columns == known else _all_files(present)
        with self._writing(schema, buckets) as (writer, commit_id):
            for path in (file.path for file in present.files if file.path in rewritten):
                for table in read_rows(self._folder.path / path):
                    stored = project(table, schema, names)
                    writer.add(stored if without is None else _without(stored, without))
            for table in rows:
                writer.add(project(table, schema))
            kept = tuple(file for file in present.files if file.path not in rewritten and file.rows)
            written = writer.finish(empty=not kept)
            self._publish(present, commit_id, replace(after, columns=columns), (*kept, *written), buckets)

    @contextmanager
    def _writing(self, schema: pa.Schema, buckets: int) -> Iterator[tuple[FileWriter, str]]:
        """Yield what writes files, and the id of the commit; a run that certainly failed removes its files."""
        commit_id = str(uuid4())
        writer = FileWriter(self._folder.path, commit_id, schema, replace(self._layout, buckets=buckets))
        try:
            yield writer, commit_id
        except CommitStateUnknown:
            raise
        except Exception:
            writer.discard()
            raise

    def _publish(
        self, present: Manifest, commit_id: str, after: Progress, files: tuple[FileEntry, ...], buckets: int
    ) -> None:
        fail_point("sink.files-written")
        manifest = Manifest(
            number=present.number + 1,
            commit_id=commit_id,
            progress=after,
            partition=self._place.partition,
            buckets=buckets,
            files=files,
        )
        try:
            self._folder.publish(manifest)
            fail_point("sink.files-committed")
            is_last = self._folder.show_latest(manifest)
        except StaleState:
            self._present(after)  # which says who took the folder over
            raise
        except OSError as error:
            raise CommitStateUnknown(
                f"{self.title}: the file system failed during a commit, which may have landed: {error}", hint=_ASKS
            ) from error
        if not is_last:  # a later manifest may name the files, which so must stay
            raise CommitStateUnknown(f"{self.title}: another run came further during a commit", hint=_ASKS)

    # -- which files a transaction writes anew ---------------------------------------------------------------------

    @property
    def _layout(self) -> Layout:
        return Layout(tuple(self._place.partition), self._key, 1)

    def _check_layout(self, columns: tuple[SinkColumn, ...]) -> None:
        types = {column.name: column.type for column in columns}
        odd = [name for name in self._place.partition if name not in types or not can_partition(types[name])]
        if odd:
            listed = columns_text(tuple(Column(column.name, column.type) for column in columns))
            raise SchemaMismatch(
                f"{self.title}: the rows cannot be partitioned by {', '.join(map(repr, odd))}; they have ({listed})",
                hint="name columns with simple values in `partition`; if one was renamed or dropped, drop the sink, "
                "and declare it again",
            )

    def _grown_buckets(self, present: Manifest, more: int) -> int:
        """Return the number of buckets for the present rows and ``more``: the present one, unless it is far too low."""
        wanted = count_buckets(present.rows + more, len({file.group.directory for file in present.files}))
        return wanted if wanted >= _GROWTH * present.buckets else present.buckets

    def _find_touched(self, present: Manifest, touched: pa.Table, upserts: pa.Table) -> set[str]:
        """Return the files of the groups in which rows come, change or go."""
        layout = replace(self._layout, buckets=present.buckets)
        groups = layout.groups(touched if layout.finds_groups_by_key else upserts)
        if not layout.finds_groups_by_key:  # a row may have moved to another partition
            keys = Keys(touched, self._key)
            buckets = set(layout.buckets_of(touched).tolist())
            for file in present.files:
                if file.bucket in buckets and file.group not in groups:
                    pieces = read_rows(self._folder.path / file.path, list(self._key))
                    if any(len(keys.find(rows)) for rows in pieces):
                        groups.add(file.group)
        return {file.path for file in present.files if file.group in groups}


def _columns_of(present: Manifest) -> tuple[SinkColumn, ...]:
    if present.progress is None or present.progress.time is None:
        raise NotPossible("the first contents were not loaded")  # a bug in the caller
    return present.progress.columns


def _all_files(present: Manifest) -> set[str]:
    return {file.path for file in present.files}


def _small_tails(present: Manifest) -> set[str]:
    """Return the last file of each partition of a log, if it is small: files would become as many as runs else."""
    last = {file.group.directory: file for file in present.files}
    return {file.path for file in last.values() if file.rows < _SMALL_ROWS}


def _without(rows: pa.Table, keys: Keys) -> pa.Table:
    gone = keys.find(rows)
    if not len(gone):
        return rows
    stays = np.ones(rows.num_rows, dtype=np.bool_)
    stays[gone] = False
    return rows.filter(pa.array(stays))
