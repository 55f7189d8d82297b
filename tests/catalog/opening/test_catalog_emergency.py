"""Opening the stash alone in an emergency: what it gives up, and when it is refused."""

from __future__ import annotations

import pytest

from tests.support.catalog.interventions import set_kind
from tests.support.clock import SteppedClock
from tests.support.homes import EMERGENCY, MIGRATE, ROLLBACK, Home, put
from tidemark.catalog.items.kinds import CatalogKind
from tidemark.errors import FencedByEpoch, Refused, Unreachable

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
