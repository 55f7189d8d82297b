"""`tidemark catalog …`: shapes and exit codes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from include.cli import app
from include.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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
    for arguments in (["get", "setting"], ["set", "setting", "a", "b"], ["history"], ["migrate", "--dry-run"]):
        code, answer = catalog(*arguments)
        assert code == ExitCode.NOT_POSSIBLE
        assert "opening writable" in answer["error"]["message"]
    assert catalog("diff").code == ExitCode.NOT_POSSIBLE


def test_status_of_another_stash_says_to_look_at_its_address(
    catalog: Callable[..., Answer],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
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
    assert catalog("emergency", "--force").json["truth"] == "stash"
