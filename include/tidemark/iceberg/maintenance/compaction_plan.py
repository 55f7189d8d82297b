"""Chooses the files that are worth rewriting: pure functions of sizes, counts and partitions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tidemark.iceberg.files.manifests import Partition

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPolicy:
    """The limits from which a rewrite is worth its cost."""

    small_file_bytes: int = 32 * MIB
    min_small_files: int = 5  # in one partition; fewer are not worth a rewrite
    max_deleted_ratio: float = 0.1  # a file with more deleted rows than this is rewritten without them
    max_delete_files: int = 10  # in one partition; above, they are merged into one
    driver_bytes: int = 256 * MIB  # up to here the driver rewrites by itself, above Spark does
    chunk_bytes: int = 128 * MIB  # of files read at once by the driver


class FileUse(NamedTuple):
    """A live data file, and how many of its rows are deleted."""

    path: str
    size_bytes: int
    rows: int
    deleted_rows: int
    partition: Partition
    is_apart: bool = False  # sorted otherwise than the table: merged with other files, it would lose that order
    smallest: Any = None  # value of the first column to sort by; None if that is not known


def choose_data_files(files: Iterable[FileUse], policy: CompactionPolicy) -> frozenset[str]:
    """Return the paths of the files to rewrite: many small ones in a partition, and files with many deleted rows."""
    chosen: set[str] = set()
    small: defaultdict[Partition, list[FileUse]] = defaultdict(list)
    for file in files:
        if file.deleted_rows > policy.max_deleted_ratio * file.rows:
            chosen.add(file.path)
        if file.size_bytes < policy.small_file_bytes and not file.is_apart:
            small[file.partition].append(file)
    for group in small.values():
        if len(group) >= policy.min_small_files:
            chosen |= {file.path for file in group}
    return frozenset(chosen)


class DeleteFileUse(NamedTuple):
    """A position-delete file, and the data files that it names."""

    path: str
    partition: Partition
    named: frozenset[str]


class DeleteChoice(NamedTuple):
    """The position-delete files that a compaction removes."""

    dangling: frozenset[str]  # they name no file that stays: dropped
    merged: frozenset[str]  # replaced by one new file per partition


def choose_delete_files(
    files: Sequence[DeleteFileUse], staying: frozenset[str], policy: CompactionPolicy
) -> DeleteChoice:
    """Choose among the delete files, given the data files that stay as they are."""
    dangling = frozenset(file.path for file in files if not file.named & staying)
    remaining: defaultdict[Partition, list[str]] = defaultdict(list)
    for file in files:
        if file.path not in dangling:
            remaining[file.partition].append(file.path)
    crowded = (group for group in remaining.values() if len(group) > policy.max_delete_files)
    return DeleteChoice(dangling, frozenset(path for group in crowded for path in group))


def chunk(files: Iterable[FileUse], limit_bytes: int) -> Iterator[list[FileUse]]:
    """Yield the files in groups of one partition, each of at most ``limit_bytes`` (or of a single larger file).

    Files whose smallest values are near each other come into one group, so that a group has few of the values.
    """
    group: list[FileUse] = []
    size = 0
    for file in sorted(files, key=_place):
        if group and (group[0].partition != file.partition or size + file.size_bytes > limit_bytes):
            yield group
            group, size = [], 0
        group.append(file)
        size += file.size_bytes
    if group:
        yield group


def _place(file: FileUse) -> tuple[Any, ...]:
    is_known = file.smallest is not None
    return repr(file.partition), not is_known, file.smallest if is_known else 0, file.path
