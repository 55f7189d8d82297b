"""A deployment stands by, catches up, and is promoted: refused before that, safe twice, and at every death."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.dying import Crash, dying_at
from tidemark.catalog.deployment.modes import FAIL_POINTS as OPENED
from tidemark.catalog.items.kinds import AUDIT_EVENT, DeploymentState
from tidemark.catalog.opening.protocol import ANNOUNCE, FENCE_PERSIST, FENCE_STASH, READ_HEADS, READ_TOMBSTONE
from tidemark.cli.app import app
from tidemark.collections.deployment import Mode
from tidemark.collections.mode import FAIL_POINTS as SWITCHED
from tidemark.collections.mode import set_mode
from tidemark.collections.staged.flush import FAIL_POINTS as FLUSHED
from tidemark.collections.staged.flush import flush_all
from tidemark.collections.system.recorder import record_run
from tidemark.deployment.caught_up import Progress
from tidemark.deployment.promotion import FAIL_POINTS, check_plan, make_plan, plan_text, promote
from tidemark.deployment.readiness import Readiness, read_readiness
from tidemark.errors import FencedByGeneration, NotCaughtUp, Refused, TidemarkError, UsageError

if TYPE_CHECKING:
    from tests.support.homes import Home
    from tidemark.catalog.items.kinds import AuditEventValue
    from tidemark.collections.deployment import StoredMode

MINUTE_MS = 60_000
OPENING = [step.fail_point for step in (READ_HEADS, FENCE_STASH, FENCE_PERSIST, READ_TOMBSTONE, ANNOUNCE)]


def run(home: Home) -> None:
    """Ingest as a scheduled run does, and record the run."""
    record_run(home.deployment, home.ingest_all(), clock=home.clock)


def look(home: Home) -> Readiness:
    return read_readiness(home.deployment, clock=home.clock)


def catch_up(home: Home) -> None:
    run(home)
    home.clock.step(MINUTE_MS)


def lead(home: Home, *, forced: bool = False, why: str = "", approved: str | None = None) -> StoredMode:
    plan = make_plan(home.deployment, clock=home.clock, is_forced=forced)
    return promote(home.shards, home.deployment, plan, approved=approved, who="ada", why=why)


def flush(home: Home) -> None:
    assert flush_all(home.shards, home.deployment, (), clock=home.clock).exit_code == 0


def test_a_deployment_comes_from_one_state_to_the_next(old: Home, new: Home) -> None:
    assert look(old).state is DeploymentState.IS_LEADER
    assert look(new).state is DeploymentState.INITIALIZING
    run(new)
    found = look(new)
    assert (found.state, [each.name for each in found.obstacles]) == (DeploymentState.CATCHING_UP, ["events"])
    new.clock.step(MINUTE_MS)
    assert look(new).state is DeploymentState.READY_TO_PROMOTE
    lead(new)
    assert look(new).state is DeploymentState.IS_LEADER
    with pytest.raises(FencedByGeneration):
        look(old)


def test_what_no_run_of_it_looks_at_holds_nothing_up(old: Home, new: Home) -> None:
    old.declare_latest("last", source={"table": "l"})
    old.declare_writer("gate", writes_to=None)
    catch_up(new)
    assert look(new).is_ready
    assert {each.name: each.why[:15] for each in look(new).objects if each.why} == {
        "gate": "appends go on a",
        "last": "the leader alon",
    }


def test_a_sink_is_late_since_the_first_change_that_its_target_lacks(old: Home, new: Home) -> None:
    catch_up(new)
    old.clock.step(46 * MINUTE_MS)  # nothing comes, and the sink's hold stays where it was
    old.send_rows(0, 1)
    old.ingest()
    run(new)
    (sink,) = [each for each in look(new).objects if each.name == "copies"]
    assert (sink.progress, sink.lag_ms) == (Progress.CAUGHT_UP, 0)
    old.clock.step(6 * MINUTE_MS)
    (sink,) = [each for each in look(new).objects if each.name == "copies"]
    assert (sink.progress, sink.lag_ms) == (Progress.CATCHING_UP, 6 * MINUTE_MS - 1)  # a change is at its upper
    old.run_sink()
    assert [each.lag_ms for each in look(new).objects if each.name == "copies"] == [0]


def test_what_is_altered_has_to_be_looked_at_again(old: Home, new: Home) -> None:
    catch_up(new)
    old.declare_reader(source={"every": "1s"})
    (late,) = look(new).obstacles
    assert late.why == "it was altered since this deployment's last run over it"
    catch_up(new)
    assert look(new).is_ready


def test_a_failure_begins_the_wait_anew(new: Home) -> None:
    catch_up(new)
    new.buffer_folder.rename(new.folder / "away")
    run(new)
    (late,) = look(new).obstacles
    assert late.why.startswith("its last run failed: BufferMissing: ")
    (new.folder / "away").rename(new.buffer_folder)
    run(new)
    assert not look(new).is_ready
    new.clock.step(MINUTE_MS)
    assert look(new).is_ready


def test_a_run_with_a_clock_that_is_ahead_counts_for_nothing(new: Home) -> None:
    new.clock.step(180 * MINUTE_MS)
    run(new)
    new.clock.step(-180 * MINUTE_MS)
    (late,) = look(new).obstacles
    assert late.why.startswith("the clock of its last run was 3 h ahead")
    run(new)
    (late,) = look(new).obstacles
    assert late.why.startswith("its runs go well for 0 s now")
    new.clock.step(MINUTE_MS)
    assert look(new).is_ready, "no three hours later"


def test_a_promotion_is_refused_with_the_table_until_then(old: Home, new: Home) -> None:
    before = old.dumps()
    plan = make_plan(new.deployment, clock=new.clock)
    with pytest.raises(NotCaughtUp) as refused:
        check_plan(plan)
    assert refused.value.exit_code == 65
    (late,) = refused.value.sample
    assert (late["object"], late["lag"]) == ("events", "")
    assert late["why not yet"].startswith("no run of this deployment has looked at it yet")
    assert "tidemark buffer ingest events" in late["what to do"]
    with pytest.raises(NotCaughtUp):
        lead(new)
    with pytest.raises(UsageError):
        lead(new, forced=True)
    assert old.dumps() == before


def test_a_forced_promotion_is_on_record_with_its_reason(new: Home) -> None:
    stored = lead(new, forced=True, why="the old machine burns")
    assert stored.generation == 2
    assert recorded(new) == {
        "who": "ada",
        "why": "promoted from deployment 1 although it was not caught up: the old machine burns",
    }


def audited(home: Home) -> list[AuditEventValue]:
    with home.catalog.join() as handle:
        return [event for _, event in handle.transact(lambda transaction: list(transaction.items(AUDIT_EVENT)))]


def operations(home: Home) -> set[str]:
    return {event.operation for event in audited(home)}


def recorded(home: Home) -> dict[str, str]:
    """Return who promoted the deployment, and why, as the audit has it."""
    last = [event for event in audited(home) if event.operation == "switch-mode"][-1]
    return {"who": last.who, "why": str(last.details["why"])}


def test_an_approval_holds_for_one_plan(old: Home, new: Home) -> None:
    catch_up(new)
    approved = make_plan(new.deployment, clock=new.clock).digest
    old.send_rows(0, 5)
    old.ingest()
    run(new)
    assert make_plan(new.deployment, clock=new.clock).digest == approved, "what every run changes does not count"
    assert make_plan(new.deployment, clock=new.clock, is_forced=True).digest != approved
    old.declare_reader("others")
    catch_up(new)
    before = old.dumps()
    with pytest.raises(Refused, match="another promotion was approved"):
        lead(new, approved=approved)
    assert old.dumps() == before
    lead(new, approved=make_plan(new.deployment, clock=new.clock).digest)


def test_a_plan_says_what_will_happen(new: Home) -> None:
    run(new)
    text = plan_text(make_plan(new.deployment, clock=new.clock))
    assert "Deployment **2** is to lead, in place of deployment **1**" in text
    assert (
        "| events | ingestion | catching up | 0 s | 0 | 0 | `its runs go well for 0 s now: 60 s are wanted` |" in text
    )
    assert "**Forced**: 1 objects" in text


def test_rows_that_both_have_read_come_once(old: Home, new: Home) -> None:
    old.send_rows(0, 4)
    run(new)
    assert new.branches()
    old.ingest()
    old.send_rows(1, 4)
    catch_up(new)
    lead(new)
    flush(new)
    run(new)
    assert new.ids() == list(range(old.sent))
    assert new.branches() == set()
    with pytest.raises(TidemarkError):
        old.ingest()


def test_rows_that_the_leader_has_read_in_part_come_once(old: Home, new: Home) -> None:
    old.send_rows(0, 4)
    run(new)
    old.ingest(max_entries=2)
    new.clock.step(MINUTE_MS)
    assert look(new).is_ready
    lead(new)
    flush(new)
    assert len(new.ids()) == old.sent - 2
    run(new)
    assert new.ids() == list(range(old.sent))
    assert new.branches() == set()


def test_a_promotion_of_the_leader_changes_nothing(old: Home, new: Home) -> None:
    catch_up(new)
    lead(new)
    before, states = old.dumps(), new.shard().load().state
    lead(new)
    assert (old.dumps(), new.shard().load().state) == (before, states)


@pytest.mark.parametrize("is_newer", [True, False], ids=["promoted", "never promoted"])
def test_a_promotion_leaves_a_leader_read_only_that_a_person_made_so(old: Home, new: Home, *, is_newer: bool) -> None:
    leader = new if is_newer else old
    if is_newer:
        catch_up(new)
        lead(new)
    set_mode(leader.shards, leader.deployment, Mode.READ_ONLY, who="bob", why="disk is full")
    before, state = old.dumps(), leader.shard().load().state
    for stored in (
        lead(leader),
        lead(leader, approved="an approval of last week", why="old"),
        lead(leader, forced=True, why="again"),
    ):
        assert (stored.mode, stored.who, stored.why) == (Mode.READ_ONLY, "bob", "disk is full")
    assert (old.dumps(), leader.shard().load().state) == (before, state)


@pytest.mark.parametrize("options", [("--yes",), ("--force", "--why", "again", "--yes")], ids=["plain", "forced"])
def test_the_command_says_that_a_read_only_leader_leads_and_flushes_nothing(
    old: Home, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDEMARK_HOME", str(old.settings.home))
    set_mode(old.shards, old.deployment, Mode.READ_ONLY, who="bob", why="disk is full")
    old.send_rows(0, 2)
    old.ingest()
    before = old.dumps()
    assert app(["deployment", "promote", *options]) == 0
    assert "deployment 1 leads already, and is read-only (disk is full)" in capsys.readouterr().out
    assert app(["deployment", "promote", *options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mode"] == "read-only"
    assert (old.dumps(), len(old.branches())) == (before, 1)


def test_a_promotion_of_the_leader_raises_the_tokens_that_are_missing(old: Home) -> None:
    leader = old.of_generation(2)
    leader.deployment.modes.switch(Mode.READ_WRITE, who="bob", why="")  # and died before the first token
    assert leader.shard().load().state.token.generation == 1
    lead(leader)
    assert leader.shard().load().state.token.generation == 2


@pytest.mark.parametrize("was_switched", [True, False], ids=["led", "never switched"])
@pytest.mark.parametrize("point", [*OPENING, *OPENED, *SWITCHED, *FAIL_POINTS])
def test_a_promotion_that_dies_goes_on_and_is_recorded(old: Home, new: Home, point: str, *, was_switched: bool) -> None:
    if was_switched:
        old.switch(Mode.READ_ONLY)
        old.switch(Mode.READ_WRITE)
    old.send_rows(0, 4)
    run(new)
    with pytest.raises(Crash), dying_at(point):
        lead(new, forced=True, why="it burns")
    assert look(new).state in {DeploymentState.CATCHING_UP, DeploymentState.PROMOTING}
    goes_on = look(new).state is DeploymentState.PROMOTING
    assert lead(new, forced=not goes_on, why="" if goes_on else "it burns").generation == 2
    assert recorded(new)["why"] == "promoted from deployment 1 although it was not caught up: it burns"
    flush(new)
    assert look(new).state is DeploymentState.IS_LEADER
    assert new.ids() == list(range(old.sent))
    with pytest.raises(FencedByGeneration):
        look(old)


@pytest.mark.parametrize("point", FLUSHED)
def test_a_promotion_that_dies_in_its_flush_goes_on_and_keeps_its_record(
    old: Home, new: Home, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_HOME", str(old.settings.home))
    monkeypatch.setenv("TIDEMARK_GENERATION", "2")
    old.send_rows(0, 4)
    run(new)
    command = ["deployment", "promote", "--force", "--yes", "--why"]
    with pytest.raises(Crash), dying_at(point):
        app([*command, "ticket 7"])
    promoted = new.deployment.modes.read()
    assert promoted.why == "promoted from deployment 1 although it was not caught up: ticket 7"
    for why in ("ticket 7", "again"):
        assert app([*command, why]) == 0
        assert new.deployment.modes.read() == promoted
        assert (new.ids(), new.branches()) == ([*range(old.sent)], set())
    assert "explain-mode" not in operations(new)


def test_a_promotion_that_another_process_ends_keeps_its_record(new: Home) -> None:
    with pytest.raises(Crash), dying_at("mode.after-write"):
        lead(new, forced=True, why="ticket 7")
    late = make_plan(new.deployment, clock=new.clock, is_forced=True)
    promoted = lead(new)
    again = promote(new.shards, new.deployment, late, approved=None, who="bob", why="again")
    assert (again, recorded(new)["who"]) == (promoted, "ada")
    set_mode(new.shards, new.deployment, Mode.READ_ONLY, who="bob", why="disk is full")
    assert promote(new.shards, new.deployment, late, approved=None, who="bob", why="again").why == "disk is full"


def test_the_way_back_is_the_same_way(old: Home, new: Home) -> None:
    catch_up(new)
    lead(new)
    flush(new)
    back = old.of_generation(3)  # the older program, under a new number
    assert look(back).state is DeploymentState.INITIALIZING
    catch_up(back)
    lead(back)
    old.send_rows(0, 2)
    run(back)
    assert back.ids() == list(range(old.sent))
    with pytest.raises(FencedByGeneration):
        look(new)
