"""The digests of files come back as they were, or not at all, and add up to the digest of all rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.collections.digest.digest import Digest, layout_of
from tidemark.collections.digest.file_digests import FileDigest, FileDigests, choose_file_buckets
from tidemark.errors import CorruptState

LAYOUT = layout_of([("a", "int")], ["a"])
LONGS = st.integers(min_value=-(2**63), max_value=2**63 - 1)
TEXT = st.text(max_size=4)
FILES = st.dictionaries(TEXT, st.tuples(TEXT, st.lists(LONGS, max_size=5), st.none() | st.tuples(LONGS, LONGS)))


def digests_of(files: dict[str, tuple[str, list[int], tuple[int, int] | None]], buckets: int = 16) -> FileDigests:
    def of(rows: list[int]) -> Digest:
        hashes = np.array(rows, dtype=np.int64)
        return Digest.of_hashes(hashes, hashes, buckets)

    described = {name: FileDigest(state, of(rows), bounds) for name, (state, rows, bounds) in files.items()}
    return FileDigests("d", described)


@given(files=FILES, buckets=st.sampled_from([16, 64]))
def test_what_is_written_is_read(files: dict[str, tuple[str, list[int], tuple[int, int] | None]], buckets: int) -> None:
    digests = digests_of(files, buckets)
    assert digests.has_sums
    read = FileDigests.from_bytes(digests.to_bytes(LAYOUT), LAYOUT)
    assert read is not None
    assert read.says_the_same_as(digests)
    assert list(read.files) == list(files)
    for name, file in digests.files.items():
        assert (read.files[name].state, read.files[name].bounds) == (file.state, file.bounds)
        assert np.array_equal(read.files[name].digest.sums, file.digest.sums)
    rows = [row for _, some, _ in files.values() for row in some]
    assert len(read.total().differing(digests_of({"all": ("", rows, None)}, buckets).total())) == 0


def test_the_states_of_files_are_kept_without_digests() -> None:
    digests = FileDigests("d", {name: FileDigest(name, Digest.empty(0)) for name in "ab"})
    assert not digests.has_sums
    read = FileDigests.from_bytes(digests.to_bytes(LAYOUT), LAYOUT)
    assert read is not None
    assert not read.has_sums
    assert read.says_the_same_as(digests)


def test_files_in_another_state_or_of_another_reading_are_others() -> None:
    digests = digests_of({"a": ("1", [5], None)})
    assert not digests.says_the_same_as(digests_of({"a": ("2", [5], None)}))
    assert not digests.says_the_same_as(digests_of({"b": ("1", [5], None)}))
    assert not digests.says_the_same_as(FileDigests("other", digests.files))


def test_digests_of_other_columns_are_of_no_use() -> None:
    blob = digests_of({"a": ("1", [5], None)}).to_bytes(LAYOUT)
    assert FileDigests.from_bytes(blob, layout_of([("a", "bigint")], ["a"])) is None


@given(data=st.data())
def test_damage_is_an_error_and_no_other_digest(data: st.DataObject) -> None:
    blob = bytearray(digests_of({"a": ("1", [5, 6], (5, 6)), "b": ("2", [7], None)}).to_bytes(LAYOUT))
    place = data.draw(st.integers(0, len(blob) - 1))
    if data.draw(st.booleans()):
        blob[place] ^= data.draw(st.integers(1, 255))
    else:
        del blob[place:]
    with pytest.raises(CorruptState):
        FileDigests.from_bytes(bytes(blob), LAYOUT)


@pytest.mark.parametrize(
    ("rows", "files", "buckets"),
    [(0, 1, 16), (100, 1, 128), (20_000_000, 100, 1 << 12), (20_000_000, 1000, 1 << 10), (10**9, 60_000, 16),
     (10**9, 70_000, None)],
)  # fmt: skip
def test_buckets_of_files_are_as_many_as_their_rows_unless_that_is_too_much(
    rows: int, files: int, buckets: int | None
) -> None:
    assert choose_file_buckets(rows=rows, files=files) == buckets


def test_buckets_become_fewer_as_files_become_more() -> None:
    many = {f"f{n}": ("1", [n, -n], None) for n in range(600)}
    fitted = digests_of(many, buckets=1 << 12).fitted()
    assert fitted is not None
    assert fitted.bucket_count == 16
    assert len(fitted.total().differing(digests_of(many).total())) == 0
    assert fitted.fitted() is fitted
    assert FileDigests("", dict.fromkeys(map(str, range(70_000)), next(iter(fitted.files.values())))).fitted() is None
