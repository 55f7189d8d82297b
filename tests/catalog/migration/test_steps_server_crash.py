"""The whole database server, stash and tables in it, is killed while the catalog moves; then it is started again.

What was under way fails or waits, and is run again: the same contents, on the side where they are to be.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.conftest import ROOT, settings_in
from tests.support.catalog.interruptions import once
from tests.support.catalog.migration_parts import MIGRATE, PARTS, ROLLBACK, Workflow
from tests.support.homes import Home
from tests.support.postgres_server import running_postgres
from tidemark.catalog.items.kinds import AUDIT_EVENT, ID_ALLOCATOR
from tidemark.catalog.opening.side_contents import carried
from tidemark.catalog.stash import transactions as stash_transactions
from tidemark.errors import StaleState, Unreachable
from tidemark.iceberg.commit import publisher as shard_commit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

    from tests.support.postgres_server import PostgresServer
    from tidemark.catalog.items.contents import Contents
    from tidemark.catalog.opening.opening import Direction

pytestmark = [pytest.mark.postgres, pytest.mark.crash]

TRUTH = {MIGRATE: "persist", ROLLBACK: "stash"}
ROWS = {f"row {number}" for number in range(50)}


@dataclass(frozen=True)
class Kill:
    """When the server dies: at the ``nth`` time that ``module`` comes to ``point`` in one part of a move."""

    direction: Direction
    part: str
    module: ModuleType
    point: str
    nth: int
    flipped: bool  # whether the truth has moved by then

    def __str__(self) -> str:
        return f"{self.direction.value}-{self.part}-{self.point}"


# Each part reads the tombstone in a transaction, a copy twice; then comes its own.
KILLS = [
    Kill(MIGRATE, "copy", shard_commit, "publish.before-commit", 1, flipped=False),
    Kill(MIGRATE, "copy", shard_commit, "publish.after-commit", 1, flipped=False),
    Kill(MIGRATE, "flip", stash_transactions, "stash.before-commit", 2, flipped=False),
    Kill(MIGRATE, "flip", stash_transactions, "stash.after-commit", 2, flipped=True),
    Kill(ROLLBACK, "copy", stash_transactions, "stash.before-commit", 3, flipped=False),
    Kill(ROLLBACK, "copy", stash_transactions, "stash.after-commit", 3, flipped=True),
]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    folder = ROOT / "postgres-killed"  # not below tmp_path, which the next pytest shuts to the server's user
    folder.mkdir()
    with running_postgres(folder / "data") as running:
        yield running


@pytest.fixture
def home(server: PostgresServer, tmp_path: Path, unique_name: str) -> Home:
    catalog, stash = (server.create_database(f"{prefix}_{unique_name[-50:]}") for prefix in ("c", "s"))
    return Home(settings_in(tmp_path, TIDEMARK_CATALOG_URI=catalog, TIDEMARK_STASH_URI=stash))


@pytest.mark.parametrize("kill", KILLS, ids=str)
def test_killed_with_kill_9_and_started_again_it_holds_the_same(
    home: Home, server: PostgresServer, kill: Kill, monkeypatch: pytest.MonkeyPatch
) -> None:
    direction, parts = kill.direction, PARTS[kill.direction]
    home.open(ROLLBACK if direction is MIGRATE else MIGRATE, add=ROWS)
    before = contents(home)
    workflow = Workflow(home, direction)
    workflow.run(*parts[: parts.index(kill.part)])

    with monkeypatch.context() as patch:
        patch.setattr(stash_transactions, "ATTEMPTS", 2)  # nobody starts it again meanwhile
        reached = once(patch, kill.module, kill.point, server.kill, nth=kill.nth)
        with suppress(Unreachable, StaleState):  # both are tried again; what came after the commit may be no failure
            workflow.run(kill.part)
    assert len(reached) >= kill.nth, "this is not where it dies"
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(home.settings.stash_uri.reveal())
    server.start()

    assert home.truth() == (TRUTH[direction] if kill.flipped else TRUTH[ROLLBACK if direction is MIGRATE else MIGRATE])
    workflow.run_from(kill.part)  # which compares both sides with each other and with the plan
    assert (home.truth(), home.setting_names_of("stash"), home.setting_names_of("persist")) == (
        TRUTH[direction],
        ROWS,
        ROWS,
    )
    after = contents(home)
    operations = [json.loads(text)["operation"] for text in after.of_kind(AUDIT_EVENT.name).values()]
    assert operations.count(direction.value) == 1
    assert {change.item.kind for change in before.difference(after)} <= {AUDIT_EVENT.name, ID_ALLOCATOR.name}


def contents(home: Home) -> Contents:
    with home.catalog.join() as task:
        return carried(task.snapshot())
