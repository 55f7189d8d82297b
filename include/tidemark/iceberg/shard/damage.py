"""Which files of a shard are gone, or are not what was written, who needs them, and what still reads without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa
from pyarrow.fs import FileType
from pyarrow.parquet import ParquetFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile, FileFormat, ManifestFile
from pyiceberg.table import Table

from tidemark.errors import CorruptState, TidemarkError, UnknownCollection, Unreachable
from tidemark.iceberg.files.manifests import filesystem_of
from tidemark.iceberg.shard.branch_names import STAGED
from tidemark.iceberg.shard.column_names import ENTRY
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.time_travel import own_snapshots
from tidemark.secrets.redaction import first_line

READERS = 8
_SAID, _LISTED = 5, 100  # damaged files in a message, and in its sample
_REASON_LETTERS = 120
# Words of Arrow about a file that is not sound, in errors that it also raises for a store that is in trouble.
_OF_GARBAGE = ("thrift", "Parquet", "Corrupt", "decompress", "end of stream", "EOF", "CRC")


@dataclass(slots=True)
class NamedFile:
    """A file that the metadata of a shard name, what they say of it, and what is wrong with it (empty: nothing)."""

    path: str
    size: int | None = None  # None: they do not say
    rows: int | None = None
    data_file: DataFile | None = None
    snapshot_ids: set[int] = field(default_factory=set)
    damage: str = ""


def find_damage(head: ShardHead, *, is_read: Callable[[str], bool] = lambda _: False) -> list[NamedFile]:
    """Return the damaged files of all snapshots that the metadata name.

    Every file has to be there, with the size that the metadata say; the files for which ``is_read`` says so also have
    to hold as many rows, each of which can be read. Raises ``Unreachable`` if the store is in trouble.
    """
    table, named = head.table, _name_files(head.table)
    sized = [each for each in named if each.size is not None and not each.damage]
    filesystem, _ = filesystem_of(table, table.location())
    infos = filesystem.get_file_info([PyArrowFileIO.parse_location(each.path)[2] for each in sized])
    for each, info in zip(sized, infos, strict=True):
        if info.type is not FileType.File:
            each.damage = "is gone"
        elif info.size != each.size:
            each.damage = f"has {info.size} bytes, not {each.size}"

    def read(each: NamedFile) -> None:
        if each.data_file is not None and each.data_file.file_format == FileFormat.PARQUET:
            each.damage = damage_of(table, each.data_file, whole=True)

    with ThreadPoolExecutor(READERS) as pool:
        list(pool.map(read, (each for each in sized if not each.damage and is_read(each.path))))
    return [each for each in named if each.damage]


def damage_of(table: Table, file: DataFile, *, whole: bool = False) -> str:
    """Return what is wrong with a Parquet file, by its footer or, if ``whole``, by all rows; empty if nothing is.

    Raises ``Unreachable`` if the store is in trouble: nothing is known about the file then.
    """
    try:
        with table.io.new_input(file.file_path).open() as stream, ParquetFile(stream) as parquet:
            stored = parquet.metadata.num_rows
            if whole:
                stored = sum(batch.num_rows for batch in parquet.iter_batches())
    except FileNotFoundError:
        return "is gone"
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and not any(word in str(error) for word in _OF_GARBAGE):
            raise Unreachable.by(error) from error
        return f"cannot be read: {first_line(error)}"
    return "" if stored == file.record_count else f"holds {stored} rows, not {file.record_count} as it was written"


def describe(head: ShardHead, damaged: Sequence[NamedFile]) -> CorruptState:
    """Return the error for damaged files: which they are, who needs them, what still reads, and what to do next."""
    name = head.table.name()[-1]
    refs = {ref: each.snapshot_id for ref, each in head.table.metadata.refs.items() if not ref.startswith("tidemark-")}
    sample: list[dict[str, object]] = []
    said: list[str] = []
    only_staged = True
    for each in damaged:
        needing = [ref for ref, snapshot_id in refs.items() if snapshot_id in each.snapshot_ids]
        only_staged &= bool(needing) and all(ref.startswith(STAGED) for ref in needing)
        rows = "" if each.rows is None else f", {each.rows} rows"
        said.append(f"{each.path} {each.damage} (of {', '.join(needing) or 'older contents'}{rows})")
        sample.append({"file": each.path, "damage": each.damage, "refs": needing})
    files = "; ".join(said[:_SAID]) + (f"; and {len(said) - _SAID} more" if len(said) > _SAID else "")
    again = f"append these batches again, or discard them: `tidemark staged {name}`"
    restore = f"restore from a backup what `tidemark doctor --deep --json` names of {name!r}, under the same names"
    if ENTRY in head.table.schema().column_names and all(each.data_file for each in damaged):
        restore += f"; or have its rows read again, if they came from a write buffer: `tidemark buffer replay {name}`"
    reading = ", ".join(_still_readable(head, damaged))
    return CorruptState(
        f"{len(damaged)} of the files of {name!r} cannot be read as written: {files}. What still reads: {reading}",
        hint=again if only_staged else restore,
        sample=sample[:_LISTED],
    )


@contextmanager
def naming_damage(look: Callable[[], ShardHead], *, is_read: Callable[[str], bool] = lambda _: False) -> Iterator[None]:
    """Raise ``CorruptState`` that names the damaged files, if there are any, for whatever goes wrong.

    What reads garbage fails in any way. If no file is damaged, an ``OSError`` is raised as ``Unreachable``; other
    errors of Tidemark are raised as they are.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, TidemarkError) and (error.sample or not isinstance(error, CorruptState)):
            raise
        try:
            head = look()
        except UnknownCollection:  # there is no table, and so no damage
            raise error from None
        if damaged := find_damage(head, is_read=is_read):
            raise describe(head, damaged) from error
        if isinstance(error, OSError):
            raise Unreachable.by(error) from error
        raise


