"""Every form of input, in one table: to add one, write its class, and name it in ``INPUTS``."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import ConfigDict, Discriminator, Tag, field_validator

from tidemark.collections.sources.formats.csv_files import CsvSource
from tidemark.collections.sources.formats.files import FileSource
from tidemark.collections.sources.formats.frame import FrameSource
from tidemark.collections.sources.formats.iceberg_tables import CollectionSource, IcebergSource
from tidemark.collections.sources.formats.jdbc import JdbcSource
from tidemark.collections.sources.formats.json_files import JsonSource
from tidemark.collections.sources.formats.parquet_files import ParquetSource
from tidemark.collections.sources.formats.source import InputSource, Source

INPUTS: tuple[type[InputSource], ...] = (
    ParquetSource,  # the first: messages about a mapping without `format` treat the mapping as this form
    CsvSource,
    JsonSource,
    IcebergSource,
    JdbcSource,
    CollectionSource,
)

FORMATS = tuple(form.form for form in INPUTS if "format" in form.model_fields)
UNTYPED_FORMATS = tuple(form.form for form in INPUTS if issubclass(form, FileSource) and not form.has_types)

BATCH_FORMATS = {form.form: form for form in INPUTS if issubclass(form, FileSource) and form.suffixes}


class UnknownFormat(InputSource):
    """A mapping with a misspelt `format`; refused, with the formats that exist."""

    model_config = ConfigDict(extra="ignore")  # the fields belong to whatever format was meant

    form = "unknown"
    format: Any

    @field_validator("format")
    @classmethod
    def _refuse(cls, given: Any) -> Any:
        if given == FrameSource.form:
            raise ValueError(
                "a data frame is no input of a query: declare a collection with `source: {format: frame}`, and read "
                "that collection"
            )
        known = (*FORMATS, FrameSource.form)
        near = get_close_matches(str(given).lower(), known)
        listed = ", ".join(dict.fromkeys([*near, *known]))
        raise ValueError(f"unknown format {given!r}: known are {listed}")


def form_of_input(value: Any) -> str:
    """Return the ``form`` of a source that is given as a mapping, or built already."""
    if isinstance(value, Source):
        return value.form
    if not isinstance(value, dict) or not {"collection", "format"} & value.keys():
        return INPUTS[0].form
    if "collection" in value:
        return CollectionSource.form
    return value["format"] if value["format"] in FORMATS else UnknownFormat.form


def one_of(forms: tuple[type[Source], ...], form_of: Any) -> Any:
    """Return the type of a field that takes any of ``forms``; ``form_of`` tells which form a value has."""
    all_forms: tuple[type[Source], ...] = (*forms, UnknownFormat)
    tagged = tuple(Annotated[form, Tag(form.form)] for form in all_forms)
    return Annotated[Union[tagged], Discriminator(form_of)]  # noqa: UP007 - made from a table


if TYPE_CHECKING:
    InputDeclaration = InputSource
else:
    InputDeclaration = one_of(INPUTS, form_of_input)
