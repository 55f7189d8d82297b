"""The folder of a sink: manifests that are created once and never change, and the removal of what no manifest names."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

from tidemark.atomic_files import write_whole
from tidemark.errors import NotPossible, StaleState, Unreachable
from tidemark.retry import retrying
from tidemark.sinks.targets.batches import file_gone
from tidemark.sinks.targets.files.manifest import Manifest

META, LATEST = "_tidemark", "manifest.json"
GRACE_S = 3_600  # for how long a reader may still read the files of a manifest that is not the last any more
_WITHOUT_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS}
_MANIFEST = re.compile(r"manifest-(\d{12})\.json")
_DATA = re.compile(r"part-[0-9a-f-]{36}-\d+\.parquet")


@contextmanager
def reaching() -> Iterator[None]:
    """Raise ``Unreachable`` if the file system fails, ``InputMissing`` if a file that a manifest names is gone."""
    try:
        yield
    except FileNotFoundError as error:
        raise file_gone("the folder", error) from error
    except OSError as error:
        raise Unreachable.by(error) from error


class Folder:
    """The folder at ``path``, which need not exist before something is published."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._meta = path / META

    def read(self) -> Manifest | None:
        """Return the manifest of the highest number; None if there is none."""
        ask = retrying(FileNotFoundError, attempts=5, what=f"the search for the last manifest of {self.path}")
        found: Manifest | None = ask(self._read)  # whoever publishes meanwhile may remove what was just listed
        return found

    def _read(self) -> Manifest | None:
        numbers = self._numbers()
        if not numbers:
            return None
        path = self._manifest(numbers[-1])
        return Manifest.parse(path.read_text(encoding="utf-8"), where=str(path))

    def publish(self, manifest: Manifest) -> None:
        """Create the manifest of that number, complete from the first moment on; ``show_latest`` says if it counts.

        Raises ``StaleState`` if another run has published this number; nothing was changed.
        """
        is_new = not self._meta.exists()
        self._meta.mkdir(parents=True, exist_ok=True)
        path, temporary = self._manifest(manifest.number), self._meta / f".{uuid4()}.tmp"
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(manifest.to_text())
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(temporary, path)  # which fails if the name is there
            except FileExistsError:
                # A file server may have made the link, and lost the answer.
                if Manifest.parse(path.read_text(encoding="utf-8"), where=str(path)).commit_id != manifest.commit_id:
                    raise StaleState(f"another run published {path}", hint="run it again") from None
            except OSError as error:
                if error.errno not in _WITHOUT_LINKS:
                    raise
                raise NotPossible(
                    f"the file system of {self.path} cannot make hard links, by which only one run publishes: {error}",
                    hint="choose a folder on a local disk or on NFS",
                ) from error
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(self._meta)
        if is_new:
            sync_folder(self.path)
            sync_folder(self.path.parent)

    def show_latest(self, manifest: Manifest) -> bool:
        """Let ``manifest.json`` be this manifest, which was just published, unless a later one is there already.

        Then the manifest may never have been the state: a run that stood still for an hour before it published finds
        its number free again, after others came further and ``clean`` removed theirs. The last one is never removed, so
        that such a run always sees a later one here.
        """
        is_last = self._numbers()[-1] == manifest.number
        if is_last:
            write_whole(self._meta / LATEST, manifest.to_text())
        return is_last

    def clean(self, latest: Manifest) -> None:
        """Remove manifests that were replaced more than an hour ago, and the data files that no other one names.

        The hour is that of the folder's own clock. Only for the run that published ``latest``: any other run that may
        be writing files has lost the folder, and will never name these files.
        """
        numbers = self._numbers()
        now = self._manifest(latest.number).stat().st_mtime
        replaced_at = {number: self._manifest(later).stat().st_mtime for number, later in pairwise(numbers)}
        outdated = {number for number, at in replaced_at.items() if at < now - GRACE_S}
        kept = [latest if number == latest.number else self._read_number(number) for number in set(numbers) - outdated]
        named = {file.path for manifest in kept for file in manifest.files}
        for number in outdated:
            self._manifest(number).unlink(missing_ok=True)
        for path in self._garbage(named):
            with suppress(FileNotFoundError):  # a newer run may clean at once
                if path.stat().st_mtime < now - GRACE_S:
                    path.unlink()

    def holds_foreign_files(self) -> bool:
        """Tell whether somebody else's files are in the folder."""
        return self.path.is_dir() and any(path.name != META for path in self.path.iterdir())

    def _garbage(self, named: set[str]) -> Iterator[Path]:
        yield from self._meta.glob(".*.tmp")
        for folder, folders, names in os.walk(self.path):
            folders[:] = [each for each in folders if not Path(folder, each, META).exists()]  # of other sinks
            for name in names:
                path = Path(folder, name)
                if _DATA.fullmatch(name) and path.relative_to(self.path).as_posix() not in named:
                    yield path

    def _numbers(self) -> list[int]:
        if not self._meta.is_dir():
            return []
        matches = (_MANIFEST.fullmatch(path.name) for path in self._meta.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def _manifest(self, number: int) -> Path:
        return self._meta / f"manifest-{number:012}.json"

    def _read_number(self, number: int) -> Manifest:
        path = self._manifest(number)
        return Manifest.parse(path.read_text(encoding="utf-8"), where=str(path))


def sync_folder(path: Path) -> None:
    """Make the names in a folder survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
