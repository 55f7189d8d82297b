"""What a run over all rows has left is trusted only while source, declaration and contents are those that it saw."""

from __future__ import annotations

import os
from dataclasses import replace
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.support.homes import Home
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.deployment import Mode
from tidemark.collections.digest.digest import DigestNote
from tidemark.collections.reconcile.choosing import same_source
from tidemark.collections.reconcile.choosing.same_source import (
    SAME_SOURCE,
    explain_due,
    is_due,
    name_desired,
    reconcile_unchanged,
)
from tidemark.collections.sources.formats.source import find_state
from tidemark.collections.sources.pins import Looking
from tidemark.collections.staged.batches import corrections_branch
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import arrow_schema, write_rows
from tidemark.iceberg.leases.table import LeaseTable
from tidemark.iceberg.maintenance.compaction import compact
from tidemark.iceberg.maintenance.repair import repair
from tidemark.iceberg.staging.correction_branches import stage_whole
from tidemark.interval import DAY_MS
from tidemark.report import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemark.collections.declarations.collection import Declaration
    from tidemark.collections.deployment import Deployment
    from tidemark.iceberg.shards import Shards
    from tidemark.report import CollectionReport

pytestmark = pytest.mark.slow  # stores that are really written, again and again

ROWS = [(1, "one"), (2, "two")]


@pytest.fixture
def known(installation: Home) -> Home:
    """Collection ``planes``, equal to its source, and ``copies``, which reads it: as runs over all rows left them."""
    installation.clock.step(10 * DAY_MS - installation.clock.now_ms())
    installation.write_rows("planes", ROWS)
    source = {"inputs": {"p": {"collection": "planes"}}, "sql": "SELECT * FROM p"}
    installation.apply(installation.declaration("planes"), installation.declaration("copies", source=source))
    for name in ("planes", "copies"):
        make_equal(installation, name)
    installation.clock.step(1_000)
    return installation


def make_equal(home: Home, name: str, rows: list[tuple[Any, ...]] = ROWS) -> None:
    """Do what a run over all rows does: publish, and leave the name of the state with the contents."""
    shard, declaration = home.shard(name), home.registry.get(name)
    head = shard.load()
    assert declaration.source is not None
    state = find_state(declaration.source, Looking(home.shards, home.settings), collection=name)
    assert state is not None
    source = name_desired(state, declaration, head, None)
    note = DigestNote(1, 0.0, is_quiet=True, source=source, compared_ms=home.clock.now_ms())
    publish(home, name, rows, digest=b"a digest", digest_note=str(note))


def publish(home: Home, name: str, rows: list[tuple[Any, ...]], **digest: Any) -> None:
    shard, upper = home.shard(name), home.upper(name)
    table = shard.load().table
    stamped = [{"k": k, "v": v, "_time": upper, "_diff": 1} for k, v in rows]
    files = write_rows(table, pa.Table.from_pylist(stamped, schema=arrow_schema(table)))
    Writer.join(shard, 1).publish(Batch(added=files), lower=upper, new_upper=upper + 1, **digest)


def reconcile(home: Home, **more: Any) -> tuple[dict[str, CollectionReport], list[str]]:
    declared = home.registry.read().declarations
    report, left = reconcile_unchanged(home.deployment, declared, clock=home.clock, **more)
    return report.collections, left


def test_nothing_is_read_and_the_upper_moves(known: Home) -> None:
    before = {name: known.upper(name) for name in ("planes", "copies")}
    for _ in range(2):  # the name stays
        done, left = reconcile(known)
        assert not left
        assert {name: (each.outcome, each.strategy) for name, each in done.items()} == dict.fromkeys(
            before, (Outcome.UNCHANGED, SAME_SOURCE)
        )
        assert all(done[name].lower == before[name] < known.upper(name) == done[name].upper for name in before)
        assert done["planes"].rows_source == 2
        assert done["planes"].details["compared_at"] == 10 * DAY_MS
        before = {name: known.upper(name) for name in before}
    assert sorted(known.tuples("planes")) == ROWS


