"""Lists remote files without Spark, and reads small ones, for a watcher, and to see that nothing has changed.

What a run reads is listed by Spark (`file_listing.py`), and both give a file the same state: the path as declared, the
size, and the time to the millisecond, which is all of it that Hadoop tells.

Logins come from the environment, as pyarrow finds them: for S3 `AWS_…`, an instance's role, or a profile.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidemark.collections.sources.file_listing import FileState, is_hidden
from tidemark.errors import ConfigurationInvalid, Unreachable

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo

_AS_PYARROW_SAYS = {"s3a": "s3", "s3n": "s3"}
_PARTS = re.compile(r"\[!?[^\]]*\]|\{[^}]*\}|\*|\?|[^\[{*?]+|.", re.DOTALL)
_GLOB_CHARACTERS = frozenset("*?[{")
_ONLY_SPARK_READS = re.compile(r"\\|\{[^}]*[/{]")  # of patterns
_OBJECT_STORES = frozenset({"s3", "s3a", "s3n", "gs", "gcs", "abfs", "abfss"})  # of others pyarrow starts a JVM
_MS_NS = 1_000_000
_PATIENCE_S = 60  # a store that gave no list is not asked again for so long: each of 300 collections would wait
_silent: dict[str, float] = {}  # when the store was asked, by its URI


def can_list(path: str) -> bool:
    """Say whether this module reads the pattern ``path`` as Spark does."""
    return _ONLY_SPARK_READS.search(path) is None


def find_remote_files(path: str) -> tuple[FileState, ...] | None:
    """Return the files as ``list_remote_files`` does; None if only Spark can list them, or may have the login."""
    store = "/".join(path.split("/", 3)[:3])
    asked = _silent.get(store)
    is_silent = asked is not None and time.monotonic() - asked < _PATIENCE_S
    if is_silent or not _is_object(path) or not can_list(path):
        return None
    try:
        return list_remote_files(path)
    except (Unreachable, ConfigurationInvalid):
        _silent[store] = time.monotonic()
        return None


def read_remote_file(uri: str) -> bytes:
    """Return the content of an object. Raises ``OSError`` or ``ValueError`` if only Spark can read it."""
    if not _is_object(uri):
        raise ValueError(f"{uri} is in no object store")
    from pyarrow import fs  # noqa: PLC0415 -- object stores only

    store, key = _split(uri)
    file_system, root = fs.FileSystem.from_uri(store)
    with file_system.open_input_stream(f"{root}/{key}") as stream:
        return bytes(stream.read())


def list_remote_files(path: str) -> tuple[FileState, ...]:
    """List the file ``path``, the files below it, or those that match it, sorted; empty if there is none.

    Like Spark's, the listing leaves out names that start with `_` or `.`, but for a folder that the pattern matches.

    Raises:
        Unreachable: If the store does not answer, or lets nobody list.
        ConfigurationInvalid: If pyarrow knows no such store.
    """
    store, key = _split(path)
    place = path.removesuffix(key).rstrip("/")
    parts = [part for part in key.split("/") if part]
    fixed = next((number for number, part in enumerate(parts) if _GLOB_CHARACTERS & set(part)), len(parts))
    pattern = "/".join(map(_regex, parts))
    matches = re.compile(f"{pattern}(?:/.*)?" if parts else ".*", re.DOTALL).fullmatch
    found = []
    for below, info in _walk(store, "/".join(parts[:fixed]), path):
        names = [*parts[:fixed], *below]
        name = "/".join(names)
        inside = names[len(parts) :] or names[-1:]  # what the pattern does not match, or the file that it does
        if matches(name) and not any(map(is_hidden, inside)):
            modified_ns = (info.mtime_ns or 0) // _MS_NS * _MS_NS
            found.append(FileState(f"{place}/{name}", info.size or 0, modified_ns))
    return tuple(sorted(found, key=lambda file: file.uri))


def _is_object(uri: str) -> bool:
    return uri.partition("://")[0] in _OBJECT_STORES


def _split(uri: str) -> tuple[str, str]:
    """Return the URI of the store, as pyarrow reads it, and the key of the object."""
    scheme, _, rest = uri.partition("://")
    authority, _, key = rest.partition("/")
    return f"{_AS_PYARROW_SAYS.get(scheme, scheme)}://{authority}", key


def _walk(store: str, folder: str, where: str) -> Iterator[tuple[list[str], FileInfo]]:
    """Yield all files below ``folder``, or the one that it is, with the names of the folders between and their own."""
    from pyarrow import fs  # noqa: PLC0415 -- object stores only

    try:
        file_system, root = fs.FileSystem.from_uri(store)
        base = f"{root}/{folder}".strip("/")
        entries: Any = file_system.get_file_info(fs.FileSelector(base, allow_not_found=True, recursive=True))
        if not entries:
            entries = [file_system.get_file_info(base)]
    except OSError as error:
        raise Unreachable(
            f"{where} cannot be listed: {str(error).splitlines()[0]}", hint="check the store, and who may list it"
        ) from error
    except (ValueError, NotImplementedError) as error:
        raise ConfigurationInvalid(f"{where} cannot be watched: {error}", hint="name an `asset` instead") from error
    for info in entries:
        if info.type == fs.FileType.File:
            yield [part for part in info.path.removeprefix(base).split("/") if part], info


def _regex(segment: str) -> str:
    """Return the regular expression of one part of a path, in which Hadoop takes `*`, `?`, `[…]` and `{…,…}`."""
    return "".join(map(_regex_of_part, _PARTS.findall(segment)))


def _regex_of_part(part: str) -> str:
    if part in {"*", "?"}:
        return "[^/]*" if part == "*" else "[^/]"
    if part.startswith("{") and part.endswith("}"):
        return f"(?:{'|'.join(map(_regex, part[1:-1].split(',')))})"
    if part.startswith("[") and part.endswith("]") and len(part) > 2:  # noqa: PLR2004 - not `[]`
        inside = part[1:-1]
        negated = inside[0] in "!^"
        inside = inside[negated:].replace("\\", r"\\")
        return f"[{'^' * negated}{inside}]" if inside else re.escape(part)
    return re.escape(part)
