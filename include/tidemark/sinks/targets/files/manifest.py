"""A manifest: the one file that says which data files are the present state, and how far the sink has come."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidemark.errors import CorruptState, NotPossible
from tidemark.sinks.progress import Progress

VERSION = 1


class Group(NamedTuple):
    """Rows that share files: those of one partition, which is empty without one, and of one bucket of the keys."""

    directory: str
    bucket: int


class FileEntry(NamedTuple):
    """A data file; ``path`` is below the folder of the sink, and ``bucket`` tells files of one partition apart."""

    path: str
    rows: int
    bytes: int
    bucket: int = 0

    @property
    def group(self) -> Group:
        return Group(self.path.rpartition("/")[0], self.bucket)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One state of the folder; the manifest of the highest number is the truth."""

    number: int
    commit_id: str
    progress: Progress | None  # None: the sink was dropped, and its rows stay
    partition: tuple[str, ...] = ()
    buckets: int = 1
    files: tuple[FileEntry, ...] = ()

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def to_text(self) -> str:
        value = {
            "version": VERSION,
            "number": self.number,
            "commit_id": self.commit_id,
            "progress": None if self.progress is None else self.progress.to_json(),
            "partition": self.partition,
            "buckets": self.buckets,
            "rows": self.rows,
            "files": [file._asdict() for file in self.files],
        }
        return json.dumps(value, indent=1)

    @classmethod
    def parse(cls, text: str, *, where: str) -> Manifest:
        """Return the manifest that ``to_text`` wrote; ``where`` names the file in messages.

        Raises:
            NotPossible: If a newer Tidemark wrote the manifest.
            CorruptState: If the text is something else.
        """
        try:
            value: dict[str, Any] = json.loads(text)
            if value["version"] > VERSION:
                raise NotPossible(f"{where} is of version {value['version']}", hint="run the newer Tidemark there")
            progress = value["progress"]
            return cls(
                number=int(value["number"]),
                commit_id=value["commit_id"],
                progress=None if progress is None else Progress.parse(progress, where=where),
                partition=tuple(value["partition"]),
                buckets=int(value["buckets"]),
                files=tuple(FileEntry(**file) for file in value["files"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptState(
                f"{where} cannot be read: {error!r}", hint="somebody edited it: restore it from a backup"
            ) from error
