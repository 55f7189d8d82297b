"""An empty buffer of every kind: ``open_context`` runs a test once for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.buffers import BufferContext, FileContext, KafkaContext, MemoryContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(params=["memory", "file", pytest.param("kafka", marks=pytest.mark.kafka)])
def open_context(
    request: pytest.FixtureRequest, tmp_path: Path, unique_name: str
) -> Iterator[Callable[[int], BufferContext]]:
    """Opens the context of a test, with as many sequencers as it wants."""
    opened: list[BufferContext] = []

    def open_one(sequencers: int) -> BufferContext:
        if request.param == "memory":
            context: BufferContext = MemoryContext(sequencers)
        elif request.param == "file":
            context = FileContext(sequencers, tmp_path / "buffer")
        else:
            context = KafkaContext(sequencers, request.getfixturevalue("kafka").address, unique_name)
        opened.append(context)
        return context

    yield open_one
    for each in opened:
        each.__exit__()
