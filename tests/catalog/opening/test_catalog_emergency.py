"""Opening the stash alone in an emergency: what it gives up, and when it is refused."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.support.catalog.interventions import set_kind
from tests.support.clock import SteppedClock
from tests.support.homes import EMERGENCY, MIGRATE, ROLLBACK, Home, put
from tests.support.leases import leased, wait_for
from tidemark.catalog.items.kinds import CatalogKind
from tidemark.errors import FencedByEpoch, Refused, Unreachable
from tidemark.iceberg.leases.holding import holding

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.settings import Settings

pytestmark = pytest.mark.slow  # stores that are really written, again and again


@pytest.mark.parametrize("forced", [False, True])
def test_an_emergency_before_any_migration_opens_the_stash_alone(*, home: Home, forced: bool) -> None:
    home.open_stash(add=["row"])
    home.open(EMERGENCY, add=["later"], is_forced=forced)
    assert home.ends.persist.head().epoch is None, "the persist catalog was not touched"
    assert (home.truth(), home.setting_names()) == ("stash", {"row", "later"})


def test_what_is_written_in_an_emergency_is_seen_by_every_later_open(any_home: Home) -> None:
    any_home.open(ROLLBACK, add=["row"])
    any_home.open(MIGRATE, add=["only on persist"])
    any_home.open(EMERGENCY, add=["in need"], is_forced=True)
    assert (any_home.truth(), any_home.setting_names()) == ("stash", {"row", "in need"})
    set_kind(any_home, CatalogKind.PERSIST)
    assert any_home.catalog.truth().catalog_kind is CatalogKind.PERSIST
    any_home.open()
    assert (any_home.truth(), any_home.setting_names()) == ("persist", {"row", "in need"})


def test_an_emergency_is_refused_while_a_leader_may_live_on_the_persist_catalog(any_home: Home) -> None:
    clock = SteppedClock(10**12)
    catalog = type(any_home.catalog).of(any_home.settings, clock=clock)
    leader = catalog.open(MIGRATE)
    before = any_home.dumps()
    clock.step(4 * 60_000)
    with pytest.raises(Refused, match=r"heard of 2[34][0-9] s ago"):
        catalog.open(EMERGENCY)
    assert any_home.dumps() == before
    put(leader.truth, "beat")
    clock.step(4 * 60_000)
    with pytest.raises(Refused, match=r"heard of 2[34][0-9] s ago"):
        catalog.open(EMERGENCY)
    clock.step(60_000)
    catalog.open(EMERGENCY).close()
    assert any_home.truth() == "stash"
    put(leader.truth, "lost")  # by design: nobody fenced it, and what it writes is garbage
    any_home.open(MIGRATE)
    with pytest.raises(FencedByEpoch):
        put(leader.truth, "too late")
    leader.close()
    assert any_home.setting_names() == set()


def test_an_emergency_needs_force_if_the_persist_catalog_cannot_be_asked(home: Home) -> None:
    home.open(MIGRATE)

    def silent() -> int:
        raise Unreachable("no answer")

    catalog = type(home.catalog)(home.ends, silent)
    with pytest.raises(Refused, match="cannot be told: no answer"):
        catalog.open(EMERGENCY)
    catalog.open(EMERGENCY, is_forced=True).close()
    assert home.truth() == "stash"


# -- leases --------------------------------------------------------------------------------------------------------


SIX_MINUTES_MS = 6 * 60_000


def with_short_leases(home: Home) -> Home:
    return Home(replace(home.settings, lease_s=3.0))


def test_a_leader_that_computes_for_long_is_alive_by_its_lease(any_home: Home) -> None:
    home, clock = with_short_leases(any_home), SteppedClock(10**12)
    catalog = type(home.catalog).of(home.settings, clock=clock)
    catalog.open(MIGRATE).close()
    clock.step(SIX_MINUTES_MS)
    before = home.dumps()
    with leased(home.settings, "reconcile", ("planes",)) as process:
        with pytest.raises(Refused, match=rf"at work are reconcile of planes in .*:{process.pid} \(deployment 1\)"):
            catalog.open(EMERGENCY)
        assert home.dumps() == before
    catalog.open(EMERGENCY).close()
    assert home.truth() == "stash"


@pytest.mark.crash
@pytest.mark.parametrize("end", [signal.SIGSTOP, signal.SIGKILL])
def test_an_emergency_is_allowed_once_the_lease_of_the_last_writer_has_run_out(any_home: Home, end: int) -> None:
    """However new its last commit is: the process was seen not to go on."""
    home = with_short_leases(any_home)
    with leased(home.settings, "migrate", (), work=migrate_and_compute) as process:
        wait_for(lambda: home.ends.stash.head().tombstone)
        with pytest.raises(Refused, match="at work are migrate in"):
            home.open(EMERGENCY)
        process.signal(end)
        home.open(EMERGENCY)
        assert home.truth() == "stash"


def test_a_lease_that_has_run_out_says_nothing_of_the_commits_of_others(home: Home) -> None:
    home = with_short_leases(home)
    home.open(MIGRATE)
    with leased(home.settings, "reconcile", ()) as process:
        process.signal(signal.SIGKILL)
        home.open(MIGRATE)
        with pytest.raises(Refused, match=r"heard of \d+ s ago"):
            home.open(EMERGENCY)


def test_an_open_under_a_lease_is_not_in_its_own_way(home: Home) -> None:
    home.open(MIGRATE)
    set_kind(home, CatalogKind.EMERGENCY_STASH)
    with holding(home.settings, "catalog open"), pytest.raises(Refused, match="heard of"):
        home.open()


def migrate_and_compute(settings: Settings, operation: str, collections: tuple[str, ...], until: Path) -> None:
    with holding(settings, operation, collections):
        Home(settings).open(MIGRATE)
        wait_for(until.exists)
