"""Which comparison is chosen, and at which resolution, from counts alone."""

from __future__ import annotations

import math

import pytest

from tidemark.collections.reconcile.strategy import (
    COARSEST,
    DRIVER_CANDIDATES,
    DRIVER_ROWS,
    DRIVER_ROWS_AT_MOST,
    FINEST,
    LARGEST_CHANGE_RATE,
    Method,
    blend_change_rate,
    candidates_fit_driver,
    choose_bucket_count,
    choose_method,
    estimate_changes,
    fits_driver,
    kept_bucket_count,
    needs_finer_look,
)


@pytest.mark.parametrize(
    ("differing", "stored_rows", "is_keyed", "method"),
    [
        (0, 100, True, Method.DIGEST),
        (0, 0, True, Method.DIGEST),
        (5, 0, True, Method.LOAD),
        (5, 100, True, Method.BUCKETS),
        (5, 100, False, Method.BUCKETS),
        (4000, 100, True, Method.KEYED_JOIN),
        (4000, 100, False, Method.ROW_HASH_UNION),
    ],
)
def test_method_follows_the_differing_buckets(
    *, differing: int, stored_rows: int, is_keyed: bool, method: Method
) -> None:
    chosen = choose_method(differing=differing, bucket_count=4096, stored_rows=stored_rows, is_keyed=is_keyed)
    assert chosen is method


def test_number_of_changes_is_told_from_the_buckets_they_hit() -> None:
    assert estimate_changes(0, 4096) == 0
    assert estimate_changes(1, 1 << 16) == pytest.approx(1, rel=1e-3)
    assert estimate_changes(37_112, 1 << 16) == pytest.approx(54_780, rel=0.02)  # as measured
    assert estimate_changes(4096, 4096) == math.inf


def test_resolution_follows_the_change_rate() -> None:
    rows = 5_000_000
    counts = [choose_bucket_count(rows=rows, change_rate=rate) for rate in (0.0001, 0.001, 0.01)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
    assert all(COARSEST <= count <= FINEST for count in counts)
    assert all(count & (count - 1) == 0 for count in counts), "a power of two, so that digests nest"
    assert choose_bucket_count(rows=100, change_rate=1.0) == COARSEST


@pytest.mark.parametrize(
    ("rows", "change_rate", "bits"),
    [(5_000_000, 0.002, 18), (5_000_000, 0.02, 20), (20_000_000, 0.002, 19), (20_000_000, 0.02, 21)],
)
def test_resolution_is_the_one_that_was_measured_to_be_best(rows: int, change_rate: float, bits: int) -> None:
    assert choose_bucket_count(rows=rows, change_rate=change_rate) == 1 << bits


def test_look_is_never_finer_than_what_is_kept() -> None:
    for rows in (0, 100, 100_000, 5_000_000, 10**9):
        for rate in (0.0, 0.001, 1.0):
            kept = kept_bucket_count(rows=rows, change_rate=rate)
            assert choose_bucket_count(rows=rows, change_rate=rate) <= kept


@pytest.mark.parametrize(
    ("rows", "change_rate", "bits"),
    [(0, 0.0, 12), (5_000_000, 0.0, 18), (5_000_000, 0.02, 20), (100_000, 0.02, 14), (10**9, 0.02, 21)],
)
def test_kept_digest_is_fine_enough_for_the_usual_changes(rows: int, change_rate: float, bits: int) -> None:
    assert kept_bucket_count(rows=rows, change_rate=change_rate) == 1 << bits


@pytest.mark.parametrize(
    ("differing", "finest", "needed"), [(1000, 65536, False), (2000, 65536, True), (2000, 4096, False)]
)
def test_source_is_looked_at_again_when_finer_buckets_will_tell_more(
    *, differing: int, finest: int, needed: bool
) -> None:
    assert needs_finer_look(differing=differing, bucket_count=4096, finest=finest) is needed


def test_no_second_look_when_everything_differs() -> None:
    assert not needs_finer_look(differing=4096, bucket_count=4096, finest=65536)


def test_change_rate_is_half_the_last_run_and_bounded() -> None:
    assert blend_change_rate(0.0, changed=10, rows=1000) == 0.01
    assert blend_change_rate(0.01, changed=5, rows=1000) == 0.0075
    assert blend_change_rate(0.0, changed=1000, rows=1000) == LARGEST_CHANGE_RATE
    assert blend_change_rate(0.0, changed=0, rows=0) == 0


def test_driver_compares_what_fits_by_rows_and_by_bytes() -> None:
    assert candidates_fit_driver(DRIVER_CANDIDATES, 64, Method.BUCKETS)
    assert not candidates_fit_driver(DRIVER_CANDIDATES + 1, 64, Method.BUCKETS)
    assert not candidates_fit_driver(DRIVER_CANDIDATES, 10_000, Method.BUCKETS)


def test_driver_takes_few_rows_of_a_load_whose_size_nobody_knows() -> None:
    assert candidates_fit_driver(DRIVER_ROWS, 64, Method.LOAD)
    assert not candidates_fit_driver(DRIVER_ROWS + 1, 64, Method.LOAD)


@pytest.mark.parametrize(
    ("expected", "at_most", "fits"),
    [
        (math.inf, DRIVER_ROWS, True),
        (math.inf, DRIVER_ROWS + 1, False),
        (DRIVER_ROWS, DRIVER_ROWS_AT_MOST, True),
        (DRIVER_ROWS + 1, DRIVER_ROWS_AT_MOST, False),
        (1, DRIVER_ROWS_AT_MOST + 1, False),
    ],
)
def test_driver_takes_what_is_expected_and_bounded(*, expected: float, at_most: int, fits: bool) -> None:
    assert fits_driver(expected=expected, at_most=at_most) is fits
