"""`tidemark repair`: says first, does on request, and never in read-only mode."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from pyiceberg.table.update import RemoveSnapshotRefUpdate

from tests.support.events import switch
from tests.support.rows import SCHEMA
from tidemark.cli.app import app
from tidemark.collections.deployment import Mode
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from tidemark.settings import Settings


def test_repair_says_what_it_would_do_and_does_it_on_request(
    home: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDEMARK_HOME", str(home.home))
    switch(home, Mode.READ_WRITE)
    shard = Shards.connect(home).create("planes", schema=SCHEMA, key=["id"])
    genesis = shard.load().main.snapshot_id
    shard.iceberg.commit_table(shard.load_table(), (), (RemoveSnapshotRefUpdate(ref_name="updates"),))

    def ask(*arguments: str) -> tuple[int, str]:
        code = app(["repair", "planes", *arguments])
        return code, capsys.readouterr().out

    code, shown = ask()
    assert code == ExitCode.OK
    assert "updates" in shown
    assert "tidemark repair planes --yes" in shown
    code, shown = ask("--json")
    assert json.loads(shown) == {"collection": "planes", "done": False, "refs": {"updates": genesis}, "lost": []}
    code, shown = ask("--yes", "--json")
    assert (code, json.loads(shown)["done"]) == (ExitCode.OK, True)
    assert shard.load().updates is not None
    assert "nothing to repair" in ask()[1]
    shard.iceberg.commit_table(shard.load_table(), (), (RemoveSnapshotRefUpdate(ref_name="tidemark-main"),))
    # The mode is switched although the collection cannot be read: it is fenced once it is repaired.
    switch(home, Mode.READ_ONLY)
    assert ask("--yes", "--json")[0] == ExitCode.FENCED
