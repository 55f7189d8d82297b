"""A secret is never shown: not by an address, not by an error, not by a log, whatever form it was written in."""

from __future__ import annotations

import json
import logging
import pickle
from typing import TYPE_CHECKING, Any

import pytest

from tidemark.cli.app import app
from tidemark.collections.declarations.files import load_declarations
from tidemark.collections.sources.logins import find_login
from tidemark.entry_points import exit_code_of
from tidemark.errors import ConfigurationInvalid, Unreachable
from tidemark.exit_codes import ExitCode
from tidemark.report import ErrorReport
from tidemark.secrets import redaction
from tidemark.secrets.database_uri import DatabaseUri
from tidemark.secrets.redaction import RedactingFormatter, find_secrets, know, redact
from tidemark.settings import Settings
from tidemark.write_buffer.address import find_connection

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MALFORMED = [
    "postgresql://u:s3cr3tPW/x@127.0.0.1:1/db",
    "postgresql://u:s3cr3tPW#x@127.0.0.1:1/db",
    "postgresql://u:s3cr3tPW?x@127.0.0.1:1/db",
    "postgresql://u:s3cr3tPW@x@127.0.0.1:1/db",
    " postgresql://u:s3cr3tPW@127.0.0.1:1/db",
    "postgresql://u:s3cr3tPW@127.0.0.1:1/db\n",
    "postgresql://u:s3cr3t PW@127.0.0.1:1/db",
    "postgresql://u:%zzs3cr3tPW@127.0.0.1:1/db",
    "postgresql://u:%00s3cr3tPW@127.0.0.1:1/db",
    "postgresql://u:s3cr3tPW@[127.0.0.1:1/db",
    "postgresql://u:s3cr3tPW@127.0.0.1:port/db",
    "postgresql://u:s3cr3tPW@127.0.0.1:0/db",
    "postgresql://u:s3cr3tPW@127.0.0.1:99999/db",
    "postgresql://u@127.0.0.1/db?s3cr3tPW",
    "postgresql://u:s3cr3tPW@\u2100.example/db",
    "mysql://u:s3cr3tPW@h/db",
    "sqlite://u:s3cr3tPW@h/db",
    "s3cr3tPW",
    "s3cr3tPW:x",
    "jdbc:postgresql://u:s3cr3tPW@h/db",
]


@pytest.fixture(autouse=True)
def _forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_known", set())


@pytest.mark.parametrize("variable", ["TIDEMARK_CATALOG_URI", "TIDEMARK_STASH_URI"])
@pytest.mark.parametrize("uri", MALFORMED)
def test_address_that_cannot_be_read_is_78_and_not_quoted(
    uri: str, variable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path))
    monkeypatch.setenv(variable, uri)
    assert app(["collections", "--json"]) == ExitCode.CONFIGURATION
    shown = "".join(capsys.readouterr())
    assert variable in shown
    assert "s3cr3t" not in shown


@pytest.mark.parametrize(
    "uri",
    [
        "postgresql://u:s3cr3tPW@127.0.0.1:1/db",
        "postgresql://u:s3cr3tPW%2Fx%40y%23@127.0.0.1:1/db",
        "postgresql://127.0.0.1:1/db?user=u&password=s3cr3tPW",
        "postgresql://127.0.0.1:1/db?user=u&pass%77ord=s3cr3tPW",
        "postgresql://u@127.0.0.1:1/db?sslpassword=s3cr3tPW",
    ],
)
def test_address_shows_no_secret_and_reveals_all_of_it(uri: str) -> None:
    parsed = DatabaseUri.parse(uri, variable="X")
    for shown in (f"{parsed}", repr(parsed), f"{parsed!s:>80}", parsed.jdbc_url, str([parsed]), f"{Settings.load({})}"):
        assert "s3cr3t" not in shown
    assert "127.0.0.1:1" in str(parsed)
    assert "s3cr3tPW" in parsed.reveal()
    assert DatabaseUri.parse(parsed.reveal(), variable="X") == parsed == pickle.loads(pickle.dumps(parsed))  # noqa: S301
    assert any("s3cr3tPW" in value for value in parsed.jdbc_secrets.values())