def _name_files(table: Table) -> list[NamedFile]:
    """Return all files that the snapshots name; manifests and their lists are read, and judged."""
    lists: list[NamedFile] = []
    manifests: dict[str, tuple[ManifestFile, NamedFile]] = {}
    files: dict[str, NamedFile] = {}
    for snapshot in table.metadata.snapshots:
        lists.append(NamedFile(snapshot.manifest_list, snapshot_ids={snapshot.snapshot_id}))
        try:
            for manifest in snapshot.manifests(table.io):
                rows = (manifest.added_rows_count or 0) + (manifest.existing_rows_count or 0)
                named = NamedFile(manifest.manifest_path, manifest.manifest_length, rows)
                manifests.setdefault(named.path, (manifest, named))[1].snapshot_ids.add(snapshot.snapshot_id)
        except Exception as error:  # noqa: BLE001 - garbage fails in any way
            lists[-1].damage = _reason(error, snapshot.manifest_list)
    for path, (manifest, holder) in manifests.items():
        try:
            for file in (entry.data_file for entry in manifest.fetch_manifest_entry(table.io)):
                named = NamedFile(file.file_path, file.file_size_in_bytes, file.record_count, file)
                known = files.setdefault(file.file_path, named)  # most files are in one manifest: share its set
                known.snapshot_ids = (
                    known.snapshot_ids | holder.snapshot_ids if known.snapshot_ids else holder.snapshot_ids
                )
        except Exception as error:  # noqa: BLE001 - as above
            holder.damage = _reason(error, path)
    return [*lists, *(holder for _, holder in manifests.values()), *files.values()]


def _reason(error: Exception, path: str) -> str:
    if isinstance(error, CorruptState):
        return str(error).removeprefix(path).strip()
    if isinstance(error, TidemarkError):
        raise error
    return f"cannot be decoded: {first_line(error)[:_REASON_LETTERS]}"


def _still_readable(head: ShardHead, damaged: Sequence[NamedFile]) -> Iterator[str]:
    broken = set[int]().union(*(each.snapshot_ids for each in damaged))
    yield "all other collections"
    until = head.state.upper
    for snapshot, lower in own_snapshots(head):
        if snapshot.snapshot_id not in broken and snapshot.snapshot_id == head.contents.snapshot_id:
            yield "the present contents"
            break
        if snapshot.snapshot_id not in broken and isinstance(until, int) and lower < until and head.state.since < until:
            yield f"earlier contents: `tidemark read {head.table.name()[-1]} --as-of {until - 1}`"
            break
        until = lower
    if head.updates is not None and head.updates.snapshot_id not in broken:
        yield "the changes"
