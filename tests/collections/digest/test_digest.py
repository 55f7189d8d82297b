"""Digests add up, nest, and come back from their file; a digest of another layout is of no use."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.collections.digest.digest import (
    Digest,
    DigestNote,
    add_corrections,
    digest_from_bytes,
    digest_to_bytes,
    layout_of,
)
from tidemark.errors import CorruptState

LONGS = st.integers(min_value=-(2**63), max_value=2**63 - 1)
ROWS = st.lists(st.tuples(LONGS, LONGS), max_size=30)
LAYOUT = layout_of([("a", "int"), ("b", "string")], ["a"])


def digest_of(rows: list[tuple[int, int]], buckets: int, diff: int = 1) -> Digest:
    positions, hashes = (np.array([row[n] for row in rows], dtype=np.int64) for n in (0, 1))
    return Digest.of_hashes(positions, hashes, buckets, diff=diff)


def equal(left: Digest, right: Digest) -> bool:
    return left.bucket_count == right.bucket_count and len(left.differing(right)) == 0


@given(first=ROWS, second=ROWS)
def test_digest_of_two_multisets_is_the_sum_of_their_digests(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    assert equal(digest_of(first, 64) + digest_of(second, 64), digest_of(first + second, 64))


@given(rows=ROWS, retracted=ROWS)
def test_retractions_take_away_what_was_added(rows: list[tuple[int, int]], retracted: list[tuple[int, int]]) -> None:
    both = digest_of(rows + retracted, 64)
    assert equal(both + digest_of(retracted, 64, diff=-1), digest_of(rows, 64))
    assert equal(both + -digest_of(retracted, 64), digest_of(rows, 64))


@given(rows=ROWS)
def test_fine_buckets_add_up_to_coarse_ones(rows: list[tuple[int, int]]) -> None:
    assert equal(digest_of(rows, 256).fold(16), digest_of(rows, 16))
    assert equal(digest_of(rows, 256) + Digest.empty(16), digest_of(rows, 16))


@given(rows=ROWS, changed=st.tuples(LONGS, LONGS))
def test_one_more_row_shows_in_its_bucket_alone(rows: list[tuple[int, int]], changed: tuple[int, int]) -> None:
    differing = digest_of(rows, 64).differing(digest_of([*rows, changed], 64))
    assert differing.tolist() == [changed[0] & 63]


def test_coarse_digest_cannot_be_split() -> None:
    with pytest.raises(ValueError, match="cannot be split"):
        Digest.empty(16).fold(32)


@given(rows=ROWS, first=ROWS, second=ROWS, is_known=st.booleans())
def test_corrections_of_one_collection_add_up(
    rows: list[tuple[int, int]], first: list[tuple[int, int]], second: list[tuple[int, int]], *, is_known: bool
) -> None:
    is_empty = not rows and not is_known
    before = None if is_empty else digest_to_bytes(digest_of(rows, 64), LAYOUT)
    after = [digest_to_bytes(digest_of(rows + more, count), LAYOUT) for more, count in ((first, 64), (second, 256))]
    added = add_corrections(before, after, is_empty=is_empty)
    assert added is not None
    read = digest_from_bytes(added, LAYOUT)
    assert read is not None
    assert equal(read, digest_of(rows + first + second, 64))


@pytest.mark.parametrize(
    ("before", "after"), [(None, ()), (b"TMDG", ()), ((), None), ((), b""), ("other", ()), ((), "other")]
)
def test_corrections_with_an_unknown_digest_add_up_to_an_unknown_one(before: object, after: object) -> None:
    fine = digest_to_bytes(Digest.empty(16), LAYOUT)
    other = digest_to_bytes(Digest.empty(16), layout_of([("a", "int")], []))
    known = {(): fine, "other": other}
    blobs = [known.get(blob, blob) for blob in (before, after)]  # type: ignore[call-overload]
    assert add_corrections(blobs[0], [fine, blobs[1]], is_empty=False) is None


@given(rows=ROWS)
def test_digest_comes_back_from_its_file(rows: list[tuple[int, int]]) -> None:
    read = digest_from_bytes(digest_to_bytes(digest_of(rows, 64), LAYOUT), LAYOUT)
    assert read is not None
    assert equal(read, digest_of(rows, 64))
    assert read.row_count == len(rows)


def test_digest_of_another_layout_is_of_no_use() -> None:
    blob = digest_to_bytes(Digest.empty(16), LAYOUT)
    assert digest_from_bytes(blob, layout_of([("a", "int"), ("b", "string")], [])) is None
    assert digest_from_bytes(blob, layout_of([("a", "bigint"), ("b", "string")], ["a"])) is None


@pytest.mark.parametrize("position", [0, 4, 8, 20, -1])
def test_damaged_digest_is_refused(position: int) -> None:
    blob = bytearray(digest_to_bytes(Digest.empty(16), LAYOUT))
    blob[position] ^= 0x81
    with pytest.raises(CorruptState):
        digest_from_bytes(bytes(blob), LAYOUT)


@pytest.mark.parametrize("source", ["", "0123456789abcdef"])
def test_note_comes_back_from_its_text(source: str) -> None:
    note = DigestNote(1 << 16, 0.00125, is_quiet=True, source=source)
    assert DigestNote.parse(str(note)) == note
    assert DigestNote.parse("") is None
    assert DigestNote.parse("something else") is None


@pytest.mark.parametrize("source", ["", "ab"])
@pytest.mark.parametrize("compared_ms", [0, 7])
@pytest.mark.parametrize("mark", ["", "0-a:-5:2:beef"])
def test_note_keeps_each_part_that_it_has(source: str, compared_ms: int, mark: str) -> None:
    note = DigestNote(4, 0.5, is_quiet=False, source=source, compared_ms=compared_ms, mark=mark)
    assert DigestNote.parse(str(note)) == note


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", DigestNote(4, 0.5, is_quiet=True)),
        (" source=ab compared=0", DigestNote(4, 0.5, is_quiet=True, source="ab")),
        (" source=ab compared=7 at=x", DigestNote(4, 0.5, is_quiet=True, source="ab", compared_ms=7, mark="x")),
    ],
)
def test_notes_of_earlier_versions_are_read(text: str, expected: DigestNote) -> None:
    assert DigestNote.parse(f"buckets=4 change-rate=0.5 quiet=yes{text}") == expected


@pytest.mark.parametrize(
    ("before", "now", "was_quiet", "expected"),
    [
        ("aa", "aa", False, True),  # corrected by the last run, and not touched since
        ("aa", "bb", True, False),
        ("", "bb", True, True),  # where nothing is known of the source, habit decides
        ("aa", "", False, False),
        ("", "", True, True),
    ],
)
def test_source_as_it_was_lets_expect_nothing(before: str, now: str, *, was_quiet: bool, expected: bool) -> None:
    assert DigestNote(1 << 16, 0.0, is_quiet=was_quiet, source=before).expects_nothing(now) is expected
