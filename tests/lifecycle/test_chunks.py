"""What may happen to a chunk: the tests of the reference, 3.2, by their names."""

from __future__ import annotations

import pytest

from tidemark.lifecycle.chunks import Action, Chunk, ChunkBusy, ChunkPersisted, Operation, Stage

OPEN = Chunk(id=1, rows=10, size_bytes=100, start_ms=5, last_write_ms=50)
PERSISTED = Chunk(id=2, stage=Stage.PERSISTED, rows=10, start_ms=5, last_write_ms=50)


def operation(action: Action) -> Operation:
    return Operation(id=f"{action}-1", action=action, started_ms=60)


def test_new_open() -> None:
    more = OPEN.add(5, size_bytes=50, start_ms=3, arrived_ms=40, open_rows=16)
    assert more == Chunk(id=1, rows=15, size_bytes=150, start_ms=3, last_write_ms=50)


def test_a_write_freezes_a_full_chunk() -> None:
    full = OPEN.add(6, size_bytes=60, start_ms=9, arrived_ms=60, open_rows=16)
    assert (full.stage, full.rows) == (Stage.FROZEN, 16)
    with pytest.raises(ValueError, match="takes no rows"):
        full.add(1, size_bytes=1, start_ms=9, arrived_ms=60, open_rows=16)


def test_freeze() -> None:
    frozen = OPEN.freeze()
    assert frozen.stage is Stage.FROZEN
    assert frozen.freeze() == frozen
    with pytest.raises(ChunkPersisted, match="chunk 2 is persisted"):
        PERSISTED.freeze()


@pytest.mark.parametrize("action", [Action.COMPACT, Action.PERSIST])
def test_set_compacting_freezes_chunk(action: Action) -> None:
    assert OPEN.begin(operation(action)).stage is Stage.FROZEN


def test_drop() -> None:
    persisting = OPEN.begin(operation(Action.PERSIST))
    with pytest.raises(ChunkBusy, match="chunk 1 has the persist persist-1 under way, so there is no drop of it"):
        persisting.begin(operation(Action.DROP))
    assert OPEN.begin(operation(Action.DROP)).is_staged, "it counts until it is gone"


def test_lifecycle_action() -> None:
    compacting = OPEN.begin(operation(Action.COMPACT))
    with pytest.raises(ChunkBusy):
        compacting.begin(operation(Action.COMPACT))
    with pytest.raises(ChunkBusy, match="has no persist-1 under way"):
        compacting.end("persist-1")


def test_clear_lifecycle_action() -> None:
    assert OPEN.begin(operation(Action.COMPACT)).end("compact-1") == OPEN.freeze()
    with pytest.raises(ChunkBusy):
        OPEN.end("compact-1")


def test_a_persisted_chunk_is_unloaded_and_nothing_else() -> None:
    assert PERSISTED.begin(operation(Action.UNLOAD)).is_persisted
    for action in (Action.COMPACT, Action.PERSIST, Action.DROP):
        with pytest.raises(ChunkPersisted, match=f"there is no {action} of it"):
            PERSISTED.begin(operation(action))
