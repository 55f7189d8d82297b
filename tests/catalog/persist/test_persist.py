"""The persist catalog alone: fences, modes and conflicts, on a real log shard."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.conftest import settings_in
from tests.support.clock import SteppedClock
from tests.support.stored import read_log
from tidemark.catalog.back_end import OpenMode
from tidemark.catalog.items import data_versions
from tidemark.catalog.items.data_versions import DataMigration
from tidemark.catalog.items.item import Change, Item
from tidemark.catalog.items.kinds import (
    AUDIT_EVENT,
    DATA_VERSION_KEY,
    GENERATION_KEY,
    ID_ALLOCATOR,
    SETTING,
    TOMBSTONE,
    NamedKey,
    SettingValue,
)
from tidemark.catalog.persist import handle as persist_handle
from tidemark.catalog.persist.persist import PersistCatalog
from tidemark.catalog.persist.records import FENCE_TOKEN, SHARD
from tidemark.errors import (
    CatalogOutOfSync,
    CorruptState,
    FencedByEpoch,
    FencedByGeneration,
    IncompatibleDataVersion,
    NotWritable,
    Uninitialized,
)
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.log import LogUpdate, append_to_log
from tidemark.iceberg.shards import SYSTEM, Shards

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.catalog.back_end import Handle
    from tidemark.catalog.items.transaction import Transaction
    from tidemark.settings import Settings

pytestmark = pytest.mark.slow  # stores that are really written, again and again


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def any_home(request: pytest.FixtureRequest, tmp_path: Path, unique_name: str) -> Settings:
    """Settings of an empty home, whose Iceberg catalog is a file, or an empty database of a server."""
    if request.param == "sqlite":
        return settings_in(tmp_path)
    server = request.getfixturevalue("postgres")
    return settings_in(tmp_path, TIDEMARK_CATALOG_URI=server.create_database(unique_name[-50:]))


def open_(home: Settings, mode: OpenMode = OpenMode.WRITABLE, *, generation: int = 1, **more: int) -> Handle:
    return PersistCatalog(home).open(mode, generation=generation, clock=SteppedClock(), **more)


def put(handle: Handle, name: str, value: str = "v") -> None:
    handle.transact(lambda transaction: transaction.put(SETTING, NamedKey(name=name), SettingValue(value=value)))


def settings_of(handle: Handle) -> dict[str, str]:
    def read(transaction: Transaction) -> dict[str, str]:
        return {key.name: value.value for key, value in transaction.items(SETTING)}

    return handle.transact(read)


def stored(home: Settings) -> list[tuple[str, str, str]]:
    """What the log holds, read past the catalog's own code."""
    return sorted(read_log(Shards.connect(home).open(SHARD, SYSTEM).load()).elements())


# -- opening -------------------------------------------------------------------------------------------------------


def test_head_tells_everything_before_and_after_the_first_open(any_home: Settings) -> None:
    catalog = PersistCatalog(any_home)
    head = catalog.head()
    assert (head.epoch, head.is_initialized, list(catalog.dump())) == (None, False, [])
    with pytest.raises(Uninitialized, match="never opened writable"):
        head.deployment_generation("the persist catalog")
    open_(any_home, generation=3)
    head = catalog.head()
    assert (head.epoch, head.is_initialized, head.tombstone) == (2, True, None)
    assert head.deployment_generation("the persist catalog") == 3
    assert [each for each in stored(any_home) if each[0] == FENCE_TOKEN] == [
        (FENCE_TOKEN, "", '{"deploy_generation":3,"epoch":2}')
    ]


def test_each_writable_open_raises_the_epoch_and_leaves_the_rest_alone(any_home: Settings) -> None:
    first = open_(any_home)
    put(first, "a")
    first.transact(lambda transaction: transaction.audit("create", kind=SETTING, subject="a", who="me"))
    before = first.snapshot()
    assert [first.epoch, open_(any_home).epoch, open_(any_home).epoch] == [2, 3, 4]
    assert open_(any_home, epoch_lower_bound=9).epoch == 9
    last = open_(any_home, epoch_lower_bound=5)
    assert (last.epoch, last.snapshot()) == (10, before)
    assert len(before.of_kind(AUDIT_EVENT.name)) == 1


