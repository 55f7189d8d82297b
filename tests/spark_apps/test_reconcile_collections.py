"""What the application does before and around the run itself; nothing starts a JVM here."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

import tidemark.collections.reconcile.run
import tidemark.spark.session
from spark_apps.reconcile_collections import main
from tests.support.homes import Home
from tidemark.exit_codes import ExitCode
from tidemark.report import Report

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.settings import Settings


@pytest.mark.parametrize(("more", "raised"), [((), 1), (("--dry-run",), 0)])
def test_later_try_fences_the_earlier_one_unless_neither_changes_anything(
    home: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], raised: int
) -> None:
    def reconcile_all(*_arguments: object, **_more: object) -> Report:
        return Report(operation="reconcile", started_at=0, finished_at=1, generation=1)

    monkeypatch.setattr(tidemark.spark.session, "spark_session", lambda *_, **__: nullcontext())
    monkeypatch.setattr(tidemark.collections.reconcile.run, "reconcile_all", reconcile_all)
    monkeypatch.setenv("TIDEMARK_HOME", str(home.home))
    installation = Home(home, tmp_path)
    installation.apply(installation.declaration("c"))
    before = installation.shard("c").load().state.token
    code = main(["--raise-token", *more, "--report", str(tmp_path / "report.json")])
    assert code == ExitCode.OK
    assert installation.shard("c").load().state.token.epoch - before.epoch == raised
