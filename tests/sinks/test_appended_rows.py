"""The log of an append-only collection: for each row the sum of `_diff` is how often the collection shows it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.ingest.event_rows import FIVE, MINUTE_MS, RULES, at
from tests.ingest.persist.test_persist import persist
from tests.ingest.replay.test_replay import delete, replayed
from tests.sinks.foreign_readers import arrow_rows, files_of, read_manifest
from tests.support.homes import Home
from tidemark.collections.declarations.append_only import Retention
from tidemark.collections.maintenance.retain import retain
from tidemark.interval import instant, time_text

if TYPE_CHECKING:
    from tidemark.settings import Settings

pytestmark = pytest.mark.slow  # stores that are really written, again and again

COLUMNS = "id bigint, at timestamp, a int, b int"
Told = Counter[tuple[int, int | None, int | None]]


@pytest.fixture
def telling(home: Settings, tmp_path: Path) -> Home:
    opened = Home(home, tmp_path, sequencers=1)
    assert opened.buffer.logs, "made now: a run may come before the first message"
    at(opened, 10)
    return opened


def declare(home: Home, *, key: tuple[str, ...] = (), on_recreated: str = "fail", **lifecycle: object) -> None:
    rules, source = {**RULES, **lifecycle}, {"on_recreated": on_recreated}
    home.declare_reader(schema=COLUMNS, event_time="at", partition="hour", key=key, lifecycle=rules, source=source)
    home.declare_sink(mode="changes", to={"path": str(home.folder / "out")})


def send(home: Home, *rows: dict[str, int], ingests: bool = True) -> None:
    for row in rows:
        home.send(0, json.dumps({"at": time_text(FIVE + MINUTE_MS), **row}).encode())
    if ingests:
        home.clock.step(1_000)
        home.ingest()


def shown(home: Home) -> Told:
    return Counter((row["id"], row["a"], row["b"]) for row in home.rows())


def carried(home: Home) -> list[tuple[int, int | None, int | None, int]]:
    """Run the sink; return all updates of the log so far, in their order."""
    home.clock.step(1_000)
    report = home.run_sink()
    assert report.error is None, report.error
    folder = home.folder / "out"
    files = files_of(folder, read_manifest(folder))
    return [(row["id"], row["a"], row["b"], row["_diff"]) for row in arrow_rows(files)] if files else []


def told(home: Home) -> Told:
    """Run the sink; return the sum of `_diff` of each row."""
    sums: Told = Counter()
    for *row, diff in carried(home):
        sums[tuple(row)] += diff  # type: ignore[index] - three values
    return Counter({row: total for row, total in sums.items() if total})


@pytest.mark.parametrize("start", [(), ("0:0",)])
@pytest.mark.parametrize("merge", [None, "rows", "fields"])
@pytest.mark.parametrize("visible", ["at-once", "when-persisted"])
def test_a_replay_hides_and_doubles_nothing(
    telling: Home, visible: str, merge: str | None, start: tuple[str, ...]
) -> None:
    declare(telling, visible=visible, **({"key": ("id",), "merge": merge} if merge else {}))
    send(telling, {"id": 1, "a": 7}, {"id": 2, "a": 8}, {"id": 3, "a": 9})
    if visible == "at-once":
        assert told(telling) == shown(telling) == {(1, 7, None): 1, (2, 8, None): 1, (3, 9, None): 1}
    send(telling, {"id": 1, "b": 5})
    persist(telling, now=True)
    assert told(telling) == shown(telling)
    assert ((1, 7, None) in shown(telling)) == (merge is None), "merged"
    send(telling, {"id": 4, "a": 6}, {"id": 2, "b": 4})
    before, updates = shown(telling), carried(telling)
    replayed(telling, from_=start)
    assert before <= shown(telling) or merge == "fields", "no row goes until another takes its place"
    assert {row[0] for row in before} == {row[0] for row in shown(telling)}
    assert told(telling) == shown(telling)
    if not (merge and start):
        assert carried(telling) == updates, "each row once"
    persist(telling, now=True)
    assert told(telling) == shown(telling)
    assert len(shown(telling)) == (4 if merge else 6)


def test_rows_that_come_back_as_they_were_are_not_told(telling: Home) -> None:
    declare(telling, key=("id",), visible="when-persisted")
    send(telling, {"id": 1}, {"id": 2}, {"id": 3})
    persist(telling, now=True)
    updates = carried(telling)
    assert len(updates) == 3
    replayed(telling, from_=("0:0",))
    assert (len(shown(telling)), carried(telling)) == (3, updates)
    persist(telling, now=True)
    assert carried(telling) == updates


@pytest.mark.parametrize("key", [(), ("id",)])
@pytest.mark.parametrize("visible", ["at-once", "when-persisted"])
def test_a_row_that_a_replay_decodes_otherwise_takes_the_place_of_the_former(
    telling: Home, visible: str, key: tuple[str, ...]
) -> None:
    declare(telling, visible=visible, key=key)
    send(telling, {"id": 1, "a": 7})
    persist(telling, now=True)
    assert told(telling) == {(1, 7, None): 1}
    for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
        with telling.shard().load().table.update_schema() as update:
            update.rename_column(old, new)
    assert told(telling) == shown(telling) == {(1, None, 7): 1}
    replayed(telling, from_=("0:0",))
    persist(telling, now=True)
    assert told(telling) == shown(telling) == {(1, 7, None): 1}


@pytest.mark.parametrize("tells_between", [True, False])
def test_rows_that_another_engine_changes_are_told_with_our_next_commit(telling: Home, *, tells_between: bool) -> None:
    declare(telling)
    send(telling, {"id": 1, "a": 7}, {"id": 2, "a": 8})
    persist(telling, now=True)
    assert told(telling) == shown(telling)
    delete(telling, "id = 1")
    table = telling.shard().load().table
    row = {"id": 5, "at": instant(FIVE), "_producer": "them", "_batch": 0}
    table.append(pa.Table.from_pylist([row], schema=table.schema().as_arrow()))
    send(telling, {"id": 3}, ingests=tells_between)
    if tells_between:
        assert told(telling) == shown(telling) == {(2, 8, None): 1, (3, None, None): 1, (5, None, None): 1}
    replayed(telling, from_=("0:0",))
    assert told(telling) == shown(telling)
    assert (1, 7, None) in shown(telling)


def test_a_row_that_retention_removes_stays_in_the_log_and_comes_again(telling: Home) -> None:
    declare(telling)
    send(telling, {"id": 1}, {"id": 2})
    persist(telling, now=True)
    assert told(telling) == shown(telling)
    latest = Retention.model_validate({"last_n": 1, "key": ["b"], "order_by": ["id"]})
    retain(telling.shard(), latest, deployment=telling.deployment, now_ms=telling.clock.now_ms())
    assert (told(telling), shown(telling)) == ({(1, None, None): 1, (2, None, None): 1}, {(2, None, None): 1})
    replayed(telling, from_=("0:0",))
    assert (told(telling), shown(telling)) == (
        {(1, None, None): 2, (2, None, None): 1},
        {(1, None, None): 1, (2, None, None): 1},
    )


def test_after_the_loss_of_a_file_that_the_log_may_lack_it_is_loaded_anew(telling: Home) -> None:
    declare(telling)
    send(telling, {"id": 1})
    carried(telling)
    (file,) = telling.shard().load().table.inspect.files().column("file_path").to_pylist()
    Path(file.removeprefix("file://")).unlink()
    replayed(telling, from_=("0:0",))
    failed = telling.run_sink()
    assert failed.error is not None
    assert (failed.error.kind, "is gone, and its rows were replaced" in failed.error.message) == ("HistoryGone", True)


def test_where_nobody_knows_what_was_persisted_all_that_comes_back_is_visible(telling: Home) -> None:
    declare(telling, visible="when-persisted")
    send(telling, {"id": 1})
    telling.make_buffer_anew()
    declare(telling, visible="when-persisted", on_recreated="earliest")
    send(telling, {"id": 2})
    persist(telling, now=True)
    assert told(telling) == shown(telling) == {(1, None, None): 1, (2, None, None): 1}
    replayed(telling, from_=("0:0",))
    assert told(telling) == shown(telling) == {(1, None, None): 1, (2, None, None): 1}
    persist(telling, now=True)
    assert told(telling) == shown(telling) == {(1, None, None): 1, (2, None, None): 1}
