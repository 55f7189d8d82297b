"""Files that are gone or damaged: they are named, with who needs them, and what reads without them is said."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyiceberg.manifest import read_manifest_list

from tests.support.rows import SCHEMA, correction, local_path
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.clock import SystemClock
from tidemark.collections.isolation import isolate
from tidemark.collections.maintenance.maintain import compact_all
from tidemark.errors import CorruptState
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.checked_io import CheckedFileIO
from tidemark.iceberg.reading.arrow import changes_arrow, read_arrow
from tidemark.iceberg.shard.damage import describe, find_damage
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings

KINDS = ("manifest list", "manifest", "data file")


def cut(path: Path, share: float = 0.5) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


def flip(path: Path) -> None:
    """Change the last bytes, and not the size."""
    content = bytearray(path.read_bytes())
    content[-12:] = bytes(each ^ 0xFF for each in content[-12:])
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "gone": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "cut": cut,
    "cut at the end": lambda path: cut(path, 0.99),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "flipped": flip,
}


def publish(shard: Shard, number: int) -> None:
    batch = correction(shard.load(), insert=[(number, "a")], time=number)
    Writer.join(shard, 1).publish(batch, lower=shard.load().state.upper, new_upper=number + 1)


def newest(shard: Shard, kind: str) -> Path:
    """Return a file that the last commit added to the contents."""
    head = shard.load()
    (manifest, *_) = head.contents.manifests(head.table.io)
    (entry,) = manifest.fetch_manifest_entry(head.table.io)
    paths = (head.contents.manifest_list, manifest.manifest_path, entry.data_file.file_path)
    return Path(local_path(dict(zip(KINDS, paths, strict=True))[kind]))


@pytest.fixture
def shard(home: Settings) -> Shard:
    """A shard whose contents are the rows 5 from time 5, and 5 and 7 from time 7 on."""
    shard = Shards.connect(home).create("planes", schema=SCHEMA)
    publish(shard, 5)
    publish(shard, 7)
    return shard


def test_a_sound_shard_has_no_damage(shard: Shard) -> None:
    assert find_damage(shard.load(), is_read=lambda _: True) == []


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_whoever_runs_into_damage_is_told_the_file_and_what_still_reads(shard: Shard, kind: str, how: str) -> None:
    path = newest(shard, kind)
    DAMAGES[how](path)
    with pytest.raises(CorruptState) as caught:
        read_arrow(shard)
    assert path.name in str(caught.value)
    assert "`tidemark read planes --as-of 6`" in str(caught.value)
    assert "backup" in caught.value.hint
    assert caught.value.sample[0]["refs"] == (["main", "updates"] if kind == "data file" else ["main"])
    assert read_arrow(shard, 6).to_pylist() == [{"id": 5, "name": "a"}]
    assert ("the changes" in str(caught.value)) is (kind != "data file")


@pytest.mark.parametrize("how", DAMAGES)
def test_nothing_is_committed_on_top_of_a_damaged_list_and_a_run_reports_it(
    shard: Shard, home: Settings, how: str
) -> None:
    path = newest(shard, "manifest list")
    DAMAGES[how](path)
    with pytest.raises(CorruptState, match=path.name):
        Writer.raise_token(shard, 0)
    report = compact_all(deployment_of(home), ["planes"], start_spark=pytest.fail)
    assert report.exit_code == ExitCode.NOT_POSSIBLE
    error = report.collections["planes"].error
    assert error is not None
    assert "What still reads" in error.message


def test_a_bug_stays_a_bug_and_damage_explains_whatever_goes_wrong(shard: Shard, home: Settings) -> None:
    def fail() -> None:
        raise SystemError("from anywhere, say a Spark job")

    def outcome() -> tuple[str, ExitCode]:
        error = isolate("planes", fail, clock=SystemClock(), settings=home).error
        assert error is not None
        return error.kind, error.exit_code

    assert outcome() == ("SystemError", ExitCode.BUG)
    newest(shard, "data file").unlink()
    assert outcome() == ("CorruptState", ExitCode.NOT_POSSIBLE)


def test_damage_is_found_in_every_ref_and_in_old_contents(home: Settings) -> None:
    shards = Shards.connect(home)
    shard = shards.create("planes", schema=SCHEMA)
    for number in (5, 7):
        publish(shard, number)
    head = shard.load()
    old = head.table.metadata.snapshot_by_id(head.contents.parent_snapshot_id)
    Path(local_path(old.manifest_list)).unlink()
    (damaged,) = find_damage(head)
    error = describe(head, [damaged])
    assert (damaged.damage, error.sample[0]["refs"]) == ("is gone", [])
    assert "(of older contents)" in str(error)
    assert "the present contents" in str(error)
    assert read_arrow(shard).num_rows == 2
    assert changes_arrow(shard, 0).num_rows == 2


def test_rows_that_cannot_be_read_are_found_by_reading_them(shard: Shard) -> None:
    path = newest(shard, "data file")
    content = bytearray(path.read_bytes())
    content[4:60] = bytes(each ^ 0xFF for each in content[4:60])  # of the first column; the footer is sound
    path.write_bytes(content)
    assert find_damage(shard.load()) == []
    (damaged,) = find_damage(shard.load(), is_read=lambda _: True)
    assert "cannot be read" in damaged.damage
    with pytest.raises(CorruptState, match=path.name):
        read_arrow(shard)


def test_garbage_of_any_kind_is_damage_and_crashes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "snap.avro"
    for seed in range(200):
        garbage = random.Random(seed).randbytes(300)  # noqa: S311 - the same bytes in each run
        path.write_bytes(garbage if seed % 2 else b"Obj\x01" + garbage)
        with pytest.raises(CorruptState, match="cut, or garbage"):
            list(read_manifest_list(CheckedFileIO().new_input(str(path))))