def test_whole_address_comes_through() -> None:
    uri = "postgresql://us%2Fer:p%40ss%2Fw%3A@db.example:6543/la%2Fke?sslmode=require&options=-csearch_path%3Dx"
    parsed = DatabaseUri.parse(uri, variable="X")
    assert (parsed.user, parsed.password, parsed.host, parsed.port, parsed.database) == (
        "us/er", "p@ss/w:", "db.example", 6543, "la/ke",
    )  # fmt: skip
    assert parsed.reveal() == uri
    assert parsed.reveal("postgresql+psycopg") == uri.replace("postgresql", "postgresql+psycopg", 1)
    assert DatabaseUri.parse("postgres:///lake?host=/run", variable="X").reveal() == ("postgresql:///lake?host=%2Frun")


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("postgresql://u:p@db.example:6543/d", "db.example:6543"),
        ("postgresql://u:p@[::1]/d", "[::1]:5432"),
        ("postgresql:///d?host=/run/pg&port=6543&password=secret", "the socket /run/pg/.s.PGSQL.6543"),
        ("postgresql://%2Frun%2Fpg/d", "the socket /run/pg/.s.PGSQL.5432"),
        ("postgresql:///d?host=db.example", "db.example:5432"),
        ("postgresql:///d", "the local socket of port 5432"),
    ],
)
def test_messages_say_where_a_server_listens(uri: str, said: str) -> None:
    assert DatabaseUri.parse(uri, variable="X").where == said


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("postgresql://u:s3cr3tPW@h/d", {"s3cr3tPW"}),
        ("kafka://u:s3cr3t%40PW@h/d", {"s3cr3t%40PW", "s3cr3t@PW"}),
        ("jdbc:postgresql://h/d?sslPassword=s3cr3tPW&ssl=true", {"s3cr3tPW"}),
        ("jdbc:postgresql://h/d?pass%77ord=s3cr3tPW", {"s3cr3tPW"}),
        ("jdbc:oracle:thin:u/s3cr3tPW@//h:1521/d", {"s3cr3tPW"}),
        ('{"conn_type": "x", "password": "s3cr3tPW", "extra": "{\\"client_secret\\": \\"oth3rPW\\"}"}',
         {"s3cr3tPW", "oth3rPW"}),
        ("postgresql://h/d?sslmode=require", set()),
        ("file:///a/b", set()),
    ],
)  # fmt: skip
def test_secrets_are_found_in_what_is_configured(text: str, found: set[str]) -> None:
    assert find_secrets(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "connection to postgresql://u:s3cr3tPW@h failed",
        "bad URL jdbc:postgresql://h/d?sslPassword=s3cr3tPW&ssl=true",
        "bad URL jdbc:oracle:thin:u/s3cr3tPW@//h:1521/d",
        "invalid dsn: user=u password=s3cr3tPW host=h",
        "sasl.jaas.config=s3cr3tPW",
    ],
)
def test_text_of_a_driver_loses_what_stands_where_a_secret_stands(text: str) -> None:
    assert "s3cr3t" not in redact(text)
    assert "s3cr3t" not in str(Unreachable(text))


def test_secret_that_is_known_is_taken_out_of_any_text() -> None:
    know("postgresql://u:s3cr3tPW@h/d", secrets=("hush", "a", None))
    assert redact('token "%zzs3cr3tPWx", hush, a hushed a') == 'token "%zz***x", ***, a hushed a'
    assert "s3cr3t" not in ErrorReport.of(Unreachable("the driver says s3cr3tPW")).message


def test_secret_is_known_in_the_form_of_an_address() -> None:
    find_login("lake", {"TIDEMARK_SOURCE_LAKE_URL": "jdbc:x", "TIDEMARK_SOURCE_LAKE_PASSWORD": "p@ss/word"})
    assert redact("bad URL p%40ss%2Fword, p@ss/word") == "bad URL ***, ***"


def test_settings_and_connections_are_known(tmp_path: Path) -> None:
    Settings.load(
        {
            "TIDEMARK_HOME": str(tmp_path),
            "TIDEMARK_CATALOG_URI": "postgresql://u:firstPW1@h/d",
            "TIDEMARK_SOURCE_LAKE_PASSWORD": "secondPW2",
            "TIDEMARK_BUFFER_MINE": "kafka://u:thirdPW3@h:1/t",
            "AIRFLOW_CONN_X": json.dumps({"conn_type": "postgres", "password": "fourthPW4"}),
        }
    )
    assert redact("firstPW1 secondPW2 thirdPW3 fourthPW4") == "*** *** *** ***"
    find_login("later", {"TIDEMARK_SOURCE_LATER_URL": "jdbc:postgresql://h/d?sslPassword=fifthPW5"})
    assert redact("fifthPW5") == "***"


