"""JSON: one object on each line; a row may leave out its NULL columns."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tidemark.collections.schema.types import Column, Primitive
from tidemark.collections.sources.formats.files import FileSource

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.collections.sources.batch_file import BatchFile, CsvForm


class JsonSource(FileSource):
    """JSON files."""

    form = "json"
    has_types = False
    may_omit_columns = True
    suffixes = (".json", ".jsonl", ".ndjson")
    format: Literal["json"]

    @property
    def default_options(self) -> dict[str, str]:
        return {"mode": "FAILFAST"}  # refuse a row that does not fit; by default Spark stores NULLs instead

    @classmethod
    def open_batch(cls, path: Path, form: CsvForm, names: tuple[str, ...]) -> BatchFile:  # noqa: ARG003 - the signature of FileSource
        import pyarrow as pa

        from tidemark.collections.quality.row_parsing import ParsedRows, RejectedRow, parse_rows
        from tidemark.collections.sources.batch_file import BatchFile, GivenColumns

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
        found = tuple(dict.fromkeys(name for _, _, value in objects for name in value))

        def read(schema: pa.Schema) -> ParsedRows:
            return parse_rows(
                {name: [value.get(name) for _, _, value in objects] for name in found},
                schema,
                numbers=[number for number, _, _ in objects],
                text_of=lambda place: objects[place][1],
                rejected=rejected,
            )

        guessed = tuple(Column(name, _guess_type(value.get(name) for _, _, value in objects)) for name in found)
        given = GivenColumns(where=str(path), names=found, guessed=guessed, is_complete=False)
        return BatchFile(given, path, read)


def _guess_type(values: Iterable[object]) -> Primitive:
    found = {type(value) for value in values if value is not None}
    for types, name in (({bool}, "boolean"), ({int}, "bigint"), ({int, float}, "double")):
        if found and found <= types:
            return Primitive(name)
    return Primitive("string")
