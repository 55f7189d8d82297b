"""A database is read again when the answer of its ``version`` has changed, and not before; what lies is told."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.homes import Home
from tidemark.collections.reconcile.choosing.same_source import SAME_SOURCE, reconcile_unchanged
from tidemark.collections.reconcile.run import reconcile_all
from tidemark.collections.sources import database_version
from tidemark.collections.sources.database_version import ask, can_ask
from tidemark.collections.sources.file_listing import FileListing, FileState
from tidemark.collections.sources.logins import Login
from tidemark.collections.sources.pins import FilesPin, VersionPin
from tidemark.errors import Refused, Unreachable
from tidemark.exit_codes import ExitCode

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.postgres_server import PostgresServer
    from tidemark.report import CollectionReport
    from tidemark.settings import Settings


class Shop:
    """Table ``planes`` of a database, and a collection of the same name."""

    def __init__(self, home: Home, spark: SparkSession, version: str) -> None:
        self.home, self.spark, self.path = home, spark, home.folder / "shop.db"
        self.execute("CREATE TABLE planes (k INTEGER, v TEXT); INSERT INTO planes VALUES (1, 'one')")
        source = {"format": "jdbc", "url": f"jdbc:sqlite:{self.path}", "dbtable": "planes", "version": version}
        home.apply(home.declaration("planes", source=source))

    def execute(self, script: str) -> None:
        with closing(sqlite3.connect(self.path)) as connection:
            connection.executescript(script)

    def reconcile(self, **more: Any) -> CollectionReport:
        self.home.clock.step(10)
        deployment, declared = self.home.deployment, self.home.registry.read().declarations
        report, left = reconcile_unchanged(deployment, declared, clock=self.home.clock, **more)
        if left:
            report = reconcile_all(self.spark, deployment, left, clock=self.home.clock, **more)
        return report.collections["planes"]


@pytest.mark.spark
def test_rows_are_read_when_the_answer_changes(home: Settings, home_spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(Home(home, tmp_path), home_spark, "SELECT max(k), count(*) FROM planes")
    assert shop.reconcile().inserted == 1
    assert shop.reconcile().strategy == SAME_SOURCE
    shop.execute("INSERT INTO planes VALUES (2, 'two')")
    assert shop.reconcile().inserted == 1
    assert shop.reconcile().strategy == SAME_SOURCE


@pytest.mark.spark
def test_a_full_run_tells_of_a_version_that_did_not_change_with_the_rows(
    home: Settings, home_spark: SparkSession, tmp_path: Path
) -> None:
    shop = Shop(Home(home, tmp_path), home_spark, "SELECT 1")
    shop.reconcile()
    shop.execute("UPDATE planes SET v = 'other'")
    assert shop.reconcile().strategy == SAME_SOURCE
    report = shop.reconcile(full=True)
    assert (report.inserted, report.retracted) == (1, 1)
    assert report.details["compared_because"] == "`full` asks for it"
    assert "has other rows, although its state has the same name" in str(report.details["unnoticed"])


@pytest.mark.spark
@pytest.mark.parametrize(
    ("version", "why"),
    [("SELECT gone FROM planes", "no such column"), ("SELECT k FROM planes WHERE k = 7", "it returns no row")],
)
def test_a_version_that_names_nothing_is_refused_with_the_query(
    home: Settings, home_spark: SparkSession, tmp_path: Path, version: str, why: str
) -> None:
    error = Shop(Home(home, tmp_path), home_spark, version).reconcile().error
    assert error is not None
    assert error.exit_code is ExitCode.REFUSED
    assert why in error.message
    assert version in error.message


@pytest.mark.spark
def test_an_answer_without_a_value_names_nothing(home: Settings, home_spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(Home(home, tmp_path), home_spark, "SELECT max(k) FROM planes WHERE k > 7")
    assert shop.reconcile().inserted == 1
    shop.execute("UPDATE planes SET v = 'other'")
    assert shop.reconcile().inserted == 1


def test_a_database_that_somebody_else_has_locked_does_not_answer(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE planes (k INTEGER); BEGIN EXCLUSIVE")
        with pytest.raises(Unreachable, match="locked"):
            ask(f"jdbc:sqlite:{path}", Login(), "SELECT count(*) FROM planes", where="it", timeout_s=0.1)


def test_an_answer_that_takes_long_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_version, "ANSWER_S", 0.05)
    path = tmp_path / "shop.db"
    sqlite3.connect(path).close()
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    assert ask(f"jdbc:sqlite:{path}", Login(), endless, where="it", timeout_s=1) is None


@pytest.mark.postgres
def test_postgresql_answers_as_it_spells_values_and_whatever_the_environment_says(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = urlsplit(postgres.create_database("versions"))
    url, login = (
        f"jdbc:postgresql://127.0.0.1:{postgres.port}/versions",
        Login(user=uri.username, password=unquote(uri.password or "")),
    )
    monkeypatch.setenv("PGOPTIONS", "-c search_path=elsewhere")
    query = "SELECT 'infinity'::date, 1.50, NULL, current_schema()"
    assert ask(url, login, query, where="it", timeout_s=5) == [("infinity", "1.50", None, "public")]
    with pytest.raises(Refused, match="gone"):
        ask(url, login, "SELECT * FROM gone", where="it", timeout_s=5)
    monkeypatch.setattr(database_version, "ANSWER_S", 0.1)
    assert ask(url, login, "SELECT pg_sleep(60)", where="it", timeout_s=5) is None


def test_an_input_that_cannot_be_asked_again_is_not_still_the_same() -> None:
    def fail() -> str:
        raise Unreachable("gone")

    assert VersionPin("1", lambda: "1").is_still(0)
    assert not VersionPin("1", lambda: "2").is_still(0)
    assert not VersionPin("1", fail).is_still(0)


@pytest.mark.parametrize(
    ("modified_s", "changed_ns", "still"), [(40, 0, False), (39, 0, True), (40, 100 * 10**9, False), (40, 1, True)]
)
def test_files_with_times_in_seconds_name_nothing_for_a_minute(
    modified_s: int, changed_ns: int, *, still: bool
) -> None:
    file = FileState("s3://a/b", 1, modified_s * 10**9, changed_ns)
    assert FilesPin(FileListing("s3://a", None, (file,))).is_still(100_000) is still


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("jdbc:sqlite:/a/b.db", True),
        ("jdbc:sqlite:file:/a/b.db", False),
        ("jdbc:sqlite:b.db", False),
        ("jdbc:postgresql://db/shop", True),
        ("jdbc:postgresql:shop", False),
        ("jdbc:postgresql://db:5432/", False),
        ("jdbc:postgresql://one:1,two:2/shop", False),
        ("jdbc:postgresql://[::1/shop", False),
        ("jdbc:postgresql://db/shop?currentSchema=", False),
        ("jdbc:sqlite::memory:", False),
        ("jdbc:postgresql://db:5432/shop?sslmode=require", True),
        ("jdbc:postgresql://db:5432/shop?currentSchema=s", False),
        ("jdbc:mysql://db/shop", False),
    ],
)
def test_python_asks_what_it_reaches_by_the_same_url(url: str, *, expected: bool) -> None:
    assert can_ask(url) is expected
