"""Who logs in to a source: both forms that Airflow knows, our own variables above them, no secret in any message."""

from __future__ import annotations

import json

import pytest

from tidemark.collections.sources.logins import Login, find_login
from tidemark.errors import ConfigurationInvalid


@pytest.mark.parametrize(
    ("variables", "login"),
    [
        (
            {"AIRFLOW_CONN_LAKE": "postgres://me:p%40ss@db:5433/sales"},
            Login("jdbc:postgresql://db:5433/sales", "me", "p@ss"),
        ),
        ({"AIRFLOW_CONN_LAKE": "mysql://db/sales"}, Login("jdbc:mysql://db/sales")),
        ({"AIRFLOW_CONN_LAKE": "sqlite:////data/a.db"}, Login("jdbc:sqlite:/data/a.db")),
        (
            {"AIRFLOW_CONN_LAKE": json.dumps({"conn_type": "jdbc", "host": "jdbc:oracle:thin:@//h/s", "login": "me"})},
            Login("jdbc:oracle:thin:@//h/s", "me"),
        ),
        (
            {"AIRFLOW_CONN_LAKE": json.dumps({"conn_type": "postgres", "host": "db", "schema": "s", "password": "p"})},
            Login("jdbc:postgresql://db/s", None, "p"),
        ),
        (
            {
                "TIDEMARK_SOURCE_LAKE_URL": "jdbc:x:y",
                "TIDEMARK_SOURCE_LAKE_USER": "u",
                "TIDEMARK_SOURCE_LAKE_PASSWORD": "p",
            },
            Login("jdbc:x:y", "u", "p"),
        ),
        (
            {"AIRFLOW_CONN_LAKE": "postgres://me:old@db/s", "TIDEMARK_SOURCE_LAKE_PASSWORD": "new"},
            Login("jdbc:postgresql://db/s", "me", "new"),
        ),
    ],
)
def test_a_login_is_found(variables: dict[str, str], login: Login) -> None:
    assert find_login("lake", variables) == login


@pytest.mark.parametrize("text", ["secret", "oracle://me:secret@h/s", '{"password": "secret"}', '{"secret'])
def test_a_connection_that_cannot_be_read_is_named_and_not_quoted(text: str) -> None:
    with pytest.raises(ConfigurationInvalid, match="AIRFLOW_CONN_LAKE") as caught:
        find_login("lake", {"AIRFLOW_CONN_LAKE": text})
    assert "secret" not in f"{caught.value} {caught.value.hint}"
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "variables",
    [
        {"AIRFLOW_CONN_LAKE": "sqlite:///a.db"},
        {"AIRFLOW_CONN_LAKE": json.dumps({"conn_type": "sqlite", "host": "data/a.db"})},
        {"TIDEMARK_SOURCE_LAKE_URL": "jdbc:sqlite:a.db"},
        {"TIDEMARK_SOURCE_LAKE_URL": "jdbc:sqlite:file:a.db"},
    ],
)
def test_a_file_of_a_connection_has_a_whole_path(variables: dict[str, str]) -> None:
    with pytest.raises(ConfigurationInvalid, match="from the folder that a run starts in") as caught:
        find_login("lake", variables)
    assert "sqlite:////FOLDER/FILE" in caught.value.hint


def test_a_missing_connection_says_what_to_set() -> None:
    with pytest.raises(ConfigurationInvalid, match="'lake' is not set") as caught:
        find_login("lake", {})
    assert "TIDEMARK_SOURCE_LAKE_URL" in caught.value.hint
    assert "AIRFLOW_CONN_LAKE" in caught.value.hint


def test_a_login_shows_no_password() -> None:
    assert "secret" not in repr(Login("u", "me", "secret"))


def test_a_url_that_no_jdbc_driver_takes_is_refused_and_not_quoted() -> None:
    with pytest.raises(ConfigurationInvalid, match="'lake' does not start with jdbc:") as caught:
        find_login("lake", {"TIDEMARK_SOURCE_LAKE_URL": "postgresql://me:secret@db/s"})
    assert "secret" not in f"{caught.value} {caught.value.hint}"
