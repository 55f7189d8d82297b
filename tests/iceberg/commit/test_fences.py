"""Tokens raised together: in one transaction, and never in place of what another commit has made of a shard."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from tests.support.crash import die_at
from tests.support.rows import SCHEMA, local_path
from tidemark.errors import FencedByEpoch, FencedByGeneration
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.iceberg.commit.fences import FAIL_POINTS, Fence, land, prepare_fence
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.shard.state import CommitKind
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings


def create(settings: Settings) -> list[Shard]:
    opened = Shards.connect(settings)
    return [opened.create(name, schema=SCHEMA) for name in ("east", "north", "west")]


@pytest.fixture
def shards(home: Settings) -> list[Shard]:
    return create(home)


def prepare(shards: list[Shard]) -> list[Fence]:
    return [prepare_fence(shard, shard.load(), 1) for shard in shards]


def raise_all(settings: Settings) -> None:
    land(prepare(Shards.connect(settings).all()))


def test_one_transaction_raises_every_token(shards: list[Shard]) -> None:
    writers = [Writer.join(shard, 1) for shard in shards]
    commits: list[object] = []
    event.listen(shards[0].iceberg.engine, "commit", commits.append)
    assert land(prepare(shards)) == []
    assert len(commits) == 1
    for shard, writer in zip(shards, writers, strict=True):
        state = shard.load().state
        assert (state.kind, state.token) == (CommitKind.FENCE, writer.token.raised(1))
        with pytest.raises(FencedByEpoch):
            writer.advance(lower=0, new_upper=1)
        Writer.join(shard, 1).advance(lower=0, new_upper=1)


def test_commit_in_between_stays_and_its_shard_is_named(shards: list[Shard]) -> None:
    writer = Writer.join(shards[1], 1)
    fences = prepare(shards)
    writer.advance(lower=0, new_upper=7)
    assert land(fences) == [shards[1]]
    state = shards[1].load().state
    assert (state.upper, state.token) == (7, writer.token)
    for fence in fences:
        paths = [Path(local_path(each)) for each in (*fence.written, fence.staged.location)]
        assert [path.exists() for path in paths] == [fence.shard != shards[1]] * len(paths)
    assert land([]) == []


@pytest.mark.postgres
def test_fences_at_once_on_postgres_raise_every_token(postgres_home: Settings) -> None:
    shards = create(postgres_home)
    writer = Writer.join(shards[1], 1)
    first, second = prepare(shards), prepare(shards)
    writer.advance(lower=0, new_upper=7)
    with ThreadPoolExecutor(2) as pool:
        lost = list(pool.map(land, (first, second)))
    assert sorted(len(each) for each in lost) == [1, 3], "whoever comes first raises all but the one that has moved"
    assert [shard.load().state.token.epoch for shard in shards] == [1, 0, 1]
    assert shards[1].load().state.upper == 7


def test_every_shard_is_named_if_nobody_knows_what_landed(shards: list[Shard], monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = shards[0].iceberg
    real = catalog.land

    def lose_answer(commits: object) -> None:
        real(commits)  # type: ignore[arg-type]
        raise OperationalError("COMMIT", {}, ConnectionError("server closed the connection"))

    monkeypatch.setattr(catalog, "land", lose_answer)
    fences = prepare(shards)
    assert land(fences) == shards
    assert all(shard.load().state.kind is CommitKind.FENCE for shard in shards), "its files must stay"


def test_newer_generation_is_not_fenced(shards: list[Shard]) -> None:
    Writer.raise_token(shards[0], 2)
    with pytest.raises(FencedByGeneration):
        prepare(shards)


@pytest.mark.crash
@pytest.mark.parametrize("point", FAIL_POINTS)
def test_killed_process_has_raised_no_token(point: str, home: Settings, shards: list[Shard]) -> None:
    writers = [Writer.join(shard, 1) for shard in shards]
    assert die_at(point, raise_all, home) == FAIL_POINT_EXIT
    for writer in writers:
        writer.advance(lower=0, new_upper=1)
    assert die_at("", raise_all, home) == 0
    for writer in writers:
        with pytest.raises(FencedByEpoch):
            writer.advance(lower=1, new_upper=2)
