"""When a watcher announces that the files of a source have changed: once a change has come to rest.

A look is a listing of all files by name, size and times. What is announced may be announced again, by a watcher that
died in between; it is never left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.collections.sources.file_listing import FileState, list_files
from tidemark.collections.sources.remote_listing import list_remote_files
from tidemark.errors import InputMissing
from tidemark.locations import parse_uri

MOST_LOOKS = 30  # at files that never rest: then they are announced as they are
EXAMPLES = 3  # of paths in an announcement


def look_at(paths: Iterable[str]) -> tuple[FileState, ...]:
    """Return the files behind the paths, without Spark; a path without files adds none: they may come.

    Raises:
        SourceMoved: If a file vanished meanwhile.
        InputMissing: If a folder cannot be read.
        Unreachable: If an object store does not answer.
        ConfigurationInvalid: If there is no way to list a path without Spark.
    """
    found: dict[str, FileState] = {}
    for path in paths:
        files: Sequence[FileState] = ()
        if parse_uri(path) is None:
            files = list_remote_files(path)
        else:
            try:
                files = list_files(path).files
            except InputMissing as error:
                if error.__cause__ is not None:  # there, and not to be read
                    raise
        found.update((file.uri, file) for file in files)
    return tuple(found[uri] for uri in sorted(found))


def name_files(files: Iterable[FileState]) -> str:
    """Return the name of a look, which fits into a cursor; empty of no files."""
    lines = "\n".join(map(str, files))
    return hashlib.sha256(lines.encode()).hexdigest()[:32] if lines else ""


@dataclass(frozen=True, slots=True)
class FilesChanged:
    """What is announced; the three numbers are None if the watcher does not know what there was before."""

    name: str  # of the look
    files: int
    size_bytes: int
    came: int | None
    gone: int | None
    replaced: int | None
    examples: tuple[str, ...]
    is_at_rest: bool

    def __str__(self) -> str:
        told = [
            f"{n} {what}" for n, what in ((self.came, "new"), (self.gone, "gone"), (self.replaced, "replaced")) if n
        ]
        examples = f" ({', '.join(self.examples)}{', …' if self._more else ''})" if self.examples else ""
        there = f"{self.files} file{'s' * (self.files != 1)}, {self.size_bytes:,} B"
        still = "" if self.is_at_rest else ", which do not come to rest"
        return f"{', '.join(told)}{examples}; {there} there{still}" if told else f"{there} there{still}"

    @property
    def _more(self) -> bool:
        return sum(filter(None, (self.came, self.gone, self.replaced))) > len(self.examples)

    def facts(self, collection: str) -> dict[str, Any]:
        """Return the payload of the event."""
        return {
            "collection": collection,
            "seen": str(self),
            "name": self.name,
            "files": self.files,
            "bytes": self.size_bytes,
            "new": self.came,
            "gone": self.gone,
            "replaced": self.replaced,
            "examples": list(self.examples),
        }


class Watch:
    """Takes one look after the other, and says which of them is to be announced."""

    def __init__(self) -> None:
        self._looked: tuple[FileState, ...] | None = None
        self._before: tuple[FileState, ...] | None = None  # the look that was announced last, if this watch knows it
        self._unrest = 0

    def see(self, files: tuple[FileState, ...], announced: str) -> FilesChanged | None:
        """Take a look; return what to announce, None for nothing.

        ``announced`` is the name of the look that was announced last, by whomever; empty if there never was one,
        or nobody knows.
        No files are never announced: a folder that is not mounted looks like one without files.
        """
        looked, self._looked = self._looked, files
        name = name_files(files)
        if not files or name == announced:
            self._unrest = 0
            if files:
                self._before = files
            return None
        self._unrest += 1
        is_at_rest = files == looked
        if not is_at_rest and self._unrest < MOST_LOOKS:
            return None
        self._unrest = 0
        before = self._before if self._before is not None and name_files(self._before) == announced else None
        self._before = files
        return _compare(name, before, files, is_at_rest=is_at_rest)


def _compare(
    name: str, before: tuple[FileState, ...] | None, after: tuple[FileState, ...], *, is_at_rest: bool
) -> FilesChanged:
    size = sum(file.size_bytes for file in after)
    if before is None:
        return FilesChanged(name, len(after), size, None, None, None, (), is_at_rest)
    old, new = ({file.uri: file for file in files} for files in (before, after))
    came = [uri for uri in new if uri not in old]
    gone = [uri for uri in old if uri not in new]
    replaced = [uri for uri in new if uri in old and old[uri] != new[uri]]
    examples = tuple([*came, *replaced, *gone][:EXAMPLES])
    return FilesChanged(name, len(after), size, len(came), len(gone), len(replaced), examples, is_at_rest)