def test_looks_wait_for_a_slow_store_together(known: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    known.write_rows("ships", ROWS)
    known.apply(*known.registry.read().declarations.values(), known.declaration("ships"))
    make_equal(known, "ships")
    known.clock.step(1_000)
    meeting, look = Barrier(2), same_source.reconcile_same

    def slow(shards: Shards, deployment: Deployment, declaration: Declaration, **more: Any) -> CollectionReport | None:
        if declaration.name in {"planes", "ships"}:
            meeting.wait(timeout=60)
        return look(shards, deployment, declaration, **more)

    monkeypatch.setattr(same_source, "reconcile_same", slow)
    done, left = reconcile(known)
    assert not left
    assert {each.strategy for each in done.values()} == {SAME_SOURCE}


def rewrite_in_place(home: Home) -> None:
    """Write other rows of the same length, and put the time of the file back."""
    path = home.folder / "planes.csv"
    seen, text = path.stat(), path.read_text(encoding="utf-8")
    with path.open("r+", encoding="utf-8") as file:
        file.write(text.replace("one", "eno"))
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (seen.st_size, seen.st_mtime_ns)


def alter(home: Home, **more: Any) -> None:
    declared = home.registry.read().declarations
    home.apply(home.declaration("planes", **more), declared["copies"])


def write_as_another_engine(home: Home) -> None:
    table = home.shards.iceberg.load_table(("collections", "planes"))
    table.append(pa.Table.from_pylist([{"k": 9, "v": "f", "_time": 0, "_diff": 1}], schema=arrow_schema(table)))


def take_away_and_add_again(home: Home) -> None:
    table = home.shards.iceberg.load_table(("collections", "planes"))
    v = table.schema().find_type("v")
    with table.update_schema() as update:
        update.delete_column("v")
    with table.update_schema() as update:
        update.add_column(("v",), v)
        update.move_before("v", "_time")


def repair_from_another_engine(home: Home) -> None:
    """Rows of another engine count as ours after a repair that finds no snapshot of ours."""
    shard = home.shard("planes")
    own = shard.load().own.snapshot_id
    write_as_another_engine(home)
    table = shard.load().table
    with table.manage_snapshots() as refs:
        refs.remove_tag("tidemark-main").remove_tag("tidemark-updates").remove_branch("updates")
    table.maintenance.expire_snapshots().by_id(own).commit()
    assert repair(shard, generation=1).lost


def stage(home: Home) -> None:
    upper, schema_id = home.upper("planes"), home.shard("planes").load().table.metadata.current_schema_id
    stage_whole(
        home.shard("planes"), Batch(schema_id=schema_id), branch=corrections_branch(1, None), lower=upper, time=upper,
        digest=None, digest_note="", about="all",
    )  # fmt: skip


CHANGES: dict[str, Callable[[Home], Any]] = {
    "other rows": lambda home: home.write_rows("planes", [(1, "one"), (2, "other")]),
    "other rows of the same size and time": rewrite_in_place,
    "a touched file": lambda home: (home.folder / "planes.csv").touch(),
    "no file": lambda home: (home.folder / "planes.csv").unlink(),
    "another declaration": lambda home: alter(home, guards={"max_delete_ratio": 0.1}),
    "rows of another engine": write_as_another_engine,
    "a column that went and came again": take_away_and_add_again,
    "a repair that makes rows of another engine ours": repair_from_another_engine,
    "other contents": lambda home: publish(home, "planes", [(3, "three")], digest=b"d", digest_note="unknown"),
    "other contents without a digest": lambda home: publish(home, "planes", [(3, "three")]),
    "staged corrections": stage,
    "a week": lambda home: home.clock.step(7 * DAY_MS),
    "a clock that was set back": lambda home: home.clock.step(-DAY_MS),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_whatever_changes_is_compared_and_so_is_what_reads_it(known: Home, change: Callable[[Home], Any]) -> None:
    change(known)
    before = known.upper("planes")
    assert reconcile(known) == ({}, ["copies", "planes"])
    assert known.upper("planes") == before


HARMLESS: dict[str, Callable[[Home], Any]] = {
    "a compaction": lambda home: compact(Writer.join(home.shard("planes"), 1)),
    "a fence": lambda home: Writer.raise_token(home.shard("planes"), 1),
    "an almost complete week": lambda home: home.clock.step(7 * DAY_MS - 1_001),
    "other columns to cluster by": lambda home: alter(home, cluster_by=["v"]),
    "read-only and back": lambda home: (home.switch(Mode.READ_ONLY), home.switch(Mode.READ_WRITE)),
}


@pytest.mark.parametrize("change", HARMLESS.values(), ids=HARMLESS)
def test_what_leaves_source_and_contents_alone_changes_nothing(known: Home, change: Callable[[Home], Any]) -> None:
    change(known)
    done, left = reconcile(known)
    assert (sorted(done), left) == (["copies", "planes"], [])


def test_a_change_of_what_is_read_is_seen_although_that_is_not_part_of_the_run(known: Home) -> None:
    publish(known, "planes", [(3, "three")])
    copies = {"copies": known.registry.get("copies")}
    report, left = reconcile_unchanged(known.deployment, copies, clock=known.clock)
    assert (report.collections, left) == ({}, ["copies"])


def test_a_plan_and_a_deployment_that_must_not_write_advance_nothing(known: Home) -> None:
    before = known.shard("planes").location()
    report, left = reconcile_unchanged(
        known.deployment, known.registry.read().declarations, dry_run=True, clock=known.clock
    )
    assert (report.operation, [*report.collections], left) == ("plan", ["copies", "planes"], [])
    newer = deployment_of(replace(known.settings, generation=2), clock=known.clock)
    report, left = reconcile_unchanged(newer, known.registry.read().declarations, clock=known.clock)
    assert [each.outcome for each in report.collections.values()] == [Outcome.UNCHANGED] * 2
    assert known.shard("planes").location() == before
    known.switch(Mode.READ_ONLY)
    before = known.shard("planes").location()
    assert reconcile(known)[1] == []
    assert known.shard("planes").location() == before


def test_what_is_paused_is_skipped_and_so_is_what_reads_it(known: Home) -> None:
    known.deployment.objects.pause(["planes"], why="a test")
    done, left = reconcile(known)
    assert not left
    assert [each.outcome for each in done.values()] == [Outcome.SKIPPED] * 2
    assert "it reads planes" in str(done["copies"].details)


def test_what_reads_something_skipped_is_skipped_although_another_input_changes(known: Home) -> None:
    both = {"inputs": {"p": {"collection": "planes"}, "o": {"collection": "others"}}, "sql": "SELECT * FROM p, o"}
    known.write_rows("others", ROWS)
    declared = known.registry.read().declarations.values()
    known.apply(*declared, known.declaration("others"), known.declaration("products", source=both))
    known.deployment.objects.pause(["planes"], why="a test")
    done, left = reconcile(known)
    assert {name: each.outcome for name, each in done.items()} == dict.fromkeys(
        ("copies", "planes", "products"), Outcome.SKIPPED
    )
    assert left == ["others"]


def test_while_read_only_somebody_at_work_may_stage_from_an_older_look(known: Home) -> None:
    known.switch(Mode.READ_ONLY)
    assert reconcile(known)[1] == []
    table = LeaseTable(known.settings)
    table.enter("another", operation="reconcile", collections=["planes"], writer="elsewhere:1")
    assert "planes" in reconcile(known)[1]
    table.end("another")
    table.close()


def test_what_is_not_looked_at_in_time_is_left(known: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same_source, "LOOKS_MS", -1)
    assert reconcile(known) == ({}, ["copies", "planes"])


@pytest.mark.parametrize(
    ("now_ms", "verify_after_ms", "due"), [(5, 10, False), (14, 10, False), (15, 10, True), (4, 10, True), (5, 0, True)]
)
def test_a_full_run_is_due_after_a_while_and_if_the_last_one_is_still_to_come(
    now_ms: int, verify_after_ms: int, *, due: bool
) -> None:
    assert is_due(5, verify_after_ms, now_ms=now_ms) is due


def test_a_run_says_why_it_is_due() -> None:
    assert explain_due(0, now_ms=5) == "when all rows were compared last is not known"
    assert explain_due(DAY_MS, now_ms=9 * DAY_MS).startswith("`verify_after` makes it due: all rows were compared last")
    assert explain_due(DAY_MS, now_ms=5) == (
        "the clock was set back: all rows were compared last at 1970-01-02 00:00:00 UTC"
    )


def test_always_is_a_declaration(known: Home) -> None:
    assert known.declaration("planes", verify_after="30m").verify_after_ms == 1_800_000
    alter(known, verify_after=0)
    make_equal(known, "planes")
    assert reconcile(known)[1] == ["copies", "planes"]
