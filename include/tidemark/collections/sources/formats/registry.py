"""Every form of input, in one table: to add one, write its class, and name it in ``INPUTS``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Discriminator, Tag

from tidemark.collections.sources.formats.csv_files import CsvSource
from tidemark.collections.sources.formats.files import FileSource
from tidemark.collections.sources.formats.iceberg_table import IcebergSource
from tidemark.collections.sources.formats.jdbc import JdbcSource
from tidemark.collections.sources.formats.json_files import JsonSource
from tidemark.collections.sources.formats.parquet_files import ParquetSource
from tidemark.collections.sources.formats.source import InputSource, Source
from tidemark.collections.sources.formats.stored_collection import CollectionSource

INPUTS: tuple[type[InputSource], ...] = (
    ParquetSource,  # the first is what a mapping without a known `format` is taken for, in messages
    CsvSource,
    JsonSource,
    IcebergSource,
    JdbcSource,
    CollectionSource,
)

FORMATS = tuple(form.form for form in INPUTS if "format" in form.model_fields)
UNTYPED_FORMATS = tuple(form.form for form in INPUTS if issubclass(form, FileSource) and not form.has_types)

BATCH_FORMATS = {form.form: form for form in INPUTS if issubclass(form, FileSource) and form.suffixes}


def form_of_input(value: Any) -> str:
    """Return the ``form`` of a source that is given as a mapping, or built already."""
    if isinstance(value, Source):
        return value.form
    if isinstance(value, dict) and "collection" in value:
        return CollectionSource.form
    given = value.get("format") if isinstance(value, dict) else None
    return given if given in FORMATS else FORMATS[0]


def one_of(forms: tuple[type[Source], ...], form_of: Any) -> Any:
    """Return the type of a field that takes any of ``forms``; ``form_of`` tells which of them a value is."""
    return Annotated[Union[tuple(Annotated[form, Tag(form.form)] for form in forms)], Discriminator(form_of)]  # noqa: UP007 - made from a table


if TYPE_CHECKING:
    InputDeclaration = InputSource
else:
    InputDeclaration = one_of(INPUTS, form_of_input)
