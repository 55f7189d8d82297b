"""`tidemark catalog …`: shapes and exit codes."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.conftest import settings_in
from tests.support.catalog.interventions import put_garbage
from tests.support.catalog.stash_places import StashPlace
from tests.support.homes import MIGRATE, ROLLBACK, Home
from tests.support.leases import run_sql
from tidemark.catalog.back_end import Head
from tidemark.catalog.items.data_versions import DataMigration
from tidemark.catalog.items.kinds import DATA_VERSION_KEY
from tidemark.catalog.persist.persist import PersistCatalog
from tidemark.catalog.persist.records import FENCE_TOKEN, PROPERTY, SHARD
from tidemark.catalog.stash.stash import Stash
from tidemark.cli.app import app
from tidemark.cli.catalog.status import count_items, format_notes
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.leases.holding import holding
from tidemark.iceberg.log import LogUpdate
from tidemark.iceberg.shards import SYSTEM, Shards

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tidemark.catalog.opening.opening import Direction

pytestmark = pytest.mark.slow  # stores that are really written, again and again

TO_2 = [DataMigration(2, lambda _: [])]
TWIN = LogUpdate("setting", '{"name":"row"}', '{"value":"v","version":1}', 1)


class Answer(NamedTuple):
    code: int
    json: Any


@pytest.fixture
def catalog(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Answer]:
    """The command line in this process, with a home of its own."""
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path))

    def run(*arguments: str) -> Answer:
        capsys.readouterr()
        code = app(["catalog", *arguments, "--json"])
        return Answer(code, json.loads(capsys.readouterr().out))

    return run


def test_the_whole_way_to_persist_and_back(catalog: Callable[..., Answer]) -> None:
    nothing = {"truth": "stash", "tombstone": None, "stash_epoch": None, "persist_epoch": None}
    nothing |= {"generation": None, "leader": None, "counts": {}}
    assert catalog("status") == (0, nothing)
    opened = catalog("open").json
    assert (opened["truth"], opened["epoch"], opened["flipped"], opened["counts"]) == ("stash", 2, False, {"config": 3})
    assert catalog("set", "setting", "colour", "blue") == (
        0, {"kind": "setting", "key": {"name": "colour"}, "changed": True},
    )  # fmt: skip
    assert catalog("set", "setting", "colour", "blue").json["changed"] is False
    planned = catalog("migrate", "--dry-run").json
    assert (planned["dry_run"], planned["truth_before"], planned["truth"]) == (True, "stash", "persist")
    assert {"change": "insert", "kind": "setting", "key": '{"name":"colour"}',
            "value": '{"value":"blue","version":1}'} in planned["differing"]  # fmt: skip
    assert catalog("status").json["truth"] == "stash", "a dry run"
    migrated = catalog("migrate").json
    assert (migrated["truth"], migrated["tombstone"], migrated["epoch"], migrated["flipped"]) == (
        "persist",
        True,
        3,
        True,
    )
    assert (migrated["inserted"], migrated["retracted"]) == (planned["inserted"], planned["retracted"])
    status = catalog("status").json
    assert (status["truth"], status["tombstone"], status["stash_epoch"], status["persist_epoch"]) == (
        "persist", True, 3, 3,
    )  # fmt: skip
    assert (status["leader"], status["generation"]) == ("epoch 3 of generation 1", 1)
    assert catalog("get", "setting", "colour").json["items"] == [
        {"key": {"name": "colour"}, "value": {"value": "blue", "version": 1}}
    ]
    events = catalog("history").json["events"]
    assert [(event["operation"], event["subject"]) for event in events] == [
        ("create", "colour"), ("migrate", "generation 1"),
    ]  # fmt: skip
    assert catalog("rollback").json["truth"] == "stash"
    assert catalog("get", "setting").json["items"][0]["value"]["value"] == "blue"
    assert [event["operation"] for event in catalog("history", "--limit", "1").json["events"]] == ["rollback"]


def test_history_shows_modes_and_reasons(catalog: Callable[..., Answer], capsys: pytest.CaptureFixture[str]) -> None:
    catalog("open")
    for arguments in (["mode", "read-only", "--why", "upgrade to 2.4"], ["mode", "read-write"]):
        assert app(arguments) == ExitCode.OK
    capsys.readouterr()
    assert app(["catalog", "history"]) == ExitCode.OK
    *_, first, second = [
        line.split("switch-mode")[1] for line in capsys.readouterr().out.splitlines() if "switch" in line
    ]
    assert "generation 1: read-only" in first
    assert "upgrade to 2.4" in first
    assert "generation 1: read-write" in second


def test_the_kind_that_is_set_is_what_the_next_open_does(catalog: Callable[..., Answer]) -> None:
    catalog("open")
    assert catalog("set-kind", "persist") == (0, {"catalog_kind": "persist", "truth": "stash"})
    assert catalog("open").json["truth"] == "persist"
    for kind in ("shadow", "paper"):
        code, answer = catalog("set-kind", kind)
        assert (code, answer["error"]["kind"]) == (ExitCode.USAGE, "UsageError")


def test_dump_and_diff_show_both_sides(catalog: Callable[..., Answer]) -> None:
    catalog("migrate")
    dumped = catalog("dump").json
    assert catalog("dump").json == dumped
    assert list(dumped) == ["stash", "persist"]
    assert list(catalog("dump", "--side", "stash").json) == ["stash"]
    assert catalog("dump", "--side", "attic").code == ExitCode.USAGE
    catalog("set", "setting", "a", "b")
    different = catalog("diff").json
    assert different["equal"] is False
    assert {"only_in": "persist", "kind": "setting", "key": '{"name":"a"}', "value": '{"value":"b","version":1}'} in (
        different["items"]
    )
    catalog("rollback")
    assert {each["kind"] for each in catalog("diff").json["items"]} == {"audit_event", "id_allocator"}


def test_items_are_set_and_deleted_and_what_is_the_catalogs_own_is_refused(catalog: Callable[..., Answer]) -> None:
    catalog("open")
    assert catalog("set", "config", "settings_synced_once", "1").json["changed"] is True
    assert catalog("get", "config", "settings_synced_once").json["items"][0]["value"] == 1
    assert catalog("set", "setting", "a", '{"value": "as JSON"}').json["changed"] is True
    assert catalog("set", "setting", "a", "--delete").json["changed"] is True
    assert catalog("get", "setting", "a").json["items"] == []
    assert catalog("set", "config", "tombstone", "1").code == ExitCode.REFUSED
    assert catalog("set", "setting", "a").code == ExitCode.USAGE
    assert catalog("set", "deployment", "one", "{}").code == ExitCode.USAGE
    assert catalog("set", "id_allocator", "a", '{"next_id": -1}').code == ExitCode.USAGE
    code, answer = catalog("get", "planet", "mars")
    assert (code, answer["error"]["kind"]) == (ExitCode.USAGE, "UnknownKind")


def test_what_was_never_opened_says_how_to_recover(catalog: Callable[..., Answer]) -> None:
    looks = (["get", "setting"], ["history"], ["diff"], ["migrate", "--dry-run"])
    for arguments in (*looks, ["set", "setting", "a", "b"]):
        code, answer = catalog(*arguments)
        assert code == ExitCode.NOT_POSSIBLE
        assert "can be recovered by opening writable" in answer["error"]["message"]


def test_status_of_another_stash_says_to_look_at_its_address(
    catalog: Callable[..., Answer], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> str:
        capsys.readouterr()
        assert app(["catalog", "status"]) == ExitCode.OK
        return capsys.readouterr().out

    assert "tombstone: unset" in told()
    catalog("migrate")
    assert "tombstone: true" in told()
    assert "nobody leads" not in told()
    monkeypatch.setenv("TIDEMARK_STASH_URI", f"sqlite:///{tmp_path}/other.db")
    assert "check TIDEMARK_STASH_URI" in told()


def test_an_emergency_is_refused_unless_forced_while_the_persist_catalog_was_just_written(
    catalog: Callable[..., Answer],
) -> None:
    catalog("migrate")
    code, answer = catalog("emergency")
    assert (code, answer["error"]["kind"]) == (ExitCode.REFUSED, "Refused")
    assert "--force" in answer["error"]["hint"]
    assert catalog("emergency", "--dry-run").json["truth"] == "stash"
    assert catalog("emergency", "--force").json["truth"] == "stash"
    assert catalog("status").json["tombstone"] is False


def test_status_says_who_is_at_work(
    catalog: Callable[..., Answer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog("migrate")
    assert "leases" not in catalog("status").json
    with holding(settings_in(tmp_path), "reconcile", ["planes"]):
        (lease,) = catalog("status").json["leases"]
        assert app(["catalog", "status"]) == 0
        told = capsys.readouterr().out
        run_sql(settings_in(tmp_path), "UPDATE tidemark_leases SET renewed_ms = renewed_ms - 3600000")
        assert app(["catalog", "status"]) == 0
        assert "ran out" in capsys.readouterr().out
    assert (lease["operation"], lease["collections"], lease["generation"]) == ("reconcile", ["planes"], 1)
    assert lease["writer"].endswith(f":{os.getpid()}")
    assert 0 <= lease["renewed_s_ago"] < lease["lease_s"]
    assert "reconcile" in told
    assert "ran out" not in told
    assert "leases" not in catalog("status").json


def test_an_older_deployment_is_told_that_it_is_fenced(
    catalog: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_GENERATION", "2")
    catalog("migrate")
    monkeypatch.setenv("TIDEMARK_GENERATION", "1")
    for arguments in (["open"], ["rollback"], ["set", "setting", "a", "b"]):
        code, answer = catalog(*arguments)
        assert (code, answer["error"]["kind"]) == (ExitCode.FENCED, "FencedByGeneration")
    assert catalog("status").json["generation"] == 2


def test_status_answers_while_the_persist_catalog_does_not(
    catalog: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog("migrate")
    monkeypatch.setenv("TIDEMARK_CATALOG_URI", "postgresql://nobody:secret@127.0.0.1:1/none")
    code, answer = catalog("status")
    assert (code, answer["truth"], answer["stash_epoch"], answer["persist_epoch"]) == (69, "persist", 2, None)
    assert "secret" not in json.dumps(answer)
    code, answer = catalog("emergency")
    assert (code, answer["error"]["kind"]) == (ExitCode.REFUSED, "Refused")
    assert catalog("emergency", "--dry-run").json["truth"] == "stash"
    assert catalog("emergency", "--force").json["truth"] == "stash"


# -- damage and formats --------------------------------------------------------------------------------------------


def opened(tmp_path: Path, *directions: Direction) -> Home:
    """The home that the command line looks at, opened in these directions, with a row in it."""
    home = Home(settings_in(tmp_path))
    for direction in directions:
        home.open(direction, add=["row"])
    return home


def test_garbage_that_contradicts_itself_is_told_by_diff_and_the_dry_run(
    catalog: Callable[..., Answer], tmp_path: Path
) -> None:
    put_garbage(opened(tmp_path, MIGRATE, ROLLBACK), TWIN)
    code, found = catalog("diff")
    assert (code, found["equal"], found["persist_digest"]) == (0, False, None)
    assert found["inconsistent"] == {"stash": 0, "persist": 1}
    assert {each["only_in"] for each in found["items"] if each["kind"] == "setting"} == {"persist"}
    assert found["notes"] == ["1 rows of the persist catalog say nothing consistent: a copy to it replaces all of them"]
    assert catalog("migrate", "--dry-run").json["inconsistent"] == 1
    assert "notes" not in catalog("status").json
    assert catalog("migrate").code == 0
    assert catalog("diff").json["inconsistent"] == {"stash": 0, "persist": 0}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (TWIN, "the persist catalog, which is the truth, is damaged and refused: unexpected multiplicity 2 of setting"),
        (
            LogUpdate("config", '"data_version"', "1", -1),
            "the persist catalog, which is the truth, is damaged and refused: the persist catalog has another config",
        ),
        (LogUpdate(FENCE_TOKEN, "", "?", 1), "nobody can join: the persist catalog holds the fence tokens"),
    ],
)
def test_status_and_diff_tell_of_a_truth_that_everybody_refuses(
    catalog: Callable[..., Answer], tmp_path: Path, damage: LogUpdate, said: str
) -> None:
    put_garbage(opened(tmp_path, MIGRATE), damage)
    assert catalog("set", "setting", "a", "b").code == ExitCode.NOT_POSSIBLE
    can_be_read = damage.kind == FENCE_TOKEN  # readers need no token
    assert catalog("get", "setting").code == (ExitCode.OK if can_be_read else ExitCode.NOT_POSSIBLE)
    code, found = catalog("status")
    assert (code, found["counts"]["setting"]) == (0, 1)
    (note,) = found["notes"]
    assert note.startswith(said)
    assert note.removeprefix("nobody can join: ") in catalog("diff").json["notes"]


@pytest.mark.parametrize(("direction", "truth"), [(ROLLBACK, "stash"), (MIGRATE, "persist")])
def test_status_answers_where_the_head_of_the_persist_catalog_cannot_be_read(
    catalog: Callable[..., Answer], tmp_path: Path, capsys: pytest.CaptureFixture[str], direction: Direction, truth: str
) -> None:
    home = opened(tmp_path, MIGRATE, direction)
    with Shards.connect(home.settings).open(SHARD, SYSTEM).load().table.transaction() as edit:
        edit.set_properties({PROPERTY: "{}"})
    code, found = catalog("status")
    assert (code, found["truth"], found["persist_epoch"]) == (0, truth, None)
    assert found["counts"].get("setting") == (1 if truth == "stash" else None)
    assert "drop the table instead" in found["notes"][0]
    capsys.readouterr()
    assert app(["catalog", "status"]) == 0
    told = capsys.readouterr().out
    assert ("nobody is known to lead" in told) is (truth == "persist")
    assert "an open is under way" not in told


def test_a_persist_catalog_that_is_the_truth_and_lost_is_told_by_status_and_left_by_an_emergency(
    catalog: Callable[..., Answer], tmp_path: Path
) -> None:
    home = opened(tmp_path, MIGRATE)
    Shards.connect(home.settings).drop(SHARD, SYSTEM)
    code, found = catalog("status")
    assert (code, found["truth"], found["leader"]) == (0, "persist", None)
    assert "only if it is lost: `tidemark catalog emergency`" in found["notes"][0]
    assert catalog("emergency", "--dry-run").json["truth"] == "stash"


def test_a_stash_that_does_not_say_which_side_is_the_truth_is_told_with_what_to_do(
    catalog: Callable[..., Answer], tmp_path: Path
) -> None:
    home = opened(tmp_path, MIGRATE)
    twice = "INSERT INTO data SELECT collection_id, key, value, time, diff FROM data WHERE key = '\"tombstone\"'"
    StashPlace(home.settings).sql(twice)
    code, answer = catalog("status")
    assert (code, answer["error"]["kind"]) == (ExitCode.NOT_POSSIBLE, "CorruptState")
    assert "restore them" in answer["error"]["hint"]


def test_status_says_which_side_has_another_format_and_what_to_run(
    catalog: Callable[..., Answer], tmp_path: Path
) -> None:
    home = opened(tmp_path, MIGRATE)
    with home.catalog.join() as handle:
        handle.transact(lambda transaction: transaction.set_config(DATA_VERSION_KEY, 0))
    code, found = catalog("status")
    assert (code, found["truth"], found["counts"]) == (0, "persist", {})
    (note,) = found["notes"]
    assert note.startswith("the persist catalog has data version 0, this program migrates from 1 on: open it with")


@pytest.mark.parametrize("direction", [ROLLBACK, MIGRATE])
def test_items_of_an_older_format_are_counted_in_a_copy(tmp_path: Path, direction: Direction) -> None:
    home = opened(tmp_path, direction)
    before = home.dumps()
    stash, persist = (end(home.settings, migrations=TO_2) for end in (Stash.of, PersistCatalog))
    newer = replace(home.catalog, ends=replace(home.ends, stash=stash, persist=persist))
    counts, notes = count_items(newer, newer.truth())
    assert (counts["setting"], notes) == (1, [])
    assert home.dumps() == before


def test_a_note_names_the_side_its_version_and_the_command() -> None:
    heads = {"stash": Head(2, {DATA_VERSION_KEY: 1}), "persist": Head(2, {DATA_VERSION_KEY: 2})}
    assert format_notes(heads, TO_2) == [
        "the stash has data version 1, this program works with 2: `tidemark catalog open` brings it up to date"
    ]
    assert format_notes({"stash": Head(None, {})}) == []
    (newer,) = format_notes({"persist": heads["persist"]})
    assert newer.endswith("a newer Tidemark wrote it: use that one")
