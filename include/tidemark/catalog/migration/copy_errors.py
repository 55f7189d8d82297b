"""What Spark throws when a database goes away under a copy, as an error after which the copy is made again."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j has no annotations
from pyspark.errors import PySparkException

from tidemark.collections.sources.errors import translate
from tidemark.errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def translating_copy() -> Iterator[None]:
    """Turn the errors of Spark in the block into typed ones where a database or a file is to blame; others pass.

    Raises:
        Unreachable: If the database of the stash, or that of the tables, was lost: nothing became visible.
        Others as ``translate``.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        translated = translate(error, "the copy of the catalog")
        if isinstance(translated, Unreachable):
            raise Unreachable(
                str(translated), hint="check TIDEMARK_STASH_URI, TIDEMARK_CATALOG_URI and that the servers run"
            ) from error
        if translated is not None:
            raise translated from error
        raise
