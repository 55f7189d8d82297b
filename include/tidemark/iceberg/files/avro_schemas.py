"""Lets pyiceberg 0.12.0 understand each Avro schema once: that takes ten times as long as to read a manifest list.

Each manifest and each manifest list brings its schema along. Those of lists are all the same, and those of manifests
differ by the columns that partition their table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pyiceberg.avro import file as avro_file
from pyiceberg.avro import resolver
from pyiceberg.avro.file import AvroFileHeader
from pyiceberg.avro.reader import Reader
from pyiceberg.schema import Schema
from pyiceberg.typedef import EMPTY_DICT
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

GET_SCHEMA, RESOLVE_READER = AvroFileHeader.get_schema, resolver.resolve_reader
_CACHED = 256


def mend() -> None:
    """Keep schemas, and the readers made of them, in the whole process: nobody changes either."""
    AvroFileHeader.get_schema = _get_schema  # type: ignore[method-assign, assignment]
    resolver.resolve_reader = avro_file.resolve_reader = _resolve_reader  # type: ignore[attr-defined]


def _get_schema(header: AvroFileHeader) -> Schema:
    text = header.meta.get("avro.schema")
    return GET_SCHEMA(header) if text is None else _parse(text)


@lru_cache(_CACHED)
def _parse(text: str) -> Schema:
    return AvroSchemaConversion().avro_to_iceberg(json.loads(text))


@dataclass(frozen=True, slots=True, eq=False)
class _Same:
    """Compares by identity: to compare, or to hash, a schema takes long."""

    schema: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.schema is other.schema

    def __hash__(self) -> int:
        return id(self.schema)


def _resolve_reader(
    file_schema: Any,
    read_schema: Any,
    read_types: Mapping[int, Any] = EMPTY_DICT,
    read_enums: Mapping[int, Any] = EMPTY_DICT,
) -> Reader:
    return _resolve(_Same(file_schema), _Same(read_schema), tuple(read_types.items()), tuple(read_enums.items()))


@lru_cache(_CACHED)
def _resolve(
    file_schema: _Same, read_schema: _Same, types: tuple[tuple[int, Any], ...], enums: tuple[tuple[int, Any], ...]
) -> Reader:
    return RESOLVE_READER(file_schema.schema, read_schema.schema, dict(types), dict(enums))
