"""A migration in parts, each of them killed, cleared, late, or run twice; on files and on servers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.conftest import settings_in
from tests.support.catalog.interventions import run_in_child, set_kind
from tests.support.catalog.migration_parts import PARTS, Workflow, migrate_in_parts, roll_back_in_parts
from tests.support.homes import MIGRATE, ROLLBACK, Home, put
from tidemark.catalog.items.kinds import AUDIT_EVENT, CATALOG_KIND, SETTING
from tidemark.catalog.migration import steps as migration
from tidemark.catalog.migration.plan import make_plan, present_digest
from tidemark.catalog.migration.steps import fence
from tidemark.catalog.opening.protocol import FENCE_PERSIST, SET_TOMBSTONE, WRITE_STASH
from tidemark.catalog.opening.resume import Fences
from tidemark.errors import CorruptState, FencedByEpoch, NotPossible, Refused, StaleState
from tidemark.fail_points import FAIL_POINT_EXIT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tidemark.catalog.opening.opening import Direction

pytestmark = pytest.mark.slow  # stores that are really written, again and again

TRUTH = {MIGRATE: "persist", ROLLBACK: "stash"}
OTHER = {MIGRATE: ROLLBACK, ROLLBACK: MIGRATE}
DIRECTIONS = pytest.mark.parametrize("direction", [MIGRATE, ROLLBACK])
# Where a process dies between two durable steps.
POINTS = {
    MIGRATE: (
        "migration.after-plan",
        "catalog.after-fence-stash",
        "catalog.after-fence-persist",
        "catalog.after-write-persist",
        "catalog.after-set-tombstone",
        "catalog.after-announce",
    ),
    ROLLBACK: ("catalog.after-fence-stash", "catalog.after-write-stash", "catalog.after-announce"),
}
CHILD = {MIGRATE: migrate_in_parts, ROLLBACK: roll_back_in_parts}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """An empty home: two files."""
    return Home(settings_in(tmp_path))


def start(home: Home, direction: Direction) -> Workflow:
    """A home whose truth is where ``direction`` leads away from, with garbage on the other side."""
    home.open(MIGRATE, add=["garbage"])
    home.open(ROLLBACK)
    if direction is ROLLBACK:
        home.open(MIGRATE)
    with home.catalog.join() as leader:
        put(leader, "row")
        leader.transact(lambda transaction: transaction.delete(SETTING, lambda key, _: key.name == "garbage"))
    return Workflow(home, direction)


@DIRECTIONS
def test_it_goes_there_part_by_part(any_home: Home, direction: Direction) -> None:
    workflow = start(any_home, direction)
    before = any_home.epochs()
    after = workflow.run()
    assert (after["truth"], any_home.setting_names()) == (TRUTH[direction], {"row"})
    assert any_home.setting_names_of("stash") == any_home.setting_names_of("persist") == {"row"}, "the garbage is gone"
    assert list(any_home.epochs()) == [max(e for e in before if e) + 1] * 2, "one epoch for all parts"
    assert workflow.results["copy"][0] == "driver"


@DIRECTIONS
def test_each_part_may_be_cleared_after_everything_is_done(home: Home, direction: Direction) -> None:
    workflow = start(home, direction)
    workflow.run()
    with home.catalog.join() as task:
        put(task, "acknowledged")
        audited = len(task.snapshot().of_kind(AUDIT_EVENT.name))
    epochs = home.epochs()
    for part in PARTS[direction]:
        if part in {"plan", "fence"}:
            continue
        workflow.run(part)
    with pytest.raises(Refused, match="when the plan was approved"):
        workflow.run("fence")
    assert (home.truth(), home.setting_names(), home.epochs()) == (TRUTH[direction], {"row", "acknowledged"}, epochs)
    with home.catalog.join() as task:
        assert len(task.snapshot().of_kind(AUDIT_EVENT.name)) == audited
    assert make_plan(home.catalog, direction).is_done


@DIRECTIONS
def test_it_may_be_started_over_from_any_part_before_the_flip(home: Home, direction: Direction) -> None:
    workflow = start(home, direction)
    flips = "flip" if direction is MIGRATE else "copy"
    parts = PARTS[direction]
    for part in parts[1 : parts.index(flips)]:
        workflow.run(*parts[: parts.index(part) + 1])
    workflow.run_from("fence")
    assert (home.truth(), home.setting_names()) == (TRUTH[direction], {"row"})


@DIRECTIONS
def test_a_part_whose_fences_are_not_the_present_ones_says_to_start_over(home: Home, direction: Direction) -> None:
    workflow = start(home, direction)
    workflow.run("plan", "fence", "look", "copy" if direction is MIGRATE else "look")
    if direction is MIGRATE:
        workflow.run("verify")
    home.open(OTHER[direction], add=["acknowledged"])
    for part in PARTS[direction][2:-1]:
        with pytest.raises(FencedByEpoch, match="somebody opened it since") as caught:
            workflow.run(part)
        assert "start over from the task that fences" in caught.value.hint
    with pytest.raises(Refused, match="when the plan was approved") as refused:
        workflow.run("fence")
    assert "ask again" in refused.value.hint
    assert (home.truth(), home.setting_names()) == (TRUTH[OTHER[direction]], {"row", "acknowledged"})
    workflow.run()
    assert (home.truth(), home.setting_names()) == (TRUTH[direction], {"row", "acknowledged"})


def test_a_plan_does_not_change_with_what_a_killed_copy_left(home: Home) -> None:
    workflow = start(home, MIGRATE)
    plan = make_plan(home.catalog, MIGRATE)
    assert (plan.report.inserted, plan.is_done, plan.is_led) != (0, False, True)
    workflow.run("plan", "fence", "look", "copy")
    again = make_plan(home.catalog, MIGRATE)
    assert (again.report.inserted, again.report.retracted) == (0, 0)
    assert again.digest == plan.digest
    assert not again.is_led, "nobody leads while it is under way"


@DIRECTIONS
def test_the_digest_of_a_plan_is_told_without_making_it(home: Home, direction: Direction) -> None:
    start(home, OTHER[direction]).run()
    for back in (False, True):  # also where there is nothing to do
        if back:
            home.open(direction)
        assert present_digest(home.catalog, direction) == make_plan(home.catalog, direction).digest


def test_a_plan_is_written_whole_under_its_digest(home: Home, tmp_path: Path) -> None:
    start(home, MIGRATE)
    plan = make_plan(home.catalog, MIGRATE)
    path = plan.write(tmp_path / "plans")
    assert path.name == f"migrate_catalog-{plan.digest[:16]}.json"
    found = json.loads(path.read_text())
    assert (found["plan_digest"], found["truth"], found["counts"]["setting"]) == (plan.digest, "persist", 1)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@DIRECTIONS
def test_what_was_changed_between_the_plan_and_the_fences_is_refused_and_the_open_given_up(
    home: Home, direction: Direction
) -> None:
    workflow = start(home, direction)
    workflow.run("plan")
    with home.catalog.join() as task:
        put(task, "late")
    with pytest.raises(Refused, match="when the plan was approved"):
        workflow.run("fence")
    # Between the second look at the plan and the fence, which no test can hit: so it approves what it finds.
    approved = make_plan(home.catalog, direction).digest
    fences = fence(home.catalog, direction, approved=approved)
    with pytest.raises(Refused, match="just before it was fenced"):
        migration.look(home.catalog, direction, fences, approved=workflow.results["plan"])
    with home.catalog.join() as task:
        put(task, "acknowledged")  # tasks go on where the truth is
    for part in ("look", "copy"):
        with pytest.raises(FencedByEpoch, match="given up"):
            _again(workflow, part, fences)
    assert (home.truth(), home.setting_names()) == (TRUTH[OTHER[direction]], {"row", "late", "acknowledged"})


def _again(workflow: Workflow, part: str, fences: Fences) -> None:
    workflow._path.write_text(json.dumps({**workflow.results, "fence": fences.to_json()}))
    workflow.run(part)


@DIRECTIONS
def test_where_nothing_is_to_be_copied_the_other_side_may_hold_anything(home: Home, direction: Direction) -> None:
    """The truth is there already, and an open died: the run makes a leader of it, and ends well."""
    start(home, OTHER[direction])
    home.die_after(direction, FENCE_PERSIST)
    workflow = Workflow(home, direction)
    after = workflow.run()
    assert (after["truth"], home.setting_names()) == (TRUTH[direction], {"row"})
    assert workflow.results["copy"] == ["driver"], "nothing was copied"


@DIRECTIONS
def test_an_announcement_that_comes_again_leaves_what_was_set_since(home: Home, direction: Direction) -> None:
    workflow = start(home, direction)
    workflow.run()
    with home.catalog.join() as task:
        task.transact(lambda transaction: transaction.set_config(CATALOG_KIND, OTHER[direction].catalog_kind))
    before = home.dumps()
    workflow.run("announce")
    assert home.dumps() == before


def test_nothing_flips_but_what_was_verified_under_the_same_fences(home: Home) -> None:
    workflow = start(home, MIGRATE)
    workflow.run("plan", "fence", "look", "copy", "verify", "fence")
    with pytest.raises(FencedByEpoch, match="verified under other fences"):
        workflow.run("flip")
    with pytest.raises(NotPossible, match="has not come to its end"):
        workflow.run("announce")
    assert home.truth() == "stash"
    with pytest.raises(StaleState):
        home.catalog.join()
    workflow.run_from("look")
    assert (home.truth(), home.setting_names()) == ("persist", {"row"})


def test_a_copy_that_does_not_show_its_source_is_not_flipped(home: Home) -> None:
    workflow = start(home, MIGRATE)
    workflow.run("plan", "fence", "look", "copy")
    with home.ends.persist.join(generation=1, clock=home.ends.clock) as persist:
        put(persist, "of nobody")
    with pytest.raises(CorruptState, match="1 items differ"):
        workflow.run("verify")
    workflow.run_from("copy")
    assert home.setting_names() == {"row"}


def test_two_runs_at_once_harm_nothing(home: Home) -> None:
    one = start(home, MIGRATE)
    one.run("plan", "fence", "look", "copy")
    first = dict(one.results)
    one.run("fence", "look", "copy", "verify", "flip", "announce")  # the other run, which fenced after the first one
    with home.catalog.join() as task:
        put(task, "acknowledged")
    one._path.write_text(json.dumps(first))
    for part in ("look", "copy", "verify", "announce"):
        with pytest.raises(FencedByEpoch):
            one.run(part)
    assert (home.truth(), home.setting_names()) == ("persist", {"row", "acknowledged"})


@DIRECTIONS
@pytest.mark.parametrize("last", ["fence", "look", "copy", "verify"])
def test_tasks_go_on_after_a_part_failed_for_good(home: Home, direction: Direction, last: str) -> None:
    workflow = start(home, direction)
    parts = PARTS[direction]
    workflow.run(*parts[: parts.index(last) + 1])
    fences = Fences.parse(workflow.results["fence"])
    flipped = direction is ROLLBACK and last in {"copy", "verify"}
    if flipped and last == "copy":
        with pytest.raises(NotPossible, match="was not verified"):
            migration.lead_again(home.catalog, direction, fences, is_verified=False)
        with pytest.raises(StaleState):
            home.catalog.join()
        return
    assert migration.lead_again(home.catalog, direction, fences, is_verified=last == "verify")
    with home.catalog.join() as task:
        put(task, "acknowledged")
    assert not migration.lead_again(home.catalog, direction, fences, is_verified=False), "once"
    for part in ("look", "copy", "verify"):  # also of a copy that outlives its task
        with pytest.raises(FencedByEpoch, match="somebody opened it since"):
            workflow.run(part)
    assert home.truth() == TRUTH[direction if flipped else OTHER[direction]]
    assert home.setting_names() == {"row", "acknowledged"}


def test_whoever_opens_the_catalog_meanwhile_is_left_alone(home: Home) -> None:
    workflow = start(home, MIGRATE)
    workflow.run("plan", "fence")
    fences = Fences.parse(workflow.results["fence"])
    home.die_after(MIGRATE, FENCE_PERSIST)
    assert migration.lead_again(home.catalog, MIGRATE, fences, is_verified=False), "an earlier try may have died there"
    workflow.run("plan", "fence")
    later = Fences.parse(workflow.results["fence"])
    home.die_after(MIGRATE, FENCE_PERSIST)
    home.die_after(MIGRATE, FENCE_PERSIST)
    assert not migration.lead_again(home.catalog, MIGRATE, later, is_verified=False)


WRITES = pytest.mark.parametrize("written", [[], ["acknowledged"]])


def fence_after(workflow: Workflow, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Fence, while somebody else acts between the last look at the plan and the first fence."""
    with monkeypatch.context() as patch:
        patch.setattr(migration, "fail_point", lambda _: act())
        workflow.run("fence")


