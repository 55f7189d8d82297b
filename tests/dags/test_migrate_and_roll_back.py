"""Both DAGs in this process, with a Spark application each: approved, migrated, rolled back; and rejected."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.airflow_runs import states
from tests.support.homes import Home, put
from tidemark.catalog.opening.opening import Direction

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.airflow_runs import Dags

pytestmark = pytest.mark.spark

PATIENCE_SECONDS = 120


@pytest.fixture
def opened(dags: Dags) -> Home:
    """A home that was opened once, on the stash, with a row in it."""
    opened = dags.home
    opened.open(Direction.ROLLBACK, add=["row"])
    return opened


@contextmanager
def answering(option: str) -> Iterator[list[str]]:
    """Answer every question that a run asks; what was asked."""
    asked: list[str] = []
    ended = threading.Event()
    answers = threading.Thread(target=answer_all, args=(option, asked, ended), daemon=True)
    answers.start()
    try:
        yield asked
    finally:
        ended.set()
        answers.join(timeout=PATIENCE_SECONDS)


def answer_all(option: str, asked: list[str], ended: threading.Event) -> None:
    """What the REST interface does with an answer; `dag.test()` has no server."""
    from airflow.models.hitl import HITLDetail
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.trigger import handle_event_submit
    from airflow.sdk.timezone import utcnow
    from airflow.triggers.base import TriggerEvent
    from airflow.utils.session import create_session
    from sqlalchemy import select

    while not ended.wait(0.3):
        with create_session() as session:
            for detail in session.scalars(select(HITLDetail).where(HITLDetail.responded_at.is_(None))):
                instance = session.get(TaskInstance, detail.ti_id)
                if instance is None or instance.state != "awaiting_input":
                    continue
                asked.append(f"{detail.subject}\n{detail.body}")
                detail.responded_by = {"id": "7", "name": "bob"}
                detail.responded_at = utcnow()
                detail.chosen_options = [option]
                detail.params_input = {}
                event = TriggerEvent(detail.as_resume_event_payload())
                handle_event_submit(event, task_instance=instance, session=session)


def skipped(ran: dict[str, tuple[str, Any]]) -> set[str]:
    return {name for name, (state, _) in ran.items() if state == "skipped"}


def unsuccessful(ran: dict[str, tuple[str, Any]]) -> dict[str, str]:
    return {name: state for name, state in states(ran).items() if state != "success"}


def test_there_and_back_again(dags: Dags, opened: Home) -> None:
    before = opened.dumps()
    planned = dags.run("migrate_catalog", plan_only=True)
    assert skipped(planned) == set(planned) - {"check_back_ends", "plan", "is_to_be_done"}
    assert opened.dumps() == before, "a plan leaves no trace"

    with answering("Reject") as asked:
        rejected = dags.run("migrate_catalog")
    digest = planned["plan"][1]["plan_digest"]
    assert len(asked) == 1
    assert digest in asked[0]
    assert skipped(rejected) >= {"fence", "copy", "flip", "announce", "check_after"}
    assert opened.dumps() == before, "nor does a plan that was rejected"

    with answering("Approve"):
        migrated = dags.run("migrate_catalog")
        assert unsuccessful(migrated) == {"lead_again": "skipped"}, "nothing failed"
        assert migrated["approve"][1]["plan_digest"] == digest
        assert migrated["check_after"][1]["truth"] == "persist"
        assert migrated["see_fences"][1] == {"stash_epoch": 3, "persist_epoch": 3, "truth": "stash"}
        assert migrated["see_tombstone"][1] == {"tombstone": True, "epoch": 3, "truth": "persist"}
        assert (opened.truth(), opened.setting_names()) == ("persist", {"row"})
        with opened.catalog.join() as task:
            put(task, "acknowledged")

        again = dags.run("migrate_catalog")
        assert "approve" in skipped(again), "nothing to do, so nobody is asked, and nobody fenced"
        assert opened.epochs() == (3, 3)

        rolled_back = dags.run("rollback_catalog")
    assert unsuccessful(rolled_back) == {"lead_again": "skipped"}
    assert (opened.truth(), opened.setting_names()) == ("stash", {"row", "acknowledged"})
    assert opened.setting_names_of("persist") == {"row", "acknowledged"}


def test_a_copy_that_fails_for_good_leaves_the_catalog_led(
    dags: Dags, opened: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = tmp_path / "failing" / "spark-submit"
    failing.parent.mkdir()
    failing.write_text("#!/bin/sh\nexit 70\n")
    failing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{failing.parent}{os.pathsep}{os.environ['PATH']}")
    with answering("Approve"):
        ran = dags.run("migrate_catalog")
    ended = states(ran)
    assert (ended["copy"], ended["verify"], ended["announce"]) == ("failed", "upstream_failed", "upstream_failed")
    assert ran["lead_again"] == ("success", True)
    assert (opened.truth(), opened.setting_names()) == ("stash", {"row"}), "tasks go on where the truth is"
