"""CSV: the header lines of local files are compared with the declared columns without Spark."""

from __future__ import annotations

import bz2
import csv
import gzip
from typing import IO, TYPE_CHECKING, Literal

from pydantic import model_validator

from tidemark.collections.schema.types import Column, Columns, Primitive, columns_text
from tidemark.collections.sources.formats.files import FileSource
from tidemark.errors import Refused, SchemaMismatch, SourceMoved

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemark.collections.sources.file_listing import FileListing, FileState


class CsvSource(FileSource):
    """CSV files, with or without a header; without a declared schema every column is text."""

    form = "csv"
    has_types = False
    format: Literal["csv"]

    @model_validator(mode="after")
    def _names_its_columns(self) -> CsvSource:
        if not self.has_header and self.columns_text is None:
            raise ValueError(
                "csv without a header has no column names: set `options: {header: true}`, or give a `schema`"
            )
        return self

    @property
    def has_header(self) -> bool:
        """Whether the first line of each file names the columns."""
        return self.is_set("header")

    @property
    def delimiter(self) -> str:
        return self.option("sep", self.option("delimiter", ","))

    @property
    def quote(self) -> str:
        return self.option("quote", '"')

    @property
    def default_options(self) -> dict[str, str]:
        # A row that does not fit is refused; Spark's own default stores NULLs in its place.
        by_name = {"enforceSchema": "false"} if self.has_header and self.columns is not None else {}
        return {"mode": "FAILFAST", **by_name}

    def check_files(self, listing: FileListing, where: str) -> None:
        """Refuse a header that is not the declared schema: Spark reads the columns by their places."""
        if not self.has_header or self.columns is None:
            return
        declared = [column.name for column in self.columns]
        for file in listing.files:
            header = self._header(file)
            if header is None or [name.lower() for name in header] == [name.lower() for name in declared]:
                continue
            missing = [name for name in declared if name not in header]
            others = [name for name in header if name not in declared]
            if missing:
                problem = f"lacks the column{'s' if len(missing) > 1 else ''} {', '.join(map(repr, missing))}"
            elif others:
                problem = f"has undeclared columns: {', '.join(map(repr, others))}"
            else:
                problem = f"has the columns in another order: {', '.join(map(repr, header))}"
            raise SchemaMismatch(
                f"{where}: {file.local_path} {problem}", hint=f"the declared schema is: {columns_text(self.columns)}"
            )

    def columns_of(self, listing: FileListing, where: str) -> Columns | None:  # noqa: ARG002 - as the other formats
        if not self.has_header or self.is_set("inferSchema"):
            return None
        names = self._header(listing.files[0])
        return None if names is None else tuple(Column(name, Primitive("string")) for name in names)

    def _header(self, file: FileState) -> list[str] | None:
        """Return the first line's fields; None for an empty file, and where Spark alone knows how to read it."""
        if len(self.delimiter) != 1 or self.option("comment", ""):
            return None
        encoding = self.option("encoding", self.option("charset", "utf-8"))
        open_text: Callable[..., IO[str]]
        open_text = {".gz": gzip.open, ".bz2": bz2.open}.get(file.local_path.suffix, open)  # type: ignore[assignment]  # overloads
        try:
            with open_text(file.local_path, "rt", encoding=encoding, newline="") as opened:
                line = next(csv.reader(opened, delimiter=self.delimiter, quotechar=self.quote), None)
        except FileNotFoundError as error:
            raise SourceMoved(f"{file.local_path} vanished while it was read", hint="run again") from error
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise Refused(f"{file.local_path} cannot be read: {error}", hint="replace the file") from error
        return None if line is None else [name.strip().removeprefix("\ufeff") for name in line]