def test_bug_shows_no_secret(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    know("postgresql://u:s3cr3tPW@h/d")

    def fail(_: Sequence[str]) -> int:
        raise RuntimeError("the driver quotes s3cr3tPW")

    assert exit_code_of(fail, []) == ExitCode.BUG
    monkeypatch.setattr(Settings, "load", fail)
    assert app(["collections"]) == ExitCode.BUG
    record = logging.LogRecord("x", logging.WARNING, "", 0, "retry of %s", ("postgresql://u:s3cr3tPW@h",), None)
    assert "s3cr3t" not in RedactingFormatter("%(message)s").format(record)
    assert "s3cr3t" not in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    "address",
    [
        "kafka://u:s3cr3tPW/x@h:9092/t",
        "kafka://u:s3cr3tPW?x@h:9092/t",
        "kafka://u:s3cr3tPW#x@h:9092/t",
        "kafka://u:s3cr3tPW@[h:9092/t",
        "kafka://u:s3cr3tPW@h:9092/a/b",
        "s3cr3tPW",
    ],
)
def test_address_of_a_buffer_is_not_quoted(address: str) -> None:
    with pytest.raises(ConfigurationInvalid) as refused:
        find_connection("mine", {"TIDEMARK_BUFFER_MINE": address})
    assert "s3cr3t" not in f"{refused.value} {refused.value.hint}"


@pytest.mark.parametrize(
    "source",
    [
        "{format: jdbc, url: 'jdbc:postgresql://h/d?sslPassword=s3cr3tPW', dbtable: t}",
        "{format: jdbc, url: 'jdbc:postgresql://h/d?pass%77ord=s3cr3tPW', dbtable: t}",
        "{format: jdbc, url: 'jdbc:postgresql://u%3As3cr3tPW%40h/d', dbtable: t}",
        "{format: jdbc, url: 'jdbc:sqlserver://h;clientSecret=s3cr3tPW', dbtable: t}",
        "{format: jdbc, url: 'postgresql://u:s3cr3tPW@h/d', dbtable: t}",
        "{format: jdbc, connection: 'postgresql://u:s3cr3tPW@h/d', dbtable: t}",
        "{format: jdbc, connection: s3cr3tPW!, dbtable: t}",
        "{format: jdbc, connection: c, dbtable: t, options: {sslPassword: s3cr3tPW}}",
        "{format: jdbc, connection: c, dbtable: t, options: {password: [s3cr3tPW]}}",
        "{format: jdbc, connection: c, dbtable: t, options: 'postgresql://u:s3cr3tPW@h/d'}",
        "{format: jdbc, connection: c, dbtable: t, password: s3cr3tPW}",
        "{format: 'postgresql://u:s3cr3tPW@h/d'}",
        "'postgresql://u:s3cr3tPW@h/d'",
        "['postgresql://u:s3cr3tPW@h/d']",
        "{buffer: 'kafka://h/t?client.sasl.pass%77ord=s3cr3tPW'}",
        "{buffer: 'kafka://h/t?client.client.secret=s3cr3tPW'}",
        "{buffer: s3cr3tPW!}",
        "{format: jdbc, url: *s3cr3tPW, dbtable: t}",
        "{format: jdbc, password: !s3cr3tPW x, dbtable: t}",
    ],
)
def test_secret_in_a_declaration_is_refused_and_not_quoted(tmp_path: Path, source: str) -> None:
    path = tmp_path / "d.yaml"
    kind = "append-only\n    schema: a int" if "buffer" in source else "differential"
    path.write_text(f"version: 1\ncollections:\n  it:\n    kind: {kind}\n    source: {source}\n", encoding="utf-8")
    with pytest.raises(ConfigurationInvalid) as refused:
        load_declarations([path])
    assert "s3cr3t" not in f"{refused.value} {refused.value.hint}"


@pytest.mark.parametrize("fields", ["password: s3cr3tPW", "guards: {password: s3cr3tPW}", "tags: {password: s3cr3tPW}"])
def test_secret_in_a_field_that_is_none_is_not_quoted(tmp_path: Path, fields: str) -> None:
    path = tmp_path / "d.yaml"
    path.write_text(f"version: 1\ncollections:\n  it:\n    kind: append-only\n    {fields}\n", encoding="utf-8")
    with pytest.raises(ConfigurationInvalid) as refused:
        load_declarations([path])
    assert "s3cr3t" not in f"{refused.value}"


@pytest.mark.parametrize("variable", ["TIDEMARK_HOME", "TIDEMARK_WAREHOUSE", "TIDEMARK_GENERATION"])
def test_address_in_another_variable_is_not_quoted(variable: str) -> None:
    with pytest.raises(ConfigurationInvalid) as refused:
        Settings.load({variable: "postgresql://u:s3cr3tPW@h/d"})
    assert "s3cr3t" not in str(refused.value)


def test_warehouse_takes_no_login(tmp_path: Path) -> None:
    environ: dict[str, Any] = {"TIDEMARK_HOME": str(tmp_path), "TIDEMARK_WAREHOUSE": "s3://key:s3cr3tPW@bucket/lake"}
    with pytest.raises(ConfigurationInvalid, match="TIDEMARK_WAREHOUSE") as refused:
        Settings.load(environ)
    assert "s3cr3t" not in str(refused.value)