def refused_and_given_up(workflow: Workflow, rows: set[str]) -> None:
    """The look is refused, tasks work where the truth is, and the parts that are cleared all the same do nothing."""
    home, direction = workflow.home, workflow.direction
    with pytest.raises(Refused, match="just before it was fenced") as refused:
        workflow.run("look")
    assert "ask again" in refused.value.hint
    assert (home.truth(), home.setting_names()) == (TRUTH[direction], rows)
    with home.catalog.join() as task:
        put(task, "later")
    before = home.dumps()
    workflow.run(*[part for part in PARTS[direction] if part not in {"plan", "fence"}])
    assert home.dumps() == before
    with pytest.raises(Refused, match="when the plan was approved"):
        workflow.run("fence")
    assert make_plan(home.catalog, direction).is_done


def events(home: Home) -> list[str]:
    with home.catalog.join() as task:
        return [json.loads(text)["operation"] for text in task.snapshot().of_kind(AUDIT_EVENT.name).values()]


@DIRECTIONS
@WRITES
def test_a_run_whose_work_another_one_completes_just_before_it_fences_gives_up(
    home: Home, monkeypatch: pytest.MonkeyPatch, direction: Direction, written: list[str]
) -> None:
    workflow = start(home, direction)
    workflow.run("plan")
    fence_after(workflow, monkeypatch, lambda: home.open(direction, add=written))
    refused_and_given_up(workflow, {"row", *written})


