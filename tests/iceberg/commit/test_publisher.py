"""The publisher when the catalog goes away again and again: what is said of a commit is never more than is known."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.refs import SnapshotRefType
from sqlalchemy.exc import OperationalError

from tests.support.commits import act_before_commit
from tests.support.rows import SCHEMA, contents, correction
from tidemark.errors import CommitStateUnknown, ConflictsUnsettled, Unreachable
from tidemark.iceberg.commit import publisher
from tidemark.iceberg.commit.publisher import set_ref
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.shard.digest_file import read_digest
from tidemark.iceberg.shard.head import MAIN, OWN_MAIN, UPDATES
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shards import Shards
from tidemark.iceberg.staging.branches import branch_name
from tidemark.iceberg.staging.files import stage_files

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemark.iceberg.commit.publisher import Published
    from tidemark.settings import Settings

ATTEMPTS = 2


@pytest.fixture
def shard(home: Settings, monkeypatch: pytest.MonkeyPatch) -> Shard:
    shard = Shards.connect(home).create("planes", schema=SCHEMA, key=["id"])
    monkeypatch.setattr(publisher, "ATTEMPTS", ATTEMPTS)
    return shard


def publish(shard: Shard) -> Published:
    batch = correction(shard.load(), insert=[(1, "a")], time=0)
    return Writer.join(shard, 1).publish(batch, lower=0, new_upper=1, digest=b"d", digest_note="16")


def lost_connection() -> OperationalError:
    return OperationalError("UPDATE", {}, ConnectionError("server closed the connection"))


class Commits:
    """Takes the place of ``commit_table``; each attempt goes as ``steps`` say."""

    def __init__(self, shard: Shard, monkeypatch: pytest.MonkeyPatch, *steps: Callable[[Commits], None]) -> None:
        self._steps = list(steps)
        self._arguments: list[tuple[object, ...]] = []
        self._real = shard.iceberg.commit_table
        monkeypatch.setattr(shard.iceberg, "commit_table", self)

    def __call__(self, *arguments: object) -> None:
        self._arguments.append(arguments)
        self._steps.pop(0)(self)

    def lands(self, attempt: int) -> None:
        self._real(*self._arguments[attempt])  # type: ignore[arg-type]

    def is_lost(self) -> None:
        raise lost_connection()

    def lands_unseen(self) -> None:
        self.lands(-1)
        raise lost_connection()

    def loses_to_the_first_that_lands_late(self) -> None:
        self.lands(0)
        raise CommitFailedException("the table has moved")

    def loses(self) -> None:
        raise CommitFailedException("the table has moved")


def test_commit_whose_last_attempt_landed_unseen_is_found(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    Commits(shard, monkeypatch, Commits.is_lost, Commits.lands_unseen)
    published = publish(shard)
    head = shard.load()
    assert (contents(head), head.main.snapshot_id) == (Counter({(1, "a"): 1}), published.snapshot_id)


def test_lost_last_attempt_is_not_called_one_that_wrote_nothing(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    Commits(shard, monkeypatch, Commits.loses, Commits.is_lost)
    with pytest.raises(CommitStateUnknown, match="may have landed") as caught:
        publish(shard)
    assert caught.value.hint.startswith("run it again: it computes afresh")


def test_commit_that_its_own_late_landing_made_fail_is_found_with_its_digest(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    Commits(shard, monkeypatch, Commits.is_lost, Commits.loses_to_the_first_that_lands_late)
    publish(shard)
    head = shard.load()
    assert (contents(head), read_digest(head)) == (Counter({(1, "a"): 1}), b"d")


def test_conflicts_to_the_end_wrote_nothing_and_leave_no_digest(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, home: Settings
) -> None:
    Commits(shard, monkeypatch, Commits.is_lost, Commits.loses)
    with pytest.raises(ConflictsUnsettled, match="nothing was written"):
        publish(shard)
    assert list(home.home.rglob("*.puffin")) == []


@pytest.mark.parametrize(("step", "error"), [(Commits.is_lost, CommitStateUnknown), (Commits.loses, Unreachable)])
def test_catalog_that_is_gone_for_the_next_look_leaves_in_doubt_only_what_was_lost(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, step: Callable[[Commits], None], error: type[Exception]
) -> None:
    commits = Commits(shard, monkeypatch, step)
    real = Shard.load

    def load(self: Shard) -> object:
        if commits._arguments:
            raise Unreachable("the catalog does not answer")
        return real(self)

    monkeypatch.setattr(Shard, "load", load)
    with pytest.raises(error):
        publish(shard)


def test_snapshot_that_came_meanwhile_on_another_branch_makes_the_attempt_fail(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema_id = shard.load().table.metadata.current_schema_id
    branch = branch_name(generation=1, writer="w", batch="b")
    stage = partial(stage_files, shard, [], branch=branch, fingerprint="f", schema_id=schema_id)
    act_before_commit(shard, monkeypatch, stage)
    assert publish(shard).attempts == 2
    metadata = shard.load().table.metadata
    numbers = [snapshot.sequence_number for snapshot in metadata.snapshots]
    assert len(set(numbers)) == len(numbers), "each snapshot has a sequence number of its own"


@pytest.mark.parametrize(
    ("ref", "type_"),
    [(MAIN, SnapshotRefType.BRANCH), (OWN_MAIN, SnapshotRefType.TAG), (UPDATES, SnapshotRefType.BRANCH)],
)
def test_ref_that_was_moved_meanwhile_without_a_snapshot_makes_the_attempt_fail(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, ref: str, type_: SnapshotRefType
) -> None:
    genesis = shard.load().main
    Writer.raise_token(shard, 1)

    def move() -> None:
        shard.iceberg.commit_table(shard.load().table, (), (set_ref(ref, genesis, type_),))

    if ref == UPDATES:  # which still is at the genesis
        genesis = shard.load().main
    act_before_commit(shard, monkeypatch, move)
    assert publish(shard).attempts == 2
    assert contents(shard.load()) == Counter({(1, "a"): 1})
