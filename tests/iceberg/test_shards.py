"""How often the catalog is asked: the work for many collections grows with their number, not with its square."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from tests.support.damage import damage_metadata
from tests.support.homes import Home
from tests.support.rows import SCHEMA
from tidemark.collections.deployment import Mode
from tidemark.collections.maintenance.maintain import compact_all, maintain_all
from tidemark.collections.staged.batches import list_batches
from tidemark.collections.staged.flush import flush_all
from tidemark.errors import UnknownCollection
from tidemark.iceberg.shard import state_reader
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shard.state_reader import read_states
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemark.settings import Settings

NAMES = ["a", "b", "c", "d"]
DECLARED = "version: 1\ncollections:\n" + "".join(
    f'  {name}: {{kind: append-only, schema: "id bigint, name string"}}\n' for name in NAMES
)


class Counted:
    """Counts the calls of a function that lists all tables."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
        self.calls, real = 0, getattr(owner, name)

        def count(*arguments: object) -> object:
            self.calls += 1
            return real(*arguments)

        monkeypatch.setattr(owner, name, count)

    def during(self, work: Callable[[], object]) -> int:
        """Do the work; return the number of calls meanwhile."""
        before = self.calls
        work()
        return self.calls - before


def test_a_collection_is_opened_without_listing_the_others(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = Shards.connect(home)
    for name in NAMES:
        shards.create(name, schema=SCHEMA, layout=ShardKind.APPEND_ONLY)
    listings = Counted(monkeypatch, SqlCatalog, "list_tables")
    assert listings.during(lambda: [shards.open(name).load() for name in NAMES]) == 0
    assert [shards.exists(name) for name in ("a", "d", "e", "")] == [True, True, False, False]
    assert not shards.exists("a", "system")
    assert listings.calls == 0
    with pytest.raises(UnknownCollection) as caught:
        shards.open("e")
    assert "a, b, c, d" in caught.value.hint


def test_a_table_whose_metadata_is_gone_exists(home: Settings) -> None:
    damage_metadata(Shards.connect(home).create("a", schema=SCHEMA), "gone")
    assert Shards.connect(home).exists("a")


def test_what_is_done_to_every_collection_lists_them_once(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    installation = Home(home)
    installation.declare(DECLARED)
    shards, deployment = installation.shards, installation.deployment
    listings = Counted(monkeypatch, SqlCatalog, "list_tables")
    assert listings.during(lambda: installation.declare(DECLARED)) == 1
    assert listings.during(lambda: list_batches(shards, [])) == 1
    assert listings.during(lambda: installation.switch(Mode.READ_ONLY)) == 2, "of both namespaces"
    assert listings.during(lambda: installation.switch(Mode.READ_WRITE)) == 2
    assert listings.during(lambda: maintain_all(None, deployment, [])) == 2, "of both namespaces"
    assert listings.during(lambda: compact_all(deployment, NAMES, start_spark=pytest.fail)) == 0
    assert listings.during(lambda: flush_all(shards, deployment, [], clock=installation.clock)) == 0


def test_all_states_are_read_with_one_question(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = Shards.connect(home)
    for name in NAMES:
        shards.create(name, schema=SCHEMA)
    questions = Counted(monkeypatch, state_reader, "_query_sqlite")
    assert questions.during(lambda: read_states(home)) == 1
