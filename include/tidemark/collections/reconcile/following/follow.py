"""Follows a source whose changes can be told: an Iceberg table, or files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.collections.declarations.collection import Guards
from tidemark.collections.digest.digest import Digest
from tidemark.collections.digest.file_digests import FEWEST_BUCKETS, FileDigests
from tidemark.collections.digest.scan import DRIVER_HASHES, FileScan
from tidemark.collections.reconcile.comparison import Difference, Scan
from tidemark.collections.reconcile.following.iceberg_rows import FollowingIceberg
from tidemark.collections.reconcile.following.replaced_files import (
    FileSetChanges,
    FollowingFiles,
    Unsettled,
    describe_files,
)
from tidemark.collections.reconcile.following.row_lookup import RowLookup
from tidemark.collections.sources.errors import CannotFollow
from tidemark.collections.sources.followed.file_set import FollowedFiles
from tidemark.collections.sources.followed.iceberg_changes import FollowedTable, Mark
from tidemark.collections.sources.opened_source import OpenedSource
from tidemark.collections.sources.pins import name_state

_NO_DIGESTS = (
    "no digests of the files are kept: when they were read last, all had been replaced, or one had more than "
    f"{DRIVER_HASHES // 1_000_000} million rows"
)
_OTHER_DECLARATION = "the declaration, or a column of the collection, is another one"


@dataclass(frozen=True, slots=True)
class Followed:
    """What is known without a look at all rows: the corrections, or else the digests of both sides."""

    files: Mapping[str, int]  # how many came and went, for the report
    difference: Difference | None = None
    scan: Scan | None = None
    file_digests: FileDigests | None = None  # of the present files


@dataclass(frozen=True)
class Followable:
    """One run whose source may be followed."""

    source: OpenedSource
    lookup: RowLookup
    guards: Guards
    decided_by: str  # names all that decides, beside the source, which rows the collection holds
    leaves_out_others: bool  # columns of the source that the collection does not have
    began_ms: int  # before the source was looked at

    def follow(self) -> Followed | None:
        """Return what the changes of the source tell; None if nothing was kept from which it could be followed.

        Raises ``CannotFollow`` if all rows are to be compared.
        """
        followed, pinned = self.source.followed, self.lookup.pinned
        if isinstance(followed, FollowedTable):
            since = Mark.parse(pinned.note.mark)
            found = None if since is None else self._follow_table(followed, since)
        elif isinstance(followed, FollowedFiles):
            kept = pinned.file_digests
            found = None if kept is None else self._follow_files(followed, kept)
        else:
            found = None
        return found

    def _follow_table(self, table: FollowedTable, since: Mark) -> Followed:
        self._check(since.decided_by, self.decided_by)
        changes = table.find_changes(since, keys_suffice=self.lookup.shape.is_keyed)
        following = FollowingIceberg(
            changes=changes,
            lookup=self.lookup,
            guards=self.guards,
            where=self.source.where,
            leaves_out_others=self.leaves_out_others,
        )
        return Followed(changes.to_json(), following.compare())

    def _follow_files(self, files: FollowedFiles, kept: FileDigests) -> Followed:
        if not kept.has_sums:
            raise CannotFollow(_NO_DIGESTS)
        self._check(kept.decided_by, name_reading(files, self.decided_by))
        following = FollowingFiles(
            files=files,
            kept=kept,
            lookup=self.lookup,
            guards=self.guards,
            where=self.source.where,
            leaves_out_others=self.leaves_out_others,
            since_ms=self.began_ms,
        )
        changes = following.changes.to_json()
        try:
            return Followed(changes, following.compare(), file_digests=following.digests)
        except Unsettled as found:
            return Followed(changes, scan=found.scan, file_digests=following.digests)

    def _check(self, decided_by: str, decided_now: str) -> None:
        pinned = self.lookup.pinned
        if decided_by != decided_now:
            raise CannotFollow(_OTHER_DECLARATION)
        if pinned.digest is None or not pinned.head.is_of_last_commit:
            raise CannotFollow("no digest of the stored rows is kept")


def name_reading(files: FollowedFiles, decided_by: str) -> str:
    """Return the name of all that decides, beside the contents of the files, which rows a collection of them holds."""
    return name_state((), decided_by, files.reading)


def are_worth_digests(files: FollowedFiles, kept: FileDigests | None) -> bool:
    """Say whether a scan should keep a digest of each file: not if all files were replaced since those that are kept.

    Whoever writes all files anew does so again, most likely, and digests of them take a fifth of a scan.
    """
    if kept is None or not kept.files:
        return True
    return len(FileSetChanges.between(kept, files.listing.files).gone) < len(kept.files)


def were_touched(files: FollowedFiles, kept: FileDigests | None) -> bool:
    """Say whether all files have the paths and sizes of those that are kept, and thus most likely the same rows."""
    listed = files.listing.files
    if kept is None or len(listed) != len(kept.files):
        return False
    return all(file.uri in kept.files and file.has_size_of(kept.files[file.uri].state) for file in listed)


def digests_of(
    files: FollowedFiles, by_file: Mapping[int, FileScan] | None, *, decided_by: str, since_ms: int
) -> FileDigests:
    """Return the digests of all files, as a scan found them; their states alone if it did not look for digests.

    The run looked at the source at ``since_ms``.
    """
    bucket_count = 0
    if by_file is not None:
        bucket_count = next((scan.digest.bucket_count for scan in by_file.values()), FEWEST_BUCKETS)
    empty = FileScan(Digest.empty(bucket_count))
    found = describe_files(files, files.listing.files, by_file or {}, since_ms=since_ms, empty=empty)
    return FileDigests(name_reading(files, decided_by), found)
