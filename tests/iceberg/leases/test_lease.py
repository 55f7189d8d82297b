"""Which leases are live: what a watcher sees decides, and no clock but its own monotonic one."""

from __future__ import annotations

from dataclasses import replace

from tidemark.iceberg.leases.lease import Lease, Watch

LEASE = Lease(
    id="a",
    operation="reconcile",
    collections=("planes", "flights"),
    generation=3,
    writer="east:17",
    length_s=30.0,
    began_ms=10_000,
    beat=4,
    renewed_ms=20_000,
)
DAY_MS = 24 * 3600 * 1000


def renewed(lease: Lease, *, clock_jumps_by_ms: int = 0) -> Lease:
    return replace(lease, beat=lease.beat + 1, renewed_ms=lease.renewed_ms + 5_000 + clock_jumps_by_ms)


def look_for(watch: Watch, seconds: int, *leases: Lease, from_s: int = 0) -> bool:
    """Look each second; return whether all is decided at the end."""
    return [watch.look(leases, now_s=from_s + second) for second in range(seconds + 1)][-1]


def test_without_leases_there_is_nothing_to_wait_for() -> None:
    watch = Watch()
    assert watch.look([], now_s=5.0)
    assert (watch.live, watch.lapsed) == ({}, {})


def test_a_lease_is_live_once_it_is_seen_renewed() -> None:
    watch = Watch()
    assert not look_for(watch, 5, LEASE)
    assert (watch.live, watch.lapsed) == ({}, {})
    assert watch.look([renewed(LEASE)], now_s=6.0)
    assert watch.live == {"a": renewed(LEASE)}


def test_a_lease_that_stays_as_it_is_for_its_length_has_run_out() -> None:
    watch = Watch()
    assert not look_for(watch, 29, LEASE)
    assert watch.look([LEASE], now_s=30.0)
    assert (watch.live, watch.lapsed) == ({}, {"a": LEASE})


def test_a_process_that_goes_on_is_live_again() -> None:
    watch = Watch()
    look_for(watch, 40, LEASE)
    assert watch.look([renewed(LEASE)], now_s=41.0)
    assert (watch.live.keys(), watch.lapsed) == ({"a"}, {})


def test_the_clock_of_the_database_may_jump() -> None:
    for jump_ms in (DAY_MS, -DAY_MS):
        watch = Watch()
        look_for(watch, 5, LEASE)
        watch.look([renewed(LEASE, clock_jumps_by_ms=jump_ms)], now_s=6.0)
        assert watch.live
        watch = Watch()
        look_for(watch, 30, replace(LEASE, renewed_ms=LEASE.renewed_ms + jump_ms))
        assert watch.lapsed


def test_a_watcher_that_stood_still_has_not_watched() -> None:
    watch = Watch()
    assert not look_for(watch, 1, LEASE)
    assert not watch.look([LEASE], now_s=3_600.0)
    assert not watch.lapsed


def test_what_begins_during_the_watch_is_live_and_what_ends_is_neither() -> None:
    watch = Watch()
    watch.look([LEASE], now_s=0.0)
    other = replace(LEASE, id="b", beat=0)
    assert not watch.look([LEASE, other], now_s=1.0)
    assert watch.live == {"b": other}
    assert watch.look([other], now_s=2.0)
    assert (watch.live, watch.lapsed) == ({"b": other}, {})
    assert watch.look([], now_s=3.0)
    assert (watch.live, watch.lapsed) == ({}, {})


def test_a_lease_concerns_its_collections_and_what_is_kept_beside_them() -> None:
    assert LEASE.concerns("planes")
    assert LEASE.concerns("planes_quarantine")
    assert not LEASE.concerns("weather")
    assert replace(LEASE, collections=()).concerns("weather")


def test_a_lease_says_whose_it_is() -> None:
    assert str(LEASE) == "reconcile of planes, flights in east:17 (deployment 3)"
    assert LEASE.to_json(now_ms=23_500) == {
        "operation": "reconcile",
        "collections": ["planes", "flights"],
        "generation": 3,
        "writer": "east:17",
        "since": 10_000,
        "renewed_s_ago": 3.5,
        "lease_s": 30.0,
    }
    assert LEASE.to_json(now_ms=0)["renewed_s_ago"] == 0.0


def test_an_older_lease_tells_nothing_of_a_later_commit() -> None:
    assert LEASE.was_held_at(20_000)
    assert LEASE.was_held_at(50_000), "the last renewal may be as old as a lease is long"
    assert not LEASE.was_held_at(50_001)
    assert not LEASE.was_held_at(None)
