"""Files whose rows depend on nothing but the file: a run may read only those that came, or were replaced."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.collections.digest.scan import FILE
from tidemark.collections.sources.errors import CannotFollow
from tidemark.collections.sources.file_listing import FileListing, FileState

_METADATA = "_metadata"  # Spark's column that says where a row comes from
_PATH = f"{_METADATA}.file_path"
_SCHEME = re.compile(r"^file:/+")
_NUMBER_BITS = 31  # of the hash of a path
_SALTS = 8


@dataclass(frozen=True)
class FollowedFiles:
    """The files behind one path as a run found them, and the condition that limits their rows."""

    spark: SparkSession
    listing: FileListing
    whole: DataFrame  # the rows of all files, without the condition
    read: Callable[[Sequence[FileState]], DataFrame]  # those of some files, with the same columns
    guess_rows: Callable[[], int]  # of all files together
    condition: str | None = None

    @property
    def can_tell_files(self) -> bool:
        """Whether Spark can say of each row which file it is from: a column of the files may have taken the name."""
        return not {_METADATA, FILE} & {name.lower() for name in self.whole.columns}

    @property
    def reading(self) -> str:
        """What decides, beside the contents of a file, which rows it has."""
        return f"{self.whole.schema.json()} WHERE {self.condition}"

    def open(self, files: Sequence[FileState]) -> DataFrame:
        """Return the rows of some files that meet the condition."""
        rows = self.read(files)
        return rows if self.condition is None else rows.where(self.condition)

    @property
    def path(self) -> Column:
        """Return the path of the file of a row, for ``uri_of``."""
        return F.col(_PATH)

    @property
    def number(self) -> Column:
        """Return the number of the file of a row, an int."""
        return _number(self.path, self._numbered[0])

    @property
    def by_number(self) -> Mapping[int, FileState]:
        """The files by their numbers; those that Spark leaves out are missing.

        Raises ``CannotFollow`` if Spark reads another file.
        """
        return self._numbered[1]

    @cached_property
    def _numbered(self) -> tuple[int, Mapping[int, FileState]]:
        """Return the salt with which no two paths have one hash, and the files by their hashes."""
        listed = {file.uri: file for file in self.listing.files}
        # Of a local file Spark's column has `file:/a`, its list `file:///a`.
        read = (_SCHEME.sub("file:/", path) for path in self.whole.inputFiles())
        paths = {path: uri_of(path) for path in read}
        if any(uri not in listed for uri in paths.values()):
            raise CannotFollow("Spark reads files that were not listed")
        frame = self.spark.createDataFrame(pa.table({"path": pa.array(paths, pa.string())}))
        for salt in range(_SALTS):
            found = frame.select("path", _number(F.col("path"), salt).alias("number")).toArrow().to_pylist()
            by_number = {row["number"]: listed[paths[row["path"]]] for row in found}
            if len(by_number) == len(paths):
                return salt, by_number
        raise CannotFollow("the files cannot be told apart by the hashes of their paths")


def uri_of(path: str) -> str:
    """Return the URI of a file as it is listed, from the path that Spark gives."""
    return _SCHEME.sub("file:///", unquote(path))


def _number(path: Column, salt: int) -> Column:
    return F.shiftrightunsigned(F.xxhash64(F.lit(salt), path), 64 - _NUMBER_BITS).cast("int")
