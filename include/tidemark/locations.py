"""Where local folders lie: how a path becomes a location, the text that is stored, and how the text is read.

A location is ``file://`` and the path as it is. Nothing is percent-encoded: Iceberg opens the text behind ``file://``
letter by letter, in Java (Hadoop) as in Python, and so do Spark and DuckDB. A URI that a person wrote, a setting or an
address, is decoded where it comes in.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from unicodedata import category
from urllib.parse import unquote

from tidemark.errors import ConfigurationInvalid

_SCHEME = "file:"
# pyiceberg takes `?` and `#` for the end of a path. Spark takes the others for parts of a pattern, or for the end of a
# scheme or of an item in a list of files.
NOT_IN_FOLDERS = "?#*[]{}\\,:"
NOT_IN_DATABASES = "?"  # the end of a path for the drivers of SQLite
_REFUSED_CATEGORIES = {"Cc", "Cs"}  # control characters, and bytes that are no UTF-8


def to_location(path: Path) -> str:
    """Return the location of the absolute ``path``."""
    return f"{_SCHEME}///{str(path).lstrip('/')}"


def to_path(location: str) -> Path | None:
    """Return the path of ``file:///a``, ``file:/a`` (so Hadoop) or ``/a``; None on another file system."""
    if location.startswith("/"):
        return Path(location)
    return Path("/" + location[len(_SCHEME) :].lstrip("/")) if location.startswith(_SCHEME) else None


def parse_uri(text: str) -> Path | None:
    """Return the path in what a person wrote, a URI or an absolute path; None on another file system.

    Raises ``ConfigurationInvalid`` if a URI names a host, or no absolute path.
    """
    if not text.startswith(_SCHEME):
        return to_path(text)
    place = text.removeprefix(_SCHEME).removeprefix("//")
    if not place.startswith("/"):
        raise ConfigurationInvalid(f"{text!r} must be file:///ABSOLUTE/FOLDER, without a host")
    return Path(unquote(place))


def sqlite_path(uri: str) -> Path | None:
    """Return the file in ``sqlite:///PATH``, whose path is as it is; None for a database on a server."""
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:") else None


def is_read_only(path: Path) -> bool:
    """Return whether the file is there in a folder that this process cannot write, as in a mounted backup."""
    return path.exists() and not os.access(path.parent, os.W_OK)


def reading_uri(path: Path) -> str:
    """Return the URI with which SQLite reads the database ``path``, also in a folder that it cannot write.

    There it cannot make the files that it needs beside a database, and has to be told that nobody writes the database:
    unless such files are there, because somebody has the database open, or had when the home was copied.
    """
    beside = (path.with_name(path.name + suffix) for suffix in ("-wal", "-shm"))
    is_alone = is_read_only(path) and not any(file.exists() and file.stat().st_size for file in beside)
    return f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if is_alone else ''}"


def check_path(path: Path, *, refused: str, variable: str, environ: Mapping[str, str]) -> Path:
    """Return ``path``. Raises ``ConfigurationInvalid``, about ``variable``, if not every engine can open it."""
    text = str(path)
    odd = next((each for each in text if each in refused or category(each) in _REFUSED_CATEGORIES), None)
    if odd is not None:
        raise ConfigurationInvalid(
            f"the path {text!r} contains {odd!r}, which not every engine can read in a path",
            hint=f"set {variable} to a path without it",
        )
    encoding = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG") or "UTF-8"
    if not text.isascii() and "utf8" not in encoding.lower().replace("-", ""):
        odd = next(each for each in text if not each.isascii())
        raise ConfigurationInvalid(
            f"the path {text!r} contains {odd!r}, which Java cannot read in the locale {encoding!r}",
            hint=f"set LC_ALL to C.UTF-8, or {variable} to another path",
        )
    return path
