"""Lists the files behind a path, and finds out whether the files changed afterwards."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any

from tidemark.errors import ConfigurationInvalid, InputMissing, Refused, SourceMoved, TidemarkError
from tidemark.locations import parse_uri, to_location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GLOB_CHARACTERS = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class FileState:
    """One file as it was listed. Of a remote file only name, size and time are known; the rest is 0.

    The change time of the inode shows that a file was replaced by another file of the same size and age.
    """

    uri: str
    size_bytes: int
    modified_ns: int
    changed_ns: int = 0
    inode: int = 0

    def has_size_of(self, state: str) -> bool:
        """Say whether ``state``, the text of a file, is that of one with this path and this size."""
        return state.startswith(f"FileState(uri={self.uri!r}, size_bytes={self.size_bytes}, ")

    @property
    def local_path(self) -> Path:
        """The path; only valid for a local file."""
        return Path(self.uri.removeprefix("file://"))


@dataclass(frozen=True, slots=True)
class FileListing:
    """The files behind one path, sorted. Subfolders of the folder ``base`` may be `name=value` columns."""

    path: str
    base: str | None
    files: tuple[FileState, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def is_local(self) -> bool:
        return parse_uri(self.path) is not None

    @property
    def has_partition_folders(self) -> bool:
        """Whether folders below ``base`` add columns, whose types only Spark infers."""
        return bool(self.folder_columns)

    @property
    def folder_columns(self) -> frozenset[str]:
        """The names of the columns that folders below ``base`` add, in lower case."""
        if self.base is None:
            return frozenset()
        below = (file.uri.removeprefix(self.base).split("/")[:-1] for file in self.files)
        return frozenset(folder.partition("=")[0].lower() for folders in below for folder in folders if "=" in folder)


def list_files(path: str, spark: SparkSession | None = None, *, where: str = "") -> FileListing:
    """List the file ``path``, the files below the folder ``path``, or the files that match the pattern ``path``.

    ``path`` is absolute, or a URI; ``spark`` is needed for remote paths only; ``where`` names the source in messages.
    Like Spark, the listing leaves out names that start with `_` or `.`.

    Raises:
        InputMissing: If there is no file, or a link to a missing file.
        Refused: If there is a pipe, or a name that is not UTF-8.
        ConfigurationInvalid: If ``path`` is no pattern.
        SourceMoved: If a file vanished meanwhile.
    """
    local, prefix = parse_uri(path), f"{where}: " if where else ""
    base: str | None = path
    if local is None:
        if spark is None:
            raise ValueError(f"{path} is remote: listing it needs Spark")
        found = _list_remote(path, spark)
    else:
        if local.exists():
            local = local.resolve()  # a link may be switched while its files are read
        base = to_location(local) if local.is_dir() else None
        found = _list_local(local, prefix)
    files = {file.uri: file for file in found}  # a pattern may match a folder and a file inside
    if not files:
        raise InputMissing(f"{prefix}{path} does not exist, or holds no file", hint="check the source's `path`")
    return FileListing(path, base, tuple(files[uri] for uri in sorted(files)))


def have_moved(listing: FileListing, spark: SparkSession | None = None) -> bool:
    """Say whether any listed file was removed or changed since. Files that were added since do not count."""
    if listing.is_local:
        try:
            return any(_state(str(file.local_path), file.local_path.stat()) != file for file in listing.files)
        except OSError:
            return True
    try:
        present = set(list_files(listing.path, spark).files)
    except InputMissing:
        return True
    return not present.issuperset(listing.files)


def _list_local(path: Path, prefix: str) -> Iterator[FileState]:
    if path.exists():
        roots: Iterable[str] = [str(path)]
    elif _GLOB_CHARACTERS & set(str(path)):
        try:
            roots = sorted(str(match) for match in Path(path.anchor).glob(str(path.relative_to(path.anchor))))
        except ValueError as error:  # `**` beside other letters
            raise ConfigurationInvalid(f"{prefix}{path} is no pattern of files: {error}") from error
    else:
        roots = []
    for root in roots:
        yield from _walk(root, prefix)


def _walk(path: str, prefix: str) -> Iterator[FileState]:
    try:
        if not Path(path).is_dir():
            yield _check_file(path, Path(path).stat(), prefix)
            return
        with os.scandir(path) as entries:
            present = [entry for entry in entries if not is_hidden(entry.name)]
        for entry in present:
            path = entry.path
            if entry.is_dir():
                yield from _walk(path, prefix)
            else:
                yield _check_file(path, entry.stat(), prefix)
    except OSError as error:
        raise _cannot_list(path, error, prefix) from error


def _check_file(path: str, stat: os.stat_result, prefix: str) -> FileState:
    """Return the state of a file. Raises ``Refused`` if reading it would wait for ever, or Java cannot name it."""
    name = path.encode("utf-8", "backslashreplace").decode()
    if not S_ISREG(stat.st_mode):
        raise Refused(f"{prefix}{name} is no file, but a pipe, a socket or a device", hint="move it elsewhere")
    if name != path:
        raise Refused(f"{prefix}{name} has a name that is not UTF-8", hint="rename it")
    return _state(path, stat)


def _cannot_list(path: str, error: OSError, prefix: str) -> TidemarkError:
    if error.errno not in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
        return InputMissing(f"{prefix}{path} cannot be read: {error.strerror}", hint="make it readable")
    if Path(path).is_symlink():
        target = Path(path).readlink()
        return InputMissing(f"{prefix}{path} is a link to {target}, which does not exist", hint="repair or remove it")
    return SourceMoved(f"{prefix}{path} vanished while the files were listed", hint="run again")


def is_hidden(name: str) -> bool:
    """Say whether Spark leaves out files and folders of this name."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _state(path: str, stat: os.stat_result) -> FileState:
    return FileState(to_location(Path(path)), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)


def hadoop_path(path: str, spark: SparkSession) -> tuple[Any, Any]:
    """Return Hadoop's form of ``path``, and the file system of the path."""
    jvm = spark._jvm  # noqa: SLF001 - Hadoop's file systems have no Python form
    if jvm is None:
        raise ValueError("a Spark Connect session has no Hadoop file systems")
    found = getattr(jvm, "org.apache.hadoop.fs.Path")(path)  # in one question, where dots would ask five
    return found, found.getFileSystem(spark._jsc.hadoopConfiguration())  # noqa: SLF001


def _list_remote(path: str, spark: SparkSession) -> Iterator[FileState]:
    root, file_system = hadoop_path(path, spark)
    pending = list(file_system.globStatus(root) or ())
    while pending:
        entry = pending.pop()
        if entry.isDirectory():
            inside = file_system.listStatus(entry.getPath())
            pending.extend(child for child in inside if not is_hidden(child.getPath().getName()))
        elif not is_hidden(entry.getPath().getName()):
            modified_ns = entry.getModificationTime() * 1_000_000
            yield FileState(entry.getPath().toString(), entry.getLen(), modified_ns)