@DIRECTIONS
@WRITES
def test_a_flip_of_another_one_who_died_is_led_to_its_end_if_it_is_what_was_approved(
    home: Home, monkeypatch: pytest.MonkeyPatch, direction: Direction, written: list[str]
) -> None:
    workflow = start(home, direction)
    workflow.run("plan")
    audited = events(home)

    def die() -> None:
        with home.catalog.join() as task:
            put(task, *written)
        home.die_after(direction, SET_TOMBSTONE if direction is MIGRATE else WRITE_STASH)

    fence_after(workflow, monkeypatch, die)
    if written:
        refused_and_given_up(workflow, {"row", *written})
    else:
        workflow.run_from("look")
    assert (home.truth(), home.setting_names() - {"later"}) == (TRUTH[direction], {"row", *written})
    assert events(home) == [*audited, direction.value], "the flip is audited by whoever leads first"


@DIRECTIONS
@WRITES
def test_a_run_that_only_makes_a_leader_gives_up_if_another_one_led_and_wrote(
    home: Home, monkeypatch: pytest.MonkeyPatch, direction: Direction, written: list[str]
) -> None:
    start(home, OTHER[direction])
    home.die_after(direction, FENCE_PERSIST)
    workflow = Workflow(home, direction)
    workflow.run("plan")
    fence_after(workflow, monkeypatch, lambda: home.open(direction, add=written))
    if written:
        refused_and_given_up(workflow, {"row", *written})
    else:
        workflow.run_from("look")
    assert (home.truth(), home.setting_names() - {"later"}) == (TRUTH[direction], {"row", *written})


