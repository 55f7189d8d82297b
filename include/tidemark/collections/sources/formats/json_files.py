"""JSON: one object on each line; a row may leave out what is NULL in it."""

from __future__ import annotations

from typing import Literal

from tidemark.collections.sources.formats.files import FileSource


class JsonSource(FileSource):
    """JSON files."""

    form = "json"
    has_types = False
    may_omit_columns = True
    format: Literal["json"]

    @property
    def default_options(self) -> dict[str, str]:
        return {"mode": "FAILFAST"}  # a row that does not fit is refused; Spark's own default stores NULLs instead