def test_what_is_not_initialised_can_only_be_opened_writable(any_home: Settings) -> None:
    catalog = PersistCatalog(any_home)
    for mode in (OpenMode.SAVEPOINT, OpenMode.READ_ONLY):
        with pytest.raises(NotWritable, match="can be recovered by opening writable"):
            open_(any_home, mode)
    with pytest.raises(NotWritable, match="can be recovered by opening writable"):
        catalog.join(generation=1, clock=SteppedClock())
    assert (catalog.head().epoch, list(catalog.dump())) == (None, [])


# -- modes ---------------------------------------------------------------------------------------------------------


def test_a_savepoint_sees_itself_and_is_seen_by_nobody(any_home: Settings) -> None:
    leader = open_(any_home)
    put(leader, "before")
    dump = list(PersistCatalog(any_home).dump())
    with open_(any_home, OpenMode.SAVEPOINT) as savepoint:
        assert savepoint.epoch == 2
        put(savepoint, "dry")
        assert settings_of(savepoint) == {"before": "v", "dry": "v"}
        savepoint.replace_all(leader.snapshot())
        assert settings_of(savepoint) == {"before": "v"}
        assert list(PersistCatalog(any_home).dump()) == dump, "not a byte was written"
        put(leader, "later")
        assert settings_of(savepoint) == {"before": "v"}, "it is frozen"
        open_(any_home)
        assert settings_of(savepoint) == {"before": "v"}, "and nobody fences it"
    with open_(any_home, OpenMode.SAVEPOINT) as savepoint:
        assert settings_of(savepoint) == {"before": "v", "later": "v"}


def test_read_only_follows_the_leader_and_is_fenced_by_the_next(any_home: Settings) -> None:
    leader = open_(any_home)
    reader = open_(any_home, OpenMode.READ_ONLY)
    put(leader, "later")
    assert (reader.epoch, settings_of(reader)) == (2, {"later": "v"})
    with pytest.raises(NotWritable, match="can be recovered by opening writable"):
        reader.transact(lambda transaction: transaction.allocate("user"))
    with pytest.raises(NotWritable):
        put(reader, "mine")
    assert settings_of(leader) == {"later": "v"}
    open_(any_home)
    with pytest.raises(FencedByEpoch):
        reader.snapshot()


def test_tasks_that_join_work_beside_each_other_under_the_leaders_epoch(home: Settings) -> None:
    leader = open_(home)
    tasks = [PersistCatalog(home).join(generation=1, clock=SteppedClock()) for _ in range(2)]
    assert {task.epoch for task in tasks} == {leader.epoch}
    taken = [task.transact(lambda transaction: transaction.allocate("batch")) for task in [*tasks, leader, tasks[0]]]
    assert taken == [1, 2, 3, 4], "each saw what the others took"
    open_(home)
    for task in tasks:
        with pytest.raises(FencedByEpoch):
            task.confirm_leadership()


def test_join_is_refused_to_a_newer_and_to_an_older_deployment(home: Settings) -> None:
    open_(home, generation=2)
    with pytest.raises(FencedByGeneration):
        PersistCatalog(home).join(generation=1, clock=SteppedClock())
    with pytest.raises(NotWritable, match="not yet by 3"):
        PersistCatalog(home).join(generation=3, clock=SteppedClock())


# -- fences --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("generation", "error"), [(1, FencedByEpoch), (2, FencedByGeneration)])
def test_whoever_was_there_before_is_fenced_for_good(
    any_home: Settings, generation: int, error: type[Exception]
) -> None:
    old = open_(any_home)
    new = open_(any_home, generation=generation)
    for operation in (old.snapshot, old.confirm_leadership, lambda: put(old, "a"), lambda: settings_of(old)):
        with pytest.raises(error, match="persist catalog"):
            operation()
    assert settings_of(new) == {}


@pytest.mark.parametrize(("generation", "error"), [(1, FencedByEpoch), (2, FencedByGeneration)])
def test_a_fence_during_a_transaction_writes_nothing_of_it(
    any_home: Settings, generation: int, error: type[Exception]
) -> None:
    old = open_(any_home)
    opened = []

    def change(transaction: Transaction) -> None:
        opened.append(open_(any_home, generation=generation))
        transaction.put(SETTING, NamedKey(name="late"), SettingValue(value="v"))

    with pytest.raises(error):
        old.transact(change)
    assert len(opened) == 1, "a fenced transaction is not tried again"
    assert settings_of(opened[0]) == {}


