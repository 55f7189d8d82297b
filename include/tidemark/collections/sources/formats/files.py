"""Files of any format; a run reads exactly the files that existed when the source was opened."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, Field, model_validator

from tidemark.collections.declarations.append_only import Duration, duration_ms, given
from tidemark.collections.schema.ddl import parse_columns
from tidemark.collections.schema.types import Columns, columns_text
from tidemark.collections.sources.file_listing import FileListing, FileState, have_moved, list_files
from tidemark.collections.sources.formats.source import SourceWithOptions, absolute_path
from tidemark.collections.sources.pins import FilesPin
from tidemark.collections.sources.remote_listing import can_list, find_remote_files
from tidemark.errors import Refused, SourceMoved, TidemarkError
from tidemark.locations import parse_uri

if TYPE_CHECKING:
    from tidemark.collections.sources.batch_file import BatchFile, CsvForm
    from tidemark.collections.sources.opened_source import OpenedSource, Opening
    from tidemark.collections.sources.pins import Looking, Pin

_SHORTEST_WATCH_MS, _LONGEST_WATCH_MS = 1_000, 3_600_000
_BYTES_PER_ROW = 20
_GLOB_CHARACTERS = re.compile(r"[{}\[\]*?\\]")


def _check_schema(text: str) -> str:
    parse_columns(text)
    return text


def _check_watch(every: str) -> str:
    if not _SHORTEST_WATCH_MS <= duration_ms(every) <= _LONGEST_WATCH_MS:
        raise ValueError(f"a watcher looks every 1s to 1h{given(every)}")
    return every


SchemaText = Annotated[str, AfterValidator(_check_schema)]  # DDL: `name type, name type`


class FileSource(SourceWithOptions):
    """A file, a folder (read recursively, with `name=value` folders as columns) or a pattern.

    Each format is a subclass, with Spark's name of the format in ``form`` and ``format``.
    """

    has_types: ClassVar[bool]  # whether the files themselves hold the types of the columns
    may_omit_columns: ClassVar[bool] = False  # whether a row may leave out its NULL columns
    suffixes: ClassVar[tuple[str, ...]] = ()  # of files that ``open_batch`` reads; none: only Spark reads the format

    format: str
    path: Annotated[str, AfterValidator(absolute_path)]
    columns_text: SchemaText | None = Field(default=None, alias="schema")
    watch: Annotated[Duration, AfterValidator(_check_watch)] | None = None  # how often a watcher looks; None: never

    @model_validator(mode="after")
    def _can_be_watched(self) -> Self:
        is_remote = self.watch is not None and parse_uri(self.path) is None
        if is_remote and not can_list(self.path):
            raise ValueError(
                "a watcher reads no pattern with `\\`, or with `{…}` around `/` or other braces: leave it out"
            )
        return self

    @property
    def watched_path(self) -> str | None:
        return None if self.watch is None else self.path

    @property
    def watch_ms(self) -> int | None:
        return None if self.watch is None else duration_ms(self.watch)

    @property
    def columns(self) -> Columns | None:
        return None if self.columns_text is None else parse_columns(self.columns_text)

    @property
    def default_options(self) -> dict[str, str]:
        """Options for Spark; declared options take precedence."""
        return {}

    def check_files(self, listing: FileListing, where: str) -> None:
        """Refuse local files that do not fit, but that Spark would read without an error."""

    def columns_of(self, listing: FileListing, where: str) -> Columns | None:  # noqa: ARG002 - for subclasses
        """Return the columns of local files without Spark; None if only Spark can tell the columns."""
        return None

    @classmethod
    def open_batch(cls, path: Path, form: CsvForm, names: tuple[str, ...]) -> BatchFile:
        """Open one small file, which is read without Spark; ``names`` are the columns of CSV without a header.

        The last suffix of ``path`` says whether the file is compressed.
        """
        raise NotImplementedError

    def find_state(self, looking: Looking, where: str) -> tuple[Pin, ...] | None:
        listing = self._look(looking, where)
        return None if listing is None else (FilesPin(listing, looking.spark),)

    def find_size(self, looking: Looking, where: str) -> int | None:
        listing = self._look(looking, where)
        return None if listing is None else listing.size_bytes

    def _look(self, looking: Looking, where: str) -> FileListing | None:
        """List the files, with Spark if there is a session; None if only Spark can."""
        if looking.spark is not None or parse_uri(self.path) is not None:
            return list_files(self.path, looking.spark, where=where)
        files = find_remote_files(self.path)
        return FileListing(self.path, self.path, files) if files else None

    def open_whole(self, opening: Opening, where: str) -> OpenedSource:
        """Pin the files that the path matches now, and return their rows.

        Raises ``SourceMoved`` if a file changed meanwhile.
        """
        from tidemark.collections.sources.errors import translating
        from tidemark.collections.sources.followed.file_set import FollowedFiles
        from tidemark.collections.sources.opened_source import OpenedSource

        listing = list_files(self.path, opening.spark, where=where)
        with noticing_moves(listing, opening, where), translating(where):
            if listing.is_local:
                self.check_files(listing, where)
            desired = self._read(opening, listing.files, base=listing.base)
        reads = partial(self._read, opening, base=listing.base, like=desired)
        followed = FollowedFiles(opening.spark, listing, desired, reads, partial(self.guess_rows, listing))
        occurring = partial(self._occurring_columns, opening, listing, where) if self.may_omit_columns else None
        pins = (FilesPin(listing, opening.spark),)
        return OpenedSource(
            where=where,
            desired=desired,
            pins=pins,
            state=pins,
            pinnable=True,
            followed=followed if followed.can_tell_files else None,
            place=self.path,
            occurring_columns=occurring,
        )

    def _occurring_columns(self, opening: Opening, listing: FileListing, where: str) -> frozenset[str]:
        """Return the columns that any row of the files names, even with NULL: a pass over all files.

        Raises ``SourceMoved`` if the files changed since they were listed.
        """
        from tidemark.collections.sources.errors import translating

        with noticing_moves(listing, opening, where), translating(where):
            undeclared = self.model_copy(update={"columns_text": None})
            found = frozenset(undeclared._read(opening, listing.files, base=listing.base).columns)  # noqa: SLF001 - the same class
        if have_moved(listing, opening.spark):
            raise SourceMoved(f"{where} was changed while it was searched for columns", hint="run again")
        return found

    def guess_rows(self, listing: FileListing) -> int:
        """Return about how many rows the files have."""
        return listing.size_bytes // _BYTES_PER_ROW

    def _read(self, opening: Opening, files: Sequence[FileState], *, base: str | None, like: Any = None) -> Any:
        """Return the rows of these files below the folder ``base``, with the columns of the frame ``like``."""
        reader = opening.spark.read.format(self.format).options(**self.default_options)
        if base is not None:
            reader = reader.option("basePath", base)
        if like is not None:
            reader = reader.schema(like.schema)
        elif self.columns is not None and not self.has_types:
            reader = reader.schema(columns_text(self.columns))
        return reader.options(**self.spark_options).load([_literal(file.uri) for file in files])


@contextmanager
def noticing_moves(listing: FileListing, opening: Opening, where: str) -> Iterator[None]:
    """Raise ``SourceMoved`` in the place of another error if a file has changed: one that is replaced looks damaged."""
    try:
        yield
    except Exception as error:
        may_be_of_files = isinstance(error, Refused) or not isinstance(error, TidemarkError)
        if may_be_of_files and have_moved(listing, opening.spark):
            raise SourceMoved(f"{where} was changed while it was opened: {error}", hint="run again") from error
        raise


def _literal(uri: str) -> str:
    """Return a pattern that matches only ``uri``: Spark reads every path as a pattern."""
    return _GLOB_CHARACTERS.sub(r"\\\g<0>", uri)
