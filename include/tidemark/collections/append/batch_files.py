"""Opens the file of one batch by its format. Whether the columns are the collection's, ``batch_fit`` says."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tidemark.collections.sources.batch_file import BatchFile, CsvForm, refusing
from tidemark.collections.sources.formats.registry import BATCH_FORMATS
from tidemark.errors import InputMissing, UsageError

COMPRESSIONS = {".gz", ".bz2", ".zst", ".lz4"}


def open_batch(
    path: Path, *, format_: str | None = None, form: CsvForm | None = None, names: Iterable[str] = ()
) -> BatchFile:
    """Look at one file.

    Args:
        path: The file; CSV and JSON may be compressed, as the last suffix says.
        format_: One of ``BATCH_FORMATS``; None takes it from the suffix.
        form: How CSV is written.
        names: The columns of a CSV file without a header; a first line that names them is taken for one.

    Raises:
        InputMissing: If there is no such file.
        UsageError: If the format is unknown.
        Refused: If the file as a whole cannot be read.
    """
    if not path.is_file():
        raise InputMissing(f"{path} is no file", hint="give the path of the batch's file")
    suffix = (path.suffixes[-2:-1] or [""])[0] if path.suffix in COMPRESSIONS else path.suffix
    for name, form_of_file in BATCH_FORMATS.items():
        if name == format_ or (format_ is None and suffix in form_of_file.suffixes):
            with refusing(path):
                return form_of_file.open_batch(path, form or CsvForm(), tuple(names))
    *first, last = BATCH_FORMATS
    known = f"{', '.join(first)} and {last}"
    raise UsageError(f"the format of {path} is not known", hint=f"formats are {known}: give --format")