def test_several_fences_at_once_are_told_by_the_most_telling_one(home: Settings) -> None:
    old = open_(home)
    open_(home)
    open_(home, generation=2)
    with pytest.raises(FencedByGeneration, match="generation 2"):
        old.snapshot()


def test_an_older_deployment_cannot_open_what_a_newer_one_has_opened(any_home: Settings) -> None:
    open_(any_home, generation=2)
    dump = list(PersistCatalog(any_home).dump())
    for mode in OpenMode:
        with pytest.raises(FencedByGeneration):
            open_(any_home, mode, generation=1)
    assert list(PersistCatalog(any_home).dump()) == dump


def test_a_catalog_that_was_made_anew_fences_the_old_handles(home: Settings) -> None:
    old = open_(home)
    Shards.connect(home).drop(SHARD, SYSTEM)
    new = open_(home)
    assert new.epoch == old.epoch
    with pytest.raises(FencedByEpoch, match="made anew"):
        put(old, "a")


def test_a_switch_of_the_mode_is_no_fence_of_the_catalog(home: Settings) -> None:
    """It raises the shard's own token, which the handle joins again."""
    leader = open_(home)
    Writer.raise_token(Shards.connect(home).open(SHARD, SYSTEM), 1)
    put(leader, "a")
    Writer.raise_token(Shards.connect(home).open(SHARD, SYSTEM), 2)
    with pytest.raises(FencedByGeneration):
        put(leader, "b")


def test_an_open_wins_against_a_leader_that_commits_in_a_tight_loop(any_home: Settings) -> None:
    leader, stopped, errors = open_(any_home), threading.Event(), []

    def commit() -> None:
        for number in range(10_000):
            if stopped.is_set():
                return
            try:
                put(leader, "busy", str(number))
            except FencedByEpoch as error:
                errors.append(error)
                return

    thread = threading.Thread(target=commit)
    thread.start()
    try:
        second = open_(any_home)
        thread.join(timeout=20)
    finally:
        stopped.set()
        thread.join()
    assert len(errors) == 1, "the leader found out"
    put(second, "mine")
    assert open_(any_home).epoch == 4


def test_of_several_who_open_at_once_each_gets_an_epoch_of_its_own_and_one_is_left(any_home: Settings) -> None:
    open_(any_home)
    with ThreadPoolExecutor(3) as pool:
        handles = [future.result() for future in [pool.submit(open_quietly, any_home) for _ in range(3)]]
    epochs = [handle if isinstance(handle, int) else handle.epoch for handle in handles]
    assert sorted(epochs) == [3, 4, 5]
    assert PersistCatalog(any_home).head().epoch == 5


def open_quietly(home: Settings) -> Handle | int:
    """The handle; or the epoch at which another opener fenced this one before it was through."""
    try:
        return open_(home)
    except FencedByEpoch as error:
        return int(str(error).rsplit(" ", 1)[1])


# -- conflicts -----------------------------------------------------------------------------------------------------


def test_what_others_wrote_in_between_is_seen_before_the_change_is_made(any_home: Settings) -> None:
    leader = open_(any_home)
    task = PersistCatalog(any_home).join(generation=1, clock=SteppedClock())
    runs = []

    def change(transaction: Transaction) -> None:
        runs.append(transaction.get(SETTING, NamedKey(name="a")))
        if len(runs) == 1:
            put(task, "a", "theirs")
        transaction.put(SETTING, NamedKey(name="b"), SettingValue(value="v"))

    leader.transact(change)
    assert [run and run.value for run in runs] == [None, "theirs"]
    assert settings_of(leader) == {"a": "theirs", "b": "v"}


def test_progress_alone_does_not_make_a_transaction_again(any_home: Settings) -> None:
    leader, runs = open_(any_home), []

    def change(transaction: Transaction) -> None:
        runs.append(1)
        writer = Writer.join(Shards.connect(any_home).open(SHARD, SYSTEM), 1)
        upper = writer.shard.load().state.upper
        writer.advance(lower=upper, new_upper=upper + 5)
        transaction.put(SETTING, NamedKey(name="a"), SettingValue(value="v"))

    leader.transact(change)
    assert (len(runs), settings_of(leader)) == (1, {"a": "v"})


