"""How much a run will read, known before Spark starts: most collections are small, and starting takes most time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.sources.formats.source import find_size
from tidemark.collections.sources.pins import Looking
from tidemark.errors import TidemarkError
from tidemark.iceberg.shards import Shards
from tidemark.interval import Interval
from tidemark.settings import Settings

SMALL_BYTES: Final = 16 << 20  # of all files together; twice as much CSV still takes less time the short way


def is_small(
    shards: Shards, settings: Settings, declarations: Iterable[Declaration], *, interval: Interval | None = None
) -> bool:
    """Say whether reconciling the collections reads little, of the sources and of what is stored.

    What is not known, as of a database, counts as much. Whatever is wrong is left to the run, which says so.
    """
    total = 0
    for declaration in declarations:
        assert declaration.source is not None  # noqa: S101 - a differential declaration has one
        looking = Looking(shards, settings, declaration.slice_of(interval))
        try:
            size = find_size(declaration.source, looking, collection=declaration.name)
            stored = shards.open(declaration.name).load().size_bytes
        except TidemarkError:
            return False
        if size is None or (total := total + size + stored) > SMALL_BYTES:
            return False
    return True
