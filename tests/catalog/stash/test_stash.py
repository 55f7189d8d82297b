"""Opening a stash: modes, epochs, fences, versions; each on SQLite and on PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.catalog.items_of import initialised, name, setting, setting_item
from tests.support.catalog.stash_places import StashPlace
from tests.support.clock import SteppedClock
from tidemark.catalog.back_end import Head, OpenMode, Replaced
from tidemark.catalog.items.data_versions import DataMigration
from tidemark.catalog.items.item import Change
from tidemark.catalog.items.kinds import AUDIT_EVENT, SETTING, TOMBSTONE, config_item
from tidemark.catalog.stash.stash import Stash
from tidemark.errors import FencedByEpoch, FencedByGeneration, IncompatibleDataVersion, NotWritable, Uninitialized
from tidemark.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemark.catalog.items.transaction import Transaction
    from tidemark.catalog.stash.collections import StashCollections
    from tidemark.catalog.stash.handle import StashHandle
    from tidemark.settings import Settings


def put(key: str, value: str) -> Callable[[Transaction], None]:
    def change(transaction: Transaction) -> None:
        transaction.put(SETTING, name(key), setting(value))

    return change


def shown(handle: StashHandle) -> dict[str, str]:
    return handle.transact(lambda transaction: {key.name: value.value for key, value in transaction.items(SETTING)})


def dumped(place: StashPlace) -> list[str]:
    return list(place.stash.dump())


# -- before it is open ---------------------------------------------------------------------------------------------


def test_what_does_not_exist_can_be_asked_and_is_not_made(place: StashPlace) -> None:
    head = place.stash.head()
    assert (head, head.is_initialized, head.tombstone) == (Head(None, {}), False, None)
    with pytest.raises(Uninitialized, match="stash was never opened writable"):
        head.deployment_generation("stash")
    assert dumped(place) == []
    if place.server is None:
        assert list(place.settings.home.iterdir()) == []


def test_the_head_tells_epoch_generation_and_tombstone(place: StashPlace) -> None:
    with place.open(generation=4) as handle:
        assert place.stash.head() == Head(2, {"data_version": 1, "deployment_generation": 4})
        for value, seen in ((0, False), (1, True), (None, None)):
            handle.transact(lambda transaction, value=value: transaction.set_config(TOMBSTONE, value))
            assert place.stash.head().tombstone is seen
    head = place.stash.head()
    assert (head.is_initialized, head.deployment_generation("stash")) == (True, 4)


@pytest.mark.parametrize("mode", [OpenMode.READ_ONLY, OpenMode.SAVEPOINT, None])
def test_only_a_writable_open_creates(place: StashPlace, mode: OpenMode | None) -> None:
    for _ in range(2):  # nothing at all, then a stash whose first open died right after its fence
        before = dumped(place)
        with pytest.raises(NotWritable, match="can be recovered by opening writable") as refused:
            place.join() if mode is None else place.open(mode)
        assert refused.value.exit_code is ExitCode.NOT_POSSIBLE
        assert dumped(place) == before
        if not before:
            place.open().close()
            place.sql("DELETE FROM data")
    assert (place.stash.head().epoch, place.stash.head().is_initialized) == (2, False)


# -- epochs and fences ---------------------------------------------------------------------------------------------


def test_each_writable_open_raises_the_epoch_by_one(place: StashPlace) -> None:
    epochs = []
    for _ in range(10):
        with place.open() as handle:
            epochs.append(handle.epoch)
    assert epochs == [*range(2, 12)]
    assert place.stash.head().epoch == 11
    nonces = place.sql("SELECT epoch, nonce FROM fence")
    assert [(epoch, len(nonce)) for epoch, nonce in nonces] == [(11, 16)]


@pytest.mark.parametrize(("lower_bound", "epoch"), [(0, 3), (3, 3), (4, 4), (22, 22)])
def test_an_epoch_is_not_below_its_lower_bound(place: StashPlace, lower_bound: int, epoch: int) -> None:
    place.open().close()
    with place.open(epoch_lower_bound=lower_bound) as handle:
        assert handle.epoch == epoch


def test_a_second_open_fences_the_first_for_ever(place: StashPlace) -> None:
    with place.open() as first, place.open() as second:
        for operation in (first.snapshot, first.confirm_leadership, lambda: first.transact(put("a", "1"))):
            with pytest.raises(FencedByEpoch, match="is at epoch 3 of generation 1, this writer joined at 2") as fenced:
                operation()
            assert fenced.value.exit_code is ExitCode.FENCED
        second.transact(put("a", "2"))
        second.confirm_leadership()
        assert shown(second) == {"a": "2"}


def test_a_fenced_handle_stays_so_even_if_the_fence_is_put_back(place: StashPlace) -> None:
    with place.open() as first:
        place.sql("CREATE TABLE saved AS SELECT * FROM fence")
        place.open().close()
        with pytest.raises(FencedByEpoch):
            first.confirm_leadership()
        place.sql("DELETE FROM fence")
        place.sql("INSERT INTO fence SELECT * FROM saved")
        with pytest.raises(FencedByEpoch):
            first.confirm_leadership()


def test_a_newer_deployment_fences_by_generation(place: StashPlace) -> None:
    with place.open(generation=1) as first:
        place.open(generation=2).close()  # ends consolidation, so that a dump shows what is done below
        with pytest.raises(FencedByGeneration, match="belongs to deploy generation 2, this process to 1"):
            first.confirm_leadership()
        before = dumped(place)
        for mode in OpenMode:
            with pytest.raises(FencedByGeneration):
                place.open(mode, generation=1)
        with pytest.raises(FencedByGeneration):
            place.join(generation=1)
        assert dumped(place) == before, "an older deployment changes nothing"


def test_the_nonce_tells_a_stash_that_was_made_anew(place: StashPlace) -> None:
    with place.open() as first:
        first.transact(put("a", "1"))
        place.drop()
        with pytest.raises(Uninitialized, match="are gone"):
            first.snapshot()
        with place.open() as second:
            assert second.epoch == first.epoch
            with pytest.raises(FencedByEpoch, match="dropped and made anew"):
                first.transact(put("a", "2"))
            assert shown(second) == {}


def test_a_file_that_was_replaced_is_not_written_to(home: Settings) -> None:
    place = StashPlace(home)
    with place.open() as first:
        place.settings.home.joinpath("stash.db").unlink()
        with pytest.raises(Uninitialized, match="are gone"):
            first.transact(put("a", "1"))
        with place.open() as second:
            assert second.epoch == first.epoch
            with pytest.raises(FencedByEpoch, match="made anew"):
                first.transact(put("a", "1"))


def test_a_task_joins_the_leader_and_is_fenced_with_it(place: StashPlace) -> None:
    with place.open() as leader, place.join() as task:
        assert task.epoch == leader.epoch
        task.transact(put("a", "1"))
        leader.transact(put("b", "1"))
        assert shown(task) == shown(leader) == {"a": "1", "b": "1"}
        with pytest.raises(NotWritable, match="led by deployment 1, and 2 never opened it"):
            place.join(generation=2)
        with place.open():
            for handle in (task, leader):
                with pytest.raises(FencedByEpoch):
                    handle.transact(put("a", "2"))


# -- modes ---------------------------------------------------------------------------------------------------------


def create_gadgets(collections: StashCollections) -> None:
    collections.create("gadgets")


def test_read_only_reads_along_and_refuses_changes(place: StashPlace) -> None:
    with place.open() as leader, place.open(OpenMode.READ_ONLY, generation=2) as reader:
        assert (reader.epoch, place.stash.head().epoch) == (2, 2)
        for change in (put("a", "1"), lambda transaction: transaction.allocate("collection")):
            with pytest.raises(NotWritable, match="can be recovered by opening writable"):
                reader.transact(change)
        with pytest.raises(NotWritable, match="creating a collection"):
            reader.run(create_gadgets)
        with pytest.raises(NotWritable):
            reader.replace_all(initialised(setting_item("x", "1")))
        leader.transact(put("a", "2"))
        assert shown(reader) == {"a": "2"}, "an empty transaction is allowed, and sees what came later"
        leader.confirm_leadership()
        with place.open(), pytest.raises(FencedByEpoch):
            reader.snapshot()


def test_a_savepoint_sees_itself_and_leaves_no_trace(place: StashPlace) -> None:
    with place.open() as leader:
        leader.transact(put("a", "1"))
    before = dumped(place)
    with place.open(OpenMode.SAVEPOINT) as savepoint:
        assert savepoint.epoch == 2
        savepoint.transact(put("a", "dry"))
        savepoint.run(create_gadgets)
        savepoint.transact(lambda transaction: transaction.audit("alter", kind=SETTING, subject="a", who="ann"))
        assert shown(savepoint) == {"a": "dry"}
        assert "gadgets" in savepoint.run(lambda collections: collections.stored())
        assert dumped(place) == before
    assert dumped(place) == before
    with place.open() as leader:
        assert shown(leader) == {"a": "1"}


def test_a_savepoint_is_frozen_and_stops_nobody(place: StashPlace) -> None:
    with place.open() as leader, place.open(OpenMode.SAVEPOINT) as savepoint:
        savepoint.transact(put("a", "dry"))
        leader.transact(put("a", "1"))
        leader.transact(put("b", "1"))
        leader.confirm_leadership()
        assert shown(savepoint) == {"a": "dry"}
        with place.open(generation=2) as next_leader:
            assert shown(next_leader) == {"a": "1", "b": "1"}
            savepoint.transact(put("c", "dry"))
            assert shown(savepoint) == {"a": "dry", "c": "dry"}, "it does not listen, so it is not fenced"


# -- contents ------------------------------------------------------------------------------------------------------


def test_everything_is_there_after_opening_again(place: StashPlace) -> None:
    with place.open() as handle:
        handle.transact(put("a", "1"))
        handle.transact(lambda transaction: transaction.audit("create", kind=SETTING, subject="a", who="ann"))
        contents = handle.snapshot()
    with place.open() as handle:
        handle.transact(put("b", "ü\x00"))  # a change before anything is read
        assert handle.snapshot().difference(contents) == [Change(setting_item("b", "ü\x00"), -1)]
        assert shown(handle) == {"a": "1", "b": "ü\x00"}


def test_a_change_that_fails_leaves_nothing(place: StashPlace) -> None:
    with place.open() as handle:
        before = handle.snapshot()

        def change(transaction: Transaction) -> None:
            put("a", "1")(transaction)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            handle.transact(change)
        assert handle.snapshot() == before


def test_times_only_grow_whatever_the_clock_says(place: StashPlace) -> None:
    clock = SteppedClock(5_000)
    with place.stash.open(OpenMode.WRITABLE, generation=1, clock=clock) as handle:
        times = []
        for step_ms in (10, -3_000, 0, 1):
            clock.step(step_ms)
            handle.transact(lambda transaction: transaction.audit("look", kind=SETTING, subject="a", who="ann"))
            stored = handle.run(lambda collections: collections.stored(), write=False)
            assert all(each.since == each.upper - 1 for each in stored.values())
            times.append(stored[AUDIT_EVENT.name].since)
        assert times == [5_010, 5_011, 5_012, 5_013]
        events = handle.transact(lambda transaction: [value for _, value in transaction.items(AUDIT_EVENT)])
        assert [event.occurred_at_ms for event in events] == [5_010, 2_010, 2_010, 2_011], "as the clock told"


def test_a_replacement_leaves_no_garbage_and_flips_the_tombstone_with_it(place: StashPlace) -> None:
    wanted = initialised(setting_item("same", "1"), setting_item("new", "1"), generation=7)
    with place.open() as handle:
        handle.transact(put("same", "1"))
        handle.transact(put("garbage", "1"))
        handle.transact(lambda transaction: transaction.set_config(TOMBSTONE, 1))
        assert handle.replace_all(wanted, tombstone=False) == Replaced(inserted=2, retracted=2)
        assert (handle.snapshot().config(TOMBSTONE), handle.snapshot().config("deployment_generation")) == (0, 1)
        assert shown(handle) == {"same": "1", "new": "1"}
        assert handle.replace_all(wanted) == Replaced(0, 0)


# -- data versions -------------------------------------------------------------------------------------------------


def a_to_b(_contents: object) -> list[Change]:
    return [Change(setting_item("a", "1"), -1), Change(setting_item("b", "1"), 1)]


def test_a_newer_or_too_old_data_version_is_refused_untouched(place: StashPlace) -> None:
    place.open().close()
    for version, message in ((9, "has data version 9, this program reads up to 1"), (0, "migrates from 1 on")):
        place.sql(f"""UPDATE data SET value = '{version}' WHERE key = '"data_version"'""")
        before = dumped(place)
        for mode in OpenMode:
            with pytest.raises(IncompatibleDataVersion, match=message) as refused:
                place.open(mode)
            assert refused.value.exit_code is ExitCode.NOT_POSSIBLE
        with pytest.raises(IncompatibleDataVersion):
            place.join()
        assert dumped(place) == before
        assert place.stash.head().config["data_version"] == version, "readable in any version"


def test_data_is_migrated_by_a_writable_open_and_tried_out_by_a_savepoint(place: StashPlace) -> None:
    with place.open() as handle:
        handle.transact(put("a", "1"))
    newer = Stash.of(place.settings, migrations=(DataMigration(2, a_to_b),))
    who = {"generation": 1, "clock": SteppedClock()}
    before = dumped(place)
    with newer.open(OpenMode.SAVEPOINT, **who) as savepoint:
        assert shown(savepoint) == {"b": "1"}
    for refused in (lambda: newer.open(OpenMode.READ_ONLY, **who), lambda: newer.join(**who)):
        with pytest.raises(NotWritable, match="data version"):
            refused()
    assert dumped(place) == before
    for epoch in (3, 4):
        with newer.open(OpenMode.WRITABLE, **who) as handle:
            assert (shown(handle), handle.epoch) == ({"b": "1"}, epoch)
            assert config_item("data_version", 2) in set(handle.snapshot())
    with pytest.raises(IncompatibleDataVersion):
        place.open()


def test_whoever_fences_is_known_by_generation_even_if_it_dies_right_after(place: StashPlace) -> None:
    def fail(_contents: object) -> list[Change]:
        raise ZeroDivisionError

    with place.open(generation=1) as first:
        newer = Stash.of(place.settings, migrations=(DataMigration(2, fail),))
        with pytest.raises(ZeroDivisionError):
            newer.open(OpenMode.WRITABLE, generation=2, clock=SteppedClock())
        with pytest.raises(FencedByGeneration):
            first.confirm_leadership()
        with pytest.raises(FencedByGeneration):
            place.open(generation=1)
        assert place.stash.head() == Head(3, {"data_version": 1, "deployment_generation": 2})