@DIRECTIONS
def test_what_was_wished_for_outlives_a_run_that_gives_up(
    home: Home, monkeypatch: pytest.MonkeyPatch, direction: Direction
) -> None:
    workflow = start(home, direction)
    workflow.run("plan")

    def complete_and_wish() -> None:
        home.open(direction)
        set_kind(home, OTHER[direction].catalog_kind)

    fence_after(workflow, monkeypatch, complete_and_wish)
    refused_and_given_up(workflow, {"row"})
    assert home.catalog.truth().catalog_kind is OTHER[direction].catalog_kind


@DIRECTIONS
def test_a_run_that_only_makes_a_leader_is_void_once_there_is_one(home: Home, direction: Direction) -> None:
    """Its plan is the same when it is done: a late twin of `fence` would stop everybody, and nobody would announce."""
    start(home, OTHER[direction])
    home.die_after(direction, FENCE_PERSIST)
    workflow = Workflow(home, direction)
    workflow.run()
    epochs = home.epochs()
    with pytest.raises(Refused, match="nothing left to do") as refused:
        workflow.run("fence")
    assert "ask again" in refused.value.hint
    assert home.epochs() == epochs
    home.catalog.join().close()


@DIRECTIONS
def test_a_look_after_the_flip_takes_it_for_its_own(home: Home, direction: Direction) -> None:
    workflow = start(home, direction)
    parts = PARTS[direction]
    workflow.run(*parts[: parts.index("announce")])
    assert workflow.run("look") is False
    workflow.run_from("copy")
    assert (home.truth(), home.setting_names()) == (TRUTH[direction], {"row"})


@pytest.mark.crash
@pytest.mark.parametrize(("direction", "point"), [(each, point) for each in POINTS for point in POINTS[each]])
def test_a_part_that_is_killed_is_run_again(home: Home, direction: Direction, point: str) -> None:
    workflow = start(home, direction)
    assert run_in_child(CHILD[direction], home, fail_point=point) == FAIL_POINT_EXIT, f"{point} was never reached"
    workflow.run_rest()
    assert (home.truth(), home.setting_names()) == (TRUTH[direction], {"row"})
    assert home.setting_names_of("stash") == home.setting_names_of("persist") == {"row"}
    audited = events(home)
    assert audited[-1] == direction.value
    assert audited.count(direction.value) == 2, "that of the preparation, and exactly one of this migration"


@pytest.mark.crash
def test_killed_while_it_gives_up_it_left_the_truth_to_others(home: Home) -> None:
    start(home, MIGRATE)
    assert run_in_child(give_up, home, fail_point="migration.after-giving-up") == FAIL_POINT_EXIT
    assert (home.truth(), home.setting_names()) == ("stash", {"row"})


def give_up(home: Home) -> None:
    fences = fence(home.catalog, MIGRATE, approved=make_plan(home.catalog, MIGRATE).digest)
    migration.look(home.catalog, MIGRATE, fences, approved="of another plan")
