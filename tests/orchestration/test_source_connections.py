"""Connections that sources name reach the application through its environment, and only there."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from airflow.models.connection import Connection

from tests.support.declared import declare
from tidemark.collections.sources.logins import Login, find_login
from tidemark.orchestration.connections import source_connections

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tidemark.settings import Settings

PASSWORD = "p%@ss"  # noqa: S105 - of nobody
DECLARATION = """version: 1
collections:
  it:
    kind: differential
    key: [id]
    schema: "id int"
    source: {format: jdbc, connection: lake, dbtable: t}
  other:
    kind: differential
    key: [id]
    schema: "id int"
    source: {format: jdbc, connection: pond, dbtable: t}
"""


def test_only_what_sources_name_and_airflow_has_is_handed_on(
    home: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "d.yaml").write_text(DECLARATION)
    assert source_connections(home, os.environ) == {}, "nothing is declared yet"
    declare(home, tmp_path / "d.yaml")
    stored = Connection(conn_id="lake", conn_type="postgres", host="db", schema="s", login="me", password=PASSWORD)
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", stored.as_json())  # where Airflow itself looks first
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", stored.as_json())
    found = source_connections(home, {})
    assert list(found) == ["AIRFLOW_CONN_LAKE"]
    assert json.loads(found["AIRFLOW_CONN_LAKE"])["conn_type"] == "postgres"
    assert find_login("lake", found) == Login("jdbc:postgresql://db/s", "me", PASSWORD)
    assert source_connections(home, {"AIRFLOW_CONN_LAKE": "set already"}) == {}
