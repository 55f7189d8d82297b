"""The mode is one stored fact: compared, set, audited, and followed by a fence."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from tests.support.damage import damage_metadata
from tests.support.events import CLOCK, create_events, switch
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.catalog.deployment.modes import look_at_mode
from tidemark.catalog.items.kinds import AUDIT_EVENT
from tidemark.catalog.opening.catalog import Catalog
from tidemark.collections import mode
from tidemark.collections.deployment import Mode, StoredMode
from tidemark.collections.mode import FAIL_POINTS, join_to_write, mode_of
from tidemark.collections.staged.batches import list_batches
from tidemark.collections.staged.flush import flush_all
from tidemark.errors import CorruptState, FencedByEpoch, FencedByGeneration, Sealed
from tidemark.exit_codes import ExitCode
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.iceberg.commit import fences
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.shard.catalog import CachingCatalog, StagedCommit
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings


def stored_mode(settings: Settings) -> StoredMode:
    return look_at_mode(Catalog.of(settings, clock=CLOCK).ends)


def switches(settings: Settings) -> list[StoredMode]:
    """Every switch that the audit keeps, oldest first."""
    with Catalog.of(settings, clock=CLOCK).join() as handle:
        events = [event for _, event in handle.transact(lambda transaction: list(transaction.items(AUDIT_EVENT)))]
    found = [
        StoredMode(
            mode=Mode(str(event.details["mode"])),
            generation=int(str(event.details["generation"])),
            since_ms=int(str(event.details["since"])),
            who=event.who,
            why=str(event.details["why"]),
        )
        for event in events
        if event.operation == "switch-mode"
    ]
    return sorted(found, key=lambda each: each.since_ms)


@pytest.mark.parametrize(
    ("stored", "generation", "mode"),
    [
        (StoredMode(generation=3), 3, Mode.READ_WRITE),
        (StoredMode(generation=3, mode=Mode.READ_ONLY), 3, Mode.READ_ONLY),
        (StoredMode(generation=3), 4, Mode.READ_ONLY),
        (StoredMode(generation=3, mode=Mode.READ_ONLY), 4, Mode.READ_ONLY),
    ],
)
def test_mode_of_a_deployment(stored: StoredMode, generation: int, mode: Mode) -> None:
    assert mode_of(stored, generation) is mode


@pytest.mark.parametrize("mode", Mode)
def test_replaced_deployment_has_no_mode(mode: Mode) -> None:
    with pytest.raises(FencedByGeneration) as caught:
        mode_of(StoredMode(generation=3, mode=mode), 2)
    assert caught.value.exit_code == ExitCode.FENCED


def test_nobody_switched_yet_means_read_write(home: Settings) -> None:
    assert stored_mode(home) == StoredMode(generation=1, mode=Mode.READ_WRITE, since_ms=0)


def test_every_switch_is_stored_and_kept_with_who_and_why(home: Settings) -> None:
    done = [switch(home, mode) for mode in (Mode.READ_ONLY, Mode.READ_WRITE, Mode.READ_ONLY)]
    assert stored_mode(home) == done[-1]
    assert switches(home) == done
    assert {(each.who, each.why) for each in done} == {("tests", "a test")}


def test_mode_that_holds_is_not_written_again(home: Settings) -> None:
    first = switch(home, Mode.READ_ONLY)
    assert switch(home, Mode.READ_ONLY) == first
    assert switches(home) == [first]


def test_switch_to_read_only_fences_whoever_joined_before(home: Settings) -> None:
    shard = create_events(home)
    writer, mode = join_to_write(shard, deployment_of(home))
    assert mode is Mode.READ_WRITE
    switch(home, Mode.READ_ONLY)
    with pytest.raises(FencedByEpoch):
        writer.advance(lower=0, new_upper=1)


def test_switch_between_the_two_looks_of_a_joining_writer_fences_it(home: Settings) -> None:
    shard = create_events(home)
    switch(home, Mode.READ_WRITE)
    Writer.raise_token(shard, 1)
    deployment = deployment_of(home)
    real = deployment.modes

    class Overtaken:
        def read(self) -> StoredMode:
            seen = real.read()
            switch(home, Mode.READ_ONLY)
            return seen

        switch = real.switch

    deployment = replace(deployment, modes=Overtaken())
    writer, mode = join_to_write(shard, deployment)
    assert mode is Mode.READ_WRITE, "it has seen the mode of before"
    with pytest.raises(FencedByEpoch):
        writer.advance(lower=0, new_upper=1)


def test_leaving_read_only_ends_no_writer_of_the_same_deployment(home: Settings) -> None:
    shard = create_events(home)
    switch(home, Mode.READ_ONLY)
    writer = Writer.join(shard, 1)
    switch(home, Mode.READ_WRITE)
    writer.advance(lower=0, new_upper=1)


def test_new_leader_fences_the_old_one(home: Settings) -> None:
    shard = create_events(home)
    switch(home, Mode.READ_WRITE)
    writer = Writer.join(shard, 1)
    newer = replace(home, generation=2)
    switch(newer, Mode.READ_ONLY)
    assert stored_mode(home).generation == 1, "beside a leader a newer deployment is read-only as it is"
    writer.advance(lower=0, new_upper=1)
    switch(newer, Mode.READ_WRITE)
    with pytest.raises(FencedByGeneration):
        writer.advance(lower=1, new_upper=2)
    with pytest.raises(FencedByGeneration):
        switch(home, Mode.READ_WRITE)


def test_switches_at_once_leave_one_mode_and_every_winner_in_the_log(home: Settings) -> None:
    create_events(home)
    switch(home, Mode.READ_WRITE)  # whoever comes first opens the catalog, and of several who do that one goes on
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda mode: switch(home, mode), [Mode.READ_ONLY, Mode.READ_WRITE] * 3))
    kept = switches(home)
    assert stored_mode(home) == kept[-1]
    times = [each.since_ms for each in kept]
    assert times == sorted(set(times))


def test_reading_the_mode_needs_neither_pyiceberg_nor_spark() -> None:
    program = "import sys, tidemark.catalog.deployment.modes\nprint({'pyiceberg', 'pyspark'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


SWITCH = """
import os
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.deployment import Mode
from tidemark.collections.mode import switch_mode
from tidemark.iceberg.shards import Shards
from tidemark.settings import Settings
settings = Settings.load(os.environ)
switch_mode(Shards.connect(settings), deployment_of(settings), Mode(os.environ["MODE"]), who="w", why="y")
"""


def test_switch_fences_more_collections_than_one_transaction(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mode, "TOGETHER", 2)
    writers = [Writer.join(create_events(home, name), 1) for name in ("a", "b", "c", "d", "e")]
    switch(home, Mode.READ_ONLY)
    for writer in writers:
        with pytest.raises(FencedByEpoch):
            writer.advance(lower=0, new_upper=1)


@pytest.mark.parametrize("last", ["advance", "seal"])
def test_writer_that_commits_during_the_switch_is_fenced_all_the_same(
    home: Settings, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    writers = [Writer.join(create_events(home, name), 1) for name in ("after", "before")]
    real = CachingCatalog.land

    def come_second(catalog: CachingCatalog, commits: Iterable[StagedCommit]) -> list[StagedCommit]:
        monkeypatch.setattr(CachingCatalog, "land", real)
        if last == "seal":
            writers[0].seal(now_ms=0)
        else:
            writers[0].advance(lower=0, new_upper=1)
        return real(catalog, commits)

    monkeypatch.setattr(CachingCatalog, "land", come_second)
    switch(home, Mode.READ_ONLY)
    for writer, fenced in zip(writers, [Sealed if last == "seal" else FencedByEpoch, FencedByEpoch], strict=True):
        with pytest.raises(fenced):
            writer.advance(lower=writer.shard.load().state.upper, new_upper=9)


def test_writer_of_the_new_leader_that_joins_during_its_switch_goes_on(
    home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = create_events(home)
    Writer.raise_token(shard, 1)
    real, joined = fences.land, []

    def come_second(prepared: Sequence[fences.Fence]) -> list[Shard]:
        if any(fence.shard.identifier == shard.identifier for fence in prepared):
            joined.append(Writer.lead(shard, 2))
        return real(prepared)

    monkeypatch.setattr(fences, "land", come_second)
    switch(replace(home, generation=2), Mode.READ_WRITE)
    joined[0].advance(lower=0, new_upper=1)


def test_collection_of_a_newer_deployment_leaves_no_other_unfenced(home: Settings) -> None:
    writers = [Writer.join(create_events(home, name), 1) for name in ("a", "c")]
    Writer.raise_token(create_events(home, "b"), 2)
    with pytest.raises(FencedByGeneration):
        switch(home, Mode.READ_ONLY)
    with pytest.raises(FencedByEpoch):
        writers[0].advance(lower=0, new_upper=1)


@pytest.mark.crash
@pytest.mark.parametrize("point", [*FAIL_POINTS, *fences.FAIL_POINTS, "stash.before-commit", "stash.after-commit"])
def test_killed_switch_to_read_only_is_completed_by_the_next(point: str, home: Settings) -> None:
    shard = create_events(home)
    writer = Writer.join(shard, 1)
    environ = {"TIDEMARK_HOME": str(home.home), "PYTHONPATH": ".", "MODE": "read-only"}
    run = [sys.executable, "-c", SWITCH]
    killed = subprocess.run(run, env=environ | {"TIDEMARK_FAIL_POINT": point}, check=False, capture_output=True)
    assert killed.returncode == FAIL_POINT_EXIT, killed.stderr.decode()
    again = subprocess.run(run, env=environ, check=False, capture_output=True)
    assert again.returncode == 0, again.stderr.decode()
    assert (stored_mode(home).mode, len(switches(home))) == (Mode.READ_ONLY, 1)
    assert stored_mode(home).who == "w"
    with pytest.raises(FencedByEpoch):
        writer.advance(lower=0, new_upper=1)


@pytest.mark.parametrize("damage", ["cut", "binary", "gone", "no list"])
def test_damaged_collection_keeps_no_other_from_being_fenced(
    home: Settings, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    writers = [Writer.join(create_events(home, name), 1) for name in ("after", "before")]
    damage_metadata(create_events(home, "ailing"), damage)  # between the two
    assert switch(home, Mode.READ_ONLY).mode is Mode.READ_ONLY
    for writer in writers:
        with pytest.raises(FencedByEpoch):
            writer.advance(lower=0, new_upper=1)
    assert "collections.ailing is not fenced" in caplog.text
    assert switch(home, Mode.READ_WRITE).mode is Mode.READ_WRITE


def test_foreign_table_beside_the_collections_stops_neither_switch_nor_flush(home: Settings) -> None:
    create_events(home)
    shards = Shards.connect(home)
    shards.iceberg.create_table(("collections", "foreign"), Schema(NestedField(1, "id", LongType())))
    switch(home, Mode.READ_ONLY)
    assert list_batches(shards, []) == []
    with pytest.raises(CorruptState, match="foreign"):
        list_batches(shards, ["foreign"])
    switch(home, Mode.READ_WRITE)
    assert set(flush_all(shards, deployment_of(home), [], clock=CLOCK).collections) <= {"events"}
