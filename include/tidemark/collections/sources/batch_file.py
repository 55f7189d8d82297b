"""One small file of rows, read without a JVM: its columns, and the rows that fit a collection."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tidemark.collections.quality.row_parsing import ParsedRows
from tidemark.collections.schema.types import Columns
from tidemark.errors import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenColumns:
    """The columns of a batch, as far as the batch tells them."""

    where: str  # names the batch in messages
    names: tuple[str, ...]
    types: Columns = ()  # empty for text and JSON values, which take the types of the collection
    guessed: Columns = ()  # types for columns that the collection lacks
    is_complete: bool = True  # False: a column that is not named is NULL in every row


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvForm:
    """How a CSV file is written."""

    delimiter: str = ","
    quote: str = '"'
    header: bool = True
    null_text: str = ""  # without quotes; with quotes, the empty text stays the empty text


@dataclass(frozen=True, slots=True)
class BatchFile:
    """One file: its columns, as far as the file tells them, and a reader of its rows."""

    columns: GivenColumns
    path: Path
    reader: Callable[[pa.Schema], ParsedRows]

    def read(self, schema: pa.Schema) -> ParsedRows:
        """Return the rows that fit the columns ``schema``, and the rows that do not.

        Raises ``Refused`` if the file as a whole cannot be read.
        """
        with refusing(self.path):
            return self.reader(schema)


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turn errors of the block about a damaged file ``path`` into ``Refused``."""
    try:
        yield
    except (pa.ArrowInvalid, OSError, UnicodeDecodeError, csv.Error) as error:
        raise Refused(f"{path} cannot be read: {str(error).splitlines()[0]}", hint="replace the file") from error
