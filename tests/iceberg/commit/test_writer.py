"""A shard through its own interface, read back through pyiceberg; SQLite, no JVM."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from pyiceberg.types import StringType
from sqlalchemy.exc import OperationalError

from tests.support.damage import damage_metadata
from tests.support.rows import SCHEMA, change_log, contents, correction, updates_table
from tidemark.errors import (
    AsOfBeforeSince,
    CorruptState,
    FencedByEpoch,
    FencedByGeneration,
    InputsGone,
    InvalidBatch,
    NotPossible,
    Sealed,
    UnknownCollection,
    Unreachable,
    UpperMismatch,
)
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.holds import downgrade_since, hold, release
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.shard.digest_file import read_digest
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.iceberg.shard.state import CommitKind, ShardKind
from tidemark.iceberg.shards import Shards
from tidemark.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.iceberg.shard.shard import Shard

FOREVER_MS = 10**15


@pytest.fixture
def shards(home: Settings) -> Shards:
    return Shards.connect(home)


@pytest.fixture
def shard(shards: Shards) -> Shard:
    return shards.create("planes", schema=SCHEMA, key=["id"])


def test_creation_is_idempotent_and_makes_a_readable_empty_table(shards: Shards, shard: Shard) -> None:
    first = shard.load()
    assert shards.create("planes", schema=SCHEMA, key=["id"]).load().main == first.main
    assert (first.state.kind, first.state.upper, contents(first)) == (CommitKind.GENESIS, 0, Counter())
    with pytest.raises(NotPossible, match="is differential"):
        shards.create("planes", schema=SCHEMA, layout=ShardKind.APPEND_ONLY)


@pytest.mark.parametrize("damage", ["cut", "empty", "binary", "list", "gone", "without properties", "without refs"])
def test_damaged_metadata_is_said_of_the_shard(shard: Shard, home: Settings, damage: str) -> None:
    damage_metadata(shard, damage)
    with pytest.raises(CorruptState, match="'planes'") as caught:
        Shards.connect(home).open("planes").load()
    assert caught.value.exit_code == ExitCode.NOT_POSSIBLE
    assert "\n" not in str(caught.value)
    assert caught.value.hint


def test_unknown_shard_suggests_near_names(shards: Shards, shard: Shard) -> None:
    with pytest.raises(UnknownCollection) as caught:
        shards.open("plane")
    assert "planes" in caught.value.hint


@pytest.mark.parametrize("buckets", [1, 4])
def test_correction_moves_main_and_change_log_together(shards: Shards, buckets: int) -> None:
    shard = shards.create("bucketed", schema=SCHEMA, key=["id"], buckets=buckets)
    writer = Writer.raise_token(shard, 1)
    rows = [(number, f"n{number}") for number in range(20)] + [(None, None)]
    writer.publish(correction(shard.load(), insert=rows, time=5), lower=0, new_upper=6)
    gone, come = [(3, "n3"), (7, "n7"), (None, None)], [(3, "new")]
    writer.publish(correction(shard.load(), insert=come, retract=gone, time=8), lower=6, new_upper=9)
    head = shard.load()
    assert contents(head) == Counter(rows) - Counter(gone) + Counter(come)
    assert change_log(head) == Counter(
        {**{(row, 5): 1 for row in rows}, **{(row, 8): -1 for row in gone}, **{(row, 8): 1 for row in come}}
    )
    assert head.row_count == 19
    assert (head.state.lower, head.state.upper) == (8, 9)


def test_a_metadata_file_is_parsed_once_and_what_others_commit_is_seen_at_once(shard: Shard, home: Settings) -> None:
    other = Shards.connect(home).open("planes")
    first = other.load()
    assert other.load().table.metadata is first.table.metadata
    Writer.raise_token(shard, 1).advance(lower=0, new_upper=7)
    assert (first.state.upper, other.load().state.upper) == (0, 7)
    assert other.load().table.metadata == shard.load().table.metadata


def test_equal_rows_are_retracted_one_by_one(shards: Shards) -> None:
    shard = shards.create("multiset", schema=SCHEMA)
    writer = Writer.raise_token(shard, 1)
    writer.publish(correction(shard.load(), insert=[(1, "a")] * 3, time=1), lower=0, new_upper=2)
    writer.publish(correction(shard.load(), retract=[(1, "a")] * 2, time=2), lower=2, new_upper=3)
    assert contents(shard.load()) == Counter({(1, "a"): 1})


def test_losing_writer_learns_the_actual_upper_and_changes_nothing(shard: Shard) -> None:
    writer = Writer.raise_token(shard, 1)
    batch = correction(shard.load(), insert=[(1, "a")], time=1)
    writer.advance(lower=0, new_upper=1)
    before = shard.load().main
    with pytest.raises(UpperMismatch) as caught:
        writer.publish(batch, lower=0, new_upper=2)
    assert (caught.value.expected, caught.value.actual, shard.load().main) == (0, 1, before)


def test_raised_token_fences_everybody_who_joined_before(shard: Shard) -> None:
    old = Writer.raise_token(shard, 1)
    joined = Writer.join(shard, 1)
    new = Writer.raise_token(shard, 1)
    for fenced in (old, joined):
        with pytest.raises(FencedByEpoch, match="epoch 2"):
            fenced.advance(lower=0, new_upper=5)
    new.advance(lower=0, new_upper=5)
    Writer.raise_token(shard, 2)
    with pytest.raises(FencedByGeneration):
        new.advance(lower=5, new_upper=6)
    with pytest.raises(FencedByGeneration, match="generation 2"):
        Writer.join(shard, 1)
    with pytest.raises(FencedByGeneration):
        Writer.raise_token(shard, 1)


def test_first_writer_of_a_newer_deployment_fences_the_older_one(shard: Shard) -> None:
    old = Writer.lead(shard, 1)
    assert Writer.lead(shard, 1).token == old.token
    new = Writer.lead(shard, 2)
    assert (new.token.generation, Writer.lead(shard, 2).token) == (2, new.token)
    with pytest.raises(FencedByGeneration):
        old.advance(lower=0, new_upper=1)


@pytest.mark.parametrize(
    ("time", "diff", "lower", "new_upper", "why"),
    [
        (4, 1, 5, 9, "outside"),
        (9, 1, 5, 9, "outside"),
        (6, -1, 5, 9, "_diff = 1"),
        (6, 1, 5, 5, "empty or reversed"),
        (6, 1, 5, 4, "empty or reversed"),
    ],
)
def test_invalid_batch_is_refused(  # noqa: PLR0917  # one row of the table above
    shard: Shard, time: int, diff: int, lower: int, new_upper: int, why: str
) -> None:
    writer = Writer.raise_token(shard, 1)
    writer.advance(lower=0, new_upper=5)
    batch = Batch(added=write_rows(shard.load().table, updates_table([(1, "a")], time=time, diff=diff)))
    with pytest.raises(InvalidBatch, match=why):
        writer.publish(batch, lower=lower, new_upper=new_upper)
    assert shard.load().state.upper == 5


def test_batch_of_a_differential_shard_has_one_time(shard: Shard) -> None:
    writer = Writer.raise_token(shard, 1)
    table = shard.load().table
    two = [write_rows(table, updates_table([(time, "a")], time=time, diff=1))[0] for time in (1, 2)]
    with pytest.raises(InvalidBatch, match="one time"):
        writer.publish(Batch(added=tuple(two)), lower=0, new_upper=5)


def test_many_batches_with_ledgers_are_published_by_one_commit(shards: Shards) -> None:
    shard = shards.create("events", schema=SCHEMA, layout=ShardKind.APPEND_ONLY)
    writer = Writer.raise_token(shard, 1)
    table = shard.load().table
    batches = []
    for number in (2, 0, 1):
        rows = updates_table([(number, "e")], time=0, diff=1).select(["id", "name"])
        rows = rows.append_column("_producer", [["p"]]).append_column("_batch", [[number]])
        batches.append(Batch(added=write_rows(table, rows), producer="p", range=Range(number, number + 1)))
    before = len(table.metadata.snapshots)
    writer.publish(*batches, lower=0, new_upper=7)
    head = shard.load()
    assert len(head.table.metadata.snapshots) == before + 1
    assert contents(head) == Counter({(0, "e"): 1, (1, "e"): 1, (2, "e"): 1})
    assert head.state.ledgers == {"p": Ledger((Range(0, 3),))}


def test_sealed_shard_takes_nothing_any_more(shard: Shard) -> None:
    writer = Writer.raise_token(shard, 1)
    hold(shard, "reader", expires_at_ms=100)
    with pytest.raises(NotPossible, match="reader"):
        writer.seal(now_ms=99)
    writer.seal(now_ms=100)
    with pytest.raises(Sealed):
        writer.advance(lower=0, new_upper=1)
    for take in (Writer.join, Writer.raise_token):
        with pytest.raises(Sealed):
            take(shard, 1)


def test_since_never_passes_a_live_hold_nor_the_upper(shard: Shard) -> None:
    writer = Writer.raise_token(shard, 1)
    writer.advance(lower=0, new_upper=100)
    hold(shard, "slow", since=10, expires_at_ms=1_000)
    assert downgrade_since(shard, 50, now_ms=999) == 10
    assert downgrade_since(shard, 5, now_ms=999) == 10
    assert downgrade_since(shard, 50, now_ms=1_000) == 50
    assert shard.load().state.holds == {}
    assert downgrade_since(shard, 500, now_ms=1_000) == 99
    with pytest.raises(AsOfBeforeSince, match="99"):
        hold(shard, "late", since=50, expires_at_ms=FOREVER_MS)
    assert hold(shard, "now", expires_at_ms=FOREVER_MS) == 99
    release(shard, "now")
    assert shard.load().state.holds == {}


def test_digest_stays_bound_until_the_contents_change(shard: Shard) -> None:
    writer = Writer.raise_token(shard, 1)
    writer.publish(
        correction(shard.load(), insert=[(1, "a")], time=1), lower=0, new_upper=2, digest=b"d1", digest_note="16"
    )
    hold(shard, "r", expires_at_ms=FOREVER_MS)
    writer.advance(lower=2, new_upper=3)
    head = shard.load()
    assert (read_digest(head), head.state.digest) == (b"d1", "16")
    assert len(head.table.metadata.statistics) == 1
    writer.advance(lower=3, new_upper=4, digest=b"d2", digest_note="18")
    assert read_digest(shard.load()) == b"d2"
    writer.publish(correction(shard.load(), insert=[(2, "b")], time=4), lower=4, new_upper=5)
    head = shard.load()
    assert (read_digest(head), head.state.digest, head.table.metadata.statistics) == (None, "", [])


def test_digest_files_that_are_replaced_do_not_pile_up(shard: Shard, home: Settings) -> None:
    writer = Writer.raise_token(shard, 1)
    for time in range(3):
        writer.advance(lower=time, new_upper=time + 1, digest=b"d%d" % time)
    assert len(list(home.home.rglob("*.puffin"))) == 1


def test_foreign_append_is_seen_and_taken_back_by_the_next_correction(shard: Shard) -> None:
    writer = Writer.raise_token(shard, 1)
    writer.publish(correction(shard.load(), insert=[(1, "a")], time=1), lower=0, new_upper=2)
    table = shard.load().table
    table.append(updates_table([(9, "foreign")], time=0, diff=1).cast(table.schema().as_arrow()))
    head = shard.load()
    assert head.foreign is not None
    assert head.foreign.rows == 1
    assert contents(head, head.contents) == Counter({(1, "a"): 1})
    writer.advance(lower=2, new_upper=3)  # leaves foreign rows alone
    assert contents(shard.load()) == Counter({(1, "a"): 1, (9, "foreign"): 1})
    assert shard.load().foreign is not None
    writer.publish(correction(shard.load(), insert=[(2, "b")], time=3), lower=3, new_upper=4)
    head = shard.load()
    assert (head.foreign, contents(head)) == (None, Counter({(1, "a"): 1, (2, "b"): 1}))


def test_main_moved_back_by_hand_is_foreign_too(shard: Shard) -> None:
    writer = Writer.raise_token(shard, 1)
    writer.publish(correction(shard.load(), insert=[(1, "a")], time=1), lower=0, new_upper=2)
    earlier = shard.load().main.snapshot_id
    writer.publish(correction(shard.load(), insert=[(2, "b")], time=2), lower=2, new_upper=3)
    shard.load().table.manage_snapshots().set_current_snapshot(earlier).commit()
    head = shard.load()
    assert head.foreign is not None
    assert head.foreign.rows == -1
    writer.publish(Batch(), lower=3, new_upper=4)
    assert contents(shard.load()) == Counter({(1, "a"): 1, (2, "b"): 1})


def test_deletes_from_files_that_are_gone_must_be_computed_again(shard: Shard) -> None:
    writer = Writer.raise_token(shard, 1)
    writer.publish(correction(shard.load(), insert=[(1, "a")], time=1), lower=0, new_upper=2)
    batch = correction(shard.load(), retract=[(1, "a")], time=2)
    stale = Batch(
        added=batch.added,
        retracted=batch.retracted,
        deletes=batch.deletes,
        pinned_snapshot_id=-1,
        deleted_from=frozenset({"file:///rewritten.parquet"}),
    )
    with pytest.raises(InputsGone, match="rewritten"):
        writer.publish(stale, lower=2, new_upper=3)


def test_batch_for_an_older_schema_must_be_computed_again(shard: Shard) -> None:
    writer = Writer.raise_token(shard, 1)
    batch = correction(shard.load(), insert=[(1, "a")], time=1)
    with shard.load().table.update_schema() as update:
        update.add_column("more", StringType())
    with pytest.raises(InputsGone, match="schema"):
        writer.publish(batch, lower=0, new_upper=2)


def test_digest_of_rows_of_an_older_schema_must_be_computed_again(shard: Shard) -> None:
    writer = Writer.raise_token(shard, 1)
    hashed_as = shard.load().table.metadata.current_schema_id
    with shard.load().table.update_schema() as update:
        update.add_column("more", StringType())
    with pytest.raises(InputsGone, match="schema"):
        writer.advance(lower=0, new_upper=1, digest=b"d", digest_schema_id=hashed_as)
    with pytest.raises(InputsGone, match="schema"):
        writer.publish(Batch(schema_id=hashed_as), lower=0, new_upper=1, digest=b"d")
    writer.advance(lower=0, new_upper=1, digest=b"d", digest_schema_id=hashed_as + 1)
    head = shard.load()
    assert (read_digest(head), head.state.schema_id) == (b"d", hashed_as + 1)


@pytest.mark.parametrize("landed", [True, False])
def test_connection_lost_in_the_commit_is_resolved_by_commit_id(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, *, landed: bool
) -> None:
    writer = Writer.raise_token(shard, 1)
    batch = correction(shard.load(), insert=[(1, "a")], time=1)
    real, calls = shard.iceberg.commit_table, []

    def cut(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) > 1:
            return real(*arguments)
        if landed:
            real(*arguments)
        raise OperationalError("UPDATE", {}, ConnectionError("server closed the connection"))

    monkeypatch.setattr(shard.iceberg, "commit_table", cut)
    published = writer.publish(batch, lower=0, new_upper=2)
    head = shard.load()
    assert contents(head) == Counter({(1, "a"): 1})
    assert published.snapshot_id == head.main.snapshot_id
    assert len(calls) == (1 if landed else 2)


def test_token_of_a_commit_with_an_unknown_outcome_is_its_own_and_nobody_elses(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, others = shard.iceberg.commit_table, []

    def cut(*arguments: object) -> object:
        result = real(*arguments)
        if others:
            return result
        others.append(None)
        # A later writer, before the first one has asked what became of its commit.
        others.append(Writer.raise_token(shard, 1))
        raise OperationalError("UPDATE", {}, ConnectionError("server closed the connection"))

    monkeypatch.setattr(shard.iceberg, "commit_table", cut)
    first = Writer.raise_token(shard, 1)
    assert first.token < others[1].token
    with pytest.raises(FencedByEpoch):
        first.advance(lower=0, new_upper=1)


def test_unreachable_catalog_is_named_without_its_password(tmp_path: Path) -> None:
    uri = "postgresql://u:secret@127.0.0.1:1/x"
    settings = Settings.load({"TIDEMARK_HOME": str(tmp_path), "TIDEMARK_CATALOG_URI": uri})
    with pytest.raises(Unreachable) as caught:
        Shards.connect(settings)
    assert "secret" not in str(caught.value)
    assert "127.0.0.1:1" in str(caught.value)


@pytest.mark.slow
def test_manifests_are_merged_before_there_are_too_many(shards: Shards, tmp_path: Path) -> None:
    shard = shards.create("busy", schema=SCHEMA, layout=ShardKind.LOG)
    writer = Writer.raise_token(shard, 1)
    for time in range(103):
        batch = Batch(added=write_rows(shard.load().table, updates_table([(time, "x")], time=time, diff=1)))
        writer.publish(batch, lower=time, new_upper=time + 1)
    head = shard.load()
    assert len(head.main.manifests(head.table.io)) < 10
    assert sum(contents(head).values()) == 103
