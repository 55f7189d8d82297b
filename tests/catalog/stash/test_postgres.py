from __future__ import annotations

import pyarrow as pa
import pytest

from tidemark.catalog.stash.postgres import copy_lines


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string()])
def test_texts_are_escaped_as_copy_reads_them(type_: pa.DataType) -> None:
    texts = ["plain", "a\tb", "a\nb\r", "back\\slash", "\\N", "", "\\n"]
    batch = pa.record_batch([pa.array(range(len(texts)), pa.int64()), pa.array(texts, type_)], names=["id", "text"])
    lines = copy_lines(batch).decode().splitlines(keepends=True)
    assert lines == [
        "0\tplain\n",
        "1\ta\\tb\n",
        "2\ta\\nb\\r\n",
        "3\tback\\\\slash\n",
        "4\t\\\\N\n",
        "5\t\n",
        "6\t\\\\n\n",
    ]


def test_no_rows_are_no_lines() -> None:
    assert copy_lines(pa.record_batch([pa.array([], pa.int64())], names=["id"])) == b""
