"""Small files of one batch, read without a JVM: Parquet, CSV and JSON lines, as rows that fit the collection.

A row that does not parse is set aside with the reason; whether the columns are the collection's, `batch_columns` says.
"""

from __future__ import annotations

import csv
import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from tidemark.collections.apply.batch_fit import GivenColumns
from tidemark.collections.quality.row_parsing import ParsedRows, RejectedRow, csv_text, parse_rows
from tidemark.collections.schema.convert import from_parquet
from tidemark.collections.schema.types import Column, Primitive
from tidemark.errors import InputMissing, Refused, SchemaMismatch, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path


FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
COMPRESSIONS = {".gz", ".bz2", ".zst", ".lz4"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvForm:
    """How a CSV file is written."""

    delimiter: str = ","
    quote: str = '"'
    header: bool = True
    null_text: str = ""  # unquoted; quoted, the empty text is the empty text


@dataclass(frozen=True, slots=True)
class BatchFile:
    """One file: which columns it has, as far as it says, and how its rows are read."""

    columns: GivenColumns
    path: Path
    reader: Callable[[pa.Schema], ParsedRows]

    def read(self, kinds: pa.Schema) -> ParsedRows:
        """Return the rows with the columns ``kinds``, and those that do not fit.

        Raises:
            Refused: If the file as a whole cannot be read.
        """
        with _refusing(self.path):
            return self.reader(kinds)


def open_batch(
    path: Path, *, format_: str | None = None, form: CsvForm | None = None, names: Iterable[str] = ()
) -> BatchFile:
    """Look at one file.

    Args:
        path: The file; CSV and JSON may be compressed, as the last suffix says.
        format_: `parquet`, `csv` or `json` (one object per line); None takes it from the suffix.
        form: How CSV is written.
        names: The columns of a CSV file without a header; a first line that names them is taken for one.

    Raises:
        InputMissing: If there is no such file.
        UsageError: If the format is unknown.
        Refused: If the file as a whole cannot be read.
    """
    if not path.is_file():
        raise InputMissing(f"{path} is no file", hint="give the path of the batch's file")
    chosen = format_ or FORMATS.get((path.suffixes[-2:-1] or [""])[0] if path.suffix in COMPRESSIONS else path.suffix)
    with _refusing(path):
        if chosen == "parquet":
            return _open_parquet(path)
        if chosen == "csv":
            return _open_csv(path, form or CsvForm(), tuple(names))
        if chosen == "json":
            return _open_json(path)
    raise UsageError(f"the format of {path} is not known", hint="formats are parquet, csv and json: give --format")


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowInvalid, OSError, UnicodeDecodeError, csv.Error) as error:
        raise Refused(f"{path} cannot be read: {str(error).splitlines()[0]}", hint="replace the file") from error


# -- Parquet -------------------------------------------------------------------------------------------------------


def _open_parquet(path: Path) -> BatchFile:
    with pq.ParquetFile(path) as opened:
        columns = from_parquet(opened, where=str(path))

    def read(kinds: pa.Schema) -> ParsedRows:
        with pq.ParquetFile(path) as opened:
            rows = opened.read([name for name in kinds.names if name in opened.schema_arrow.names])
        arrays = [
            rows.column(field.name).cast(field.type)
            if field.name in rows.column_names
            else pa.nulls(rows.num_rows, field.type)
            for field in kinds
        ]
        return ParsedRows(pa.table(arrays, schema=kinds))

    given = GivenColumns(where=str(path), names=tuple(column.name for column in columns), types=columns)
    return BatchFile(given, path, read)


# -- CSV -----------------------------------------------------------------------------------------------------------


def _open_csv(path: Path, form: CsvForm, names: tuple[str, ...]) -> BatchFile:
    with pa.input_stream(str(path), compression="detect") as stream:
        first = stream.read(1 << 16).decode("utf-8-sig", errors="ignore").splitlines()[:1]
    fields = next(csv.reader(first, delimiter=form.delimiter, quotechar=form.quote), [])
    has_header = form.header or (bool(fields) and tuple(fields) == names)
    header = tuple(fields) if has_header else names
    if twice := sorted({name for name in header if header.count(name) > 1}):
        raise SchemaMismatch(f"{path} has several columns of the name {twice[0]!r}", hint="rename one")

    def read(kinds: pa.Schema) -> ParsedRows:
        rejected: list[RejectedRow] = []
        offset = 1 if has_header else 0

        def reject(row: arrow_csv.InvalidRow) -> str:
            reason = f"{row.actual_columns} fields, expected {row.expected_columns}"
            rejected.append(RejectedRow(row.number - offset, reason, row.text))
            return "skip"

        text = arrow_csv.read_csv(
            str(path),
            # One thread: only then are rows numbered.
            read_options=arrow_csv.ReadOptions(use_threads=False, column_names=None if has_header else list(header)),
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
        parsed = parse_rows(
            dict(zip(text.column_names, text.columns, strict=True)),
            kinds,
            numbers=numbers,
            text_of=lambda place: csv_text(text.slice(place, 1).to_pylist()[0].values()),
        )
        return ParsedRows(parsed.rows, tuple(sorted([*rejected, *parsed.rejected])))

    return BatchFile(GivenColumns(where=str(path), names=header), path, read)


# -- JSON ----------------------------------------------------------------------------------------------------------


def _open_json(path: Path) -> BatchFile:
    with pa.input_stream(str(path), compression="detect") as stream:
        lines = stream.read().decode("utf-8").splitlines()
    objects: list[tuple[int, str, dict[str, Any]]] = []
    rejected: list[RejectedRow] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            rejected.append(RejectedRow(number, f"no JSON: {error}", line))
            continue
        if isinstance(value, dict):
            objects.append((number, line, value))
        else:
            rejected.append(RejectedRow(number, "no JSON object", line))
    names = tuple(dict.fromkeys(name for _, _, value in objects for name in value))

    def read(kinds: pa.Schema) -> ParsedRows:
        parsed = parse_rows(
            {name: [value.get(name) for _, _, value in objects] for name in names},
            kinds,
            numbers=[number for number, _, _ in objects],
            text_of=lambda place: objects[place][1],
        )
        return ParsedRows(parsed.rows, tuple(sorted([*rejected, *parsed.rejected])))

    guessed = tuple(Column(name, _guess_type(value.get(name) for _, _, value in objects)) for name in names)
    given = GivenColumns(where=str(path), names=names, guessed=guessed, is_complete=False)
    return BatchFile(given, path, read)


def _guess_type(values: Iterable[object]) -> Primitive:
    found = {type(value) for value in values if value is not None}
    for kinds, name in (({bool}, "boolean"), ({int}, "bigint"), ({int, float}, "double")):
        if found and found <= kinds:
            return Primitive(name)
    return Primitive("string")