def test_a_change_and_its_undoing_are_a_change(home: Settings) -> None:
    leader, runs = open_(home), []
    task = PersistCatalog(home).join(generation=1, clock=SteppedClock())

    def change(transaction: Transaction) -> None:
        runs.append(1)
        if len(runs) == 1:
            put(task, "a")
            task.transact(lambda undo: undo.put(SETTING, NamedKey(name="a"), None))
        transaction.put(SETTING, NamedKey(name="b"), SettingValue(value="v"))

    leader.transact(change)
    assert (len(runs), settings_of(leader)) == (2, {"b": "v"})


def test_a_transaction_that_always_meets_another_gives_up(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persist_handle, "_ATTEMPTS", 3)
    leader = open_(home)
    task = PersistCatalog(home).join(generation=1, clock=SteppedClock())

    def change(transaction: Transaction) -> None:
        task.transact(lambda other: other.allocate("theirs"))
        transaction.allocate("mine")

    with pytest.raises(CatalogOutOfSync, match="kept changing the persist catalog"):
        leader.transact(change)
    assert set(leader.snapshot().of_kind(ID_ALLOCATOR.name)) == {'{"name":"theirs"}'}


def test_an_error_inside_a_transaction_leaves_nothing(home: Settings) -> None:
    leader = open_(home)
    dump = list(PersistCatalog(home).dump())

    def change(transaction: Transaction) -> None:
        transaction.put(SETTING, NamedKey(name="a"), SettingValue(value="v"))
        raise LookupError("changed my mind")

    with pytest.raises(LookupError):
        leader.transact(change)
    assert (list(PersistCatalog(home).dump()), settings_of(leader)) == (dump, {})


# -- replacing -----------------------------------------------------------------------------------------------------


def test_a_replacement_writes_only_what_differs_and_nothing_survives_it(home: Settings) -> None:
    leader = open_(home)
    for name in ("kept", "garbage", "changed"):
        put(leader, name)
    wanted = leader.snapshot()
    wanted.apply(
        [
            Change(Item("setting", '{"name":"garbage"}', '{"value":"v","version":1}'), -1),
            Change(Item("setting", '{"name":"changed"}', '{"value":"v","version":1}'), -1),
            Change(Item("setting", '{"name":"changed"}', '{"value":"new","version":1}'), 1),
            Change(Item("config", f'"{TOMBSTONE}"', "1"), 1),
        ]
    )
    replaced = leader.replace_all(wanted)
    assert (replaced.inserted, replaced.retracted) == (1, 2)
    assert settings_of(leader) == {"kept": "v", "changed": "new"}
    assert leader.snapshot().config(TOMBSTONE) is None, "the tombstone is the stash's"
    again = leader.replace_all(wanted)
    assert (again.inserted, again.retracted) == (0, 0)
    with pytest.raises(ValueError, match="stash alone"):
        leader.replace_all(wanted, tombstone=False)


# -- formats -------------------------------------------------------------------------------------------------------


def set_data_version(home: Settings, version: int) -> None:
    """As another program would: the catalog's own code never writes another one than its own."""
    handle = open_(home)
    handle.transact(lambda transaction: transaction.set_config(DATA_VERSION_KEY, version))


def test_a_newer_data_version_is_refused_and_nothing_is_changed(home: Settings) -> None:
    set_data_version(home, data_versions.DATA_VERSION + 1)
    dump = list(PersistCatalog(home).dump())
    for mode in OpenMode:
        with pytest.raises(IncompatibleDataVersion, match="has data version 2") as caught:
            open_(home, mode)
        assert caught.value.exit_code == 76
    with pytest.raises(IncompatibleDataVersion):
        PersistCatalog(home).join(generation=1, clock=SteppedClock())
    assert list(PersistCatalog(home).dump()) == dump
    assert PersistCatalog(home).head().config[GENERATION_KEY] == 1, "the head is read in any version"


def test_a_data_version_that_is_too_old_is_refused(home: Settings) -> None:
    set_data_version(home, 0)
    with pytest.raises(IncompatibleDataVersion, match="migrates from 1 on"):
        open_(home)


