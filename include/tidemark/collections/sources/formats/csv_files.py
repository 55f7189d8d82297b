"""CSV files; the header lines of local files are compared with the declared columns without Spark."""

from __future__ import annotations

import bz2
import csv
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from pydantic import model_validator

from tidemark.collections.schema.types import Column, Columns, Primitive, columns_text
from tidemark.collections.sources.file_listing import FileListing, FileState
from tidemark.collections.sources.formats.files import FileSource
from tidemark.errors import Refused, SchemaMismatch, SourceMoved

if TYPE_CHECKING:
    from tidemark.collections.sources.batch_file import BatchFile, CsvForm


class CsvSource(FileSource):
    """CSV files, with or without a header; without a declared schema every column is text."""

    form = "csv"
    has_types = False
    suffixes = (".csv",)
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
        """Refuse a header that differs from the declared schema: Spark reads the columns by position."""
        if not self.has_header or self.columns is None:
            return
        of_folders = listing.folder_columns
        declared = [column.name for column in self.columns if column.name.lower() not in of_folders]
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

    def columns_of(self, listing: FileListing, where: str) -> Columns | None:  # noqa: ARG002 - the signature of FileSource
        if not self.has_header or self.is_set("inferSchema"):
            return None
        names = self._header(listing.files[0])
        return None if names is None else tuple(Column(name, Primitive("string")) for name in names)

    @classmethod
    def open_batch(cls, path: Path, form: CsvForm, names: tuple[str, ...]) -> BatchFile:
        import pyarrow as pa
        import pyarrow.csv as arrow_csv

        from tidemark.collections.quality.row_parsing import ParsedRows, RejectedRow, csv_text, parse_rows
        from tidemark.collections.sources.batch_file import BatchFile, GivenColumns

        with pa.input_stream(str(path), compression="detect") as stream:
            first = stream.read(1 << 16).decode("utf-8-sig", errors="ignore").splitlines()[:1]
        fields = next(csv.reader(first, delimiter=form.delimiter, quotechar=form.quote), [])
        has_header = form.header or (bool(fields) and tuple(fields) == names)
        header = tuple(fields) if has_header else names
        if twice := sorted({name for name in header if header.count(name) > 1}):
            raise SchemaMismatch(f"{path} has several columns of the name {twice[0]!r}", hint="rename one")

        def read(schema: pa.Schema) -> ParsedRows:
            rejected: list[RejectedRow] = []
            offset = 1 if has_header else 0

            def reject(row: arrow_csv.InvalidRow) -> str:
                reason = f"{row.actual_columns} fields, expected {row.expected_columns}"
                rejected.append(RejectedRow(row.number - offset, reason, row.text))
                return "skip"

            text = arrow_csv.read_csv(
                str(path),
                # Arrow numbers rows only when it reads with one thread.
                read_options=arrow_csv.ReadOptions(
                    use_threads=False, column_names=None if has_header else list(header)
                ),
                parse_options=arrow_csv.ParseOptions(
                    delimiter=form.delimiter, quote_char=form.quote, newlines_in_values=True, invalid_row_handler=reject
                ),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(header, pa.string()),
                    null_values=[form.null_text],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
            misshapen = {row.number for row in rejected}
            numbers = [n for n in range(1, text.num_rows + len(misshapen) + 1) if n not in misshapen]
            return parse_rows(
                dict(zip(text.column_names, text.columns, strict=True)),
                schema,
                numbers=numbers,
                text_of=lambda place: csv_text(text.slice(place, 1).to_pylist()[0].values()),
                rejected=rejected,
            )

        return BatchFile(GivenColumns(where=str(path), names=header), path, read)

    def _header(self, file: FileState) -> list[str] | None:
        """Return the fields of the first line; None for an empty file, and for a form that only Spark reads."""
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
