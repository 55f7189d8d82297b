"""What other processes and other tools do to the catalog of a home."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.support.crash import die_at
from tests.support.homes import Home
from tidemark.catalog.items.kinds import CATALOG_KIND, CatalogKind
from tidemark.catalog.opening.opening import Direction
from tidemark.catalog.persist.handle import compact_catalog
from tidemark.catalog.persist.records import PROPERTY, SHARD
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.log import LogUpdate, append_to_log
from tidemark.iceberg.shards import SYSTEM, Shards

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemark.settings import Settings

RELIC = LogUpdate("relic", "{}", "{}", 1)  # of a kind that there is not


def put_garbage(home: Home, *updates: LogUpdate) -> None:
    """Write to the persist catalog past the code of the catalog, as another tool would."""
    shard = Shards.connect(home.settings).open(SHARD, SYSTEM)
    upper = shard.load().state.upper
    append_to_log(Writer.join(shard, 1), updates or [RELIC], lower=upper, time=upper)


def show_config(home: Home, **config: int) -> None:
    """Edit the head of the persist catalog: it shows this config, too, which no item says."""
    table = Shards.connect(home.settings).open(SHARD, SYSTEM).load().table
    head = json.loads(table.properties[PROPERTY])
    with table.transaction() as edit:
        edit.set_properties({PROPERTY: json.dumps({**head, "config": {**head["config"], **config}})})


def set_kind(home: Home, kind: CatalogKind) -> None:
    """Say what the next open is to do, as a leader's task."""
    with home.catalog.join() as handle:
        handle.transact(lambda transaction: transaction.set_config(CATALOG_KIND, kind))


def run_in_child(what: Callable[[Home], object], home: Home, *, fail_point: str = "") -> int:
    """Run ``what``, a function of a module, in a process of its own that dies at ``fail_point``; its exit code."""
    return die_at(fail_point, _run, what, home.settings)


def _run(what: Callable[[Home], object], settings: Settings) -> None:
    what(Home(settings))


def migrate(home: Home) -> None:
    home.open(Direction.MIGRATE)


def roll_back(home: Home) -> None:
    home.open(Direction.ROLLBACK)


def open_in_an_emergency(home: Home) -> None:
    home.open(Direction.EMERGENCY, is_forced=True)


def compact(home: Home) -> None:
    shard = Shards.connect(home.settings).open(SHARD, SYSTEM)
    assert compact_catalog(shard, generation=1, now_ms=10**15)