def test_an_older_data_version_is_migrated_durably_or_in_memory(home: Settings) -> None:
    put(open_(home), "a", "old")
    old, new = ('{"value":"old","version":1}', '{"value":"new","version":1}')
    changes = [Change(Item("setting", '{"name":"a"}', old), -1), Change(Item("setting", '{"name":"a"}', new), 1)]
    newer, clock = PersistCatalog(home, migrations=[DataMigration(2, lambda _: changes)]), SteppedClock()
    dump = list(newer.dump())
    with pytest.raises(NotWritable, match="can be recovered by opening writable"):
        newer.open(OpenMode.READ_ONLY, generation=1, clock=clock)
    with pytest.raises(NotWritable, match="can be recovered by opening writable"):
        newer.join(generation=1, clock=clock)
    assert settings_of(newer.open(OpenMode.SAVEPOINT, generation=1, clock=clock)) == {"a": "new"}
    assert list(newer.dump()) == dump
    assert settings_of(newer.open(OpenMode.WRITABLE, generation=1, clock=clock)) == {"a": "new"}
    assert newer.head().config[DATA_VERSION_KEY] == 2
    with pytest.raises(IncompatibleDataVersion):
        open_(home)


# -- damage --------------------------------------------------------------------------------------------------------


def test_tokens_that_no_open_wrote_stop_tasks_and_the_next_open_keeps_the_one_that_the_head_shows(
    home: Settings,
) -> None:
    leader = open_(home)
    shard = Shards.connect(home).open(SHARD, SYSTEM)
    upper = shard.load().state.upper
    token = LogUpdate(FENCE_TOKEN, "", '{"deploy_generation":1,"epoch":1}', 1)
    append_to_log(Writer.join(shard, 1), [token], lower=upper, time=upper)
    with pytest.raises(CorruptState, match="somebody else wrote to its table"):
        put(leader, "a")
    with pytest.raises(CorruptState, match="somebody else wrote to its table"):
        PersistCatalog(home).join(generation=1, clock=SteppedClock())
    assert settings_of(open_(home, OpenMode.READ_ONLY)) == {}
    assert open_(home).epoch == 3
    assert [value for kind, _, value in stored(home) if kind == FENCE_TOKEN] == ['{"deploy_generation":1,"epoch":3}']


def test_an_item_that_comes_twice_is_damage(home: Settings) -> None:
    leader = open_(home)
    put(leader, "a")
    shard = Shards.connect(home).open(SHARD, SYSTEM)
    upper = shard.load().state.upper
    twin = LogUpdate("setting", '{"name":"a"}', '{"value":"v","version":1}', 1)
    append_to_log(Writer.join(shard, 1), [twin], lower=upper, time=upper)
    with pytest.raises(CorruptState, match="unexpected multiplicity 2"):
        leader.snapshot()


# -- compaction ----------------------------------------------------------------------------------------------------


def test_many_commits_are_compacted_under_whoever_reads_along(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persist_handle, "COMPACT_ABOVE", 4)
    leader = open_(home)
    reader, late = (open_(home, OpenMode.READ_ONLY) for _ in range(2))
    files = []
    for number in range(7):
        put(leader, "a", str(number))
        assert settings_of(reader) == {"a": str(number)}
        files.append(len(Shards.connect(home).open(SHARD, SYSTEM).load().table.inspect.files()))
    assert max(files) <= 5
    assert settings_of(late) == {"a": "6"}, "it was behind the compaction, and read everything again"
    assert settings_of(open_(home)) == {"a": "6"}


def test_a_change_that_a_compaction_swallowed_is_still_a_change(home: Settings) -> None:
    """The times of what is known and of what is new are then the same."""
    leader, runs = open_(home), []
    task = PersistCatalog(home).join(generation=1, clock=SteppedClock())

    def change(transaction: Transaction) -> None:
        runs.append(transaction.get(SETTING, NamedKey(name="a")))
        if len(runs) == 1:
            put(task, "a")
            shard = Shards.connect(home).open(SHARD, SYSTEM)
            assert persist_handle.compact_catalog(shard, generation=1, now_ms=0)
        transaction.put(SETTING, NamedKey(name="b"), SettingValue(value="v"))

    leader.transact(change)
    assert [run is None for run in runs] == [True, False]
    assert settings_of(leader) == {"a": "v", "b": "v"}
