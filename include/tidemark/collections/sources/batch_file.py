"""One small file of rows, read without a JVM: which columns it has, and the rows that fit a collection."""

from __future__ import annotations

import csv
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemark.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tidemark.collections.quality.row_parsing import ParsedRows
    from tidemark.collections.schema.types import Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenColumns:
    """The columns of a batch, as far as it says."""

    where: str  # names the batch in messages
    names: tuple[str, ...]
    types: Columns = ()  # none: text, or JSON values, which take the types of the collection
    guessed: Columns = ()  # the types of columns that the collection does not have
    is_complete: bool = True  # whether a column that is not named is missing, and not NULL in every row


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

    def read(self, schema: pa.Schema) -> ParsedRows:
        """Return the rows with the columns ``schema``, and those that do not fit.

        Raises:
            Refused: If the file as a whole cannot be read.
        """
        with refusing(self.path):
            return self.reader(schema)


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turn what is thrown in the block because ``path`` is damaged into ``Refused``."""
    try:
        yield
    except (pa.ArrowInvalid, OSError, UnicodeDecodeError, csv.Error) as error:
        raise Refused(f"{path} cannot be read: {str(error).splitlines()[0]}", hint="replace the file") from error
