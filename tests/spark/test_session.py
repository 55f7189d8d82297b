"""The session: started from plain Python, under spark-submit, and again on a running JVM."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from pyspark.sql import functions

from tests.support.postgres_server import PASSWORD
from tidemark.errors import ConfigurationInvalid
from tidemark.spark.conf import submit_conf
from tidemark.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.iceberg.shards import Shards
    from tidemark.settings import Settings

pytestmark = pytest.mark.spark

PROJECT = Path(__file__).resolve().parents[2]

WRITE_AND_READ = """
import os, pathlib, sys
from tidemark.settings import Settings
from tidemark.spark.session import spark_session

with spark_session(Settings.load(os.environ), app_name="from outside") as spark:
    spark.sql("INSERT INTO tidemark.collections.numbers SELECT * FROM range(3)")
    print("rows", spark.table("tidemark.collections.numbers").count())
    print("master", spark.sparkContext.master)
    print("zone", spark.conf.get("spark.sql.session.timeZone"))
    lines = [path.read_bytes() for path in pathlib.Path("/proc").glob("[0-9]*/cmdline") if os.access(path, os.R_OK)]
    print("leaked", any(b"tide/mark" + b":secret" in line for line in lines))  # in two parts: this is an argument too
"""


def create_numbers(settings: Settings) -> None:
    """Make the catalog database as the publisher does, with a table that Spark can write to."""
    uri = settings.catalog_uri.reveal("postgresql+psycopg")
    catalog = SqlCatalog("tidemark", uri=uri, warehouse=settings.warehouse)
    catalog.create_namespace_if_not_exists("collections")
    catalog.create_table("collections.numbers", Schema(NestedField(1, "id", LongType())))
    catalog.engine.dispose()


def environ_of(settings: Settings) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # spark-submit finds Spark through `python3`
        "PYTHONPATH": str(PROJECT / "include"),
        "TIDEMARK_HOME": str(settings.home),
        "TIDEMARK_CATALOG_URI": settings.catalog_uri.reveal(),
        "TIDEMARK_JARS": str(settings.jars),
    }


def said_by(process: subprocess.CompletedProcess[str]) -> dict[str, str]:
    assert process.returncode == 0, process.stderr[-4000:]
    return dict(line.split(" ", 1) for line in process.stdout.splitlines())


@pytest.mark.postgres
def test_plain_python_keeps_the_password_off_the_command_line(postgres_home: Settings, tmp_path: Path) -> None:
    create_numbers(postgres_home)
    assert PASSWORD.startswith("tide/mark:secret")
    process = subprocess.run(
        [sys.executable, "-c", WRITE_AND_READ],
        env=environ_of(postgres_home),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said_by(process) == {"rows": "3", "master": "local[*]", "zone": "UTC", "leaked": "False"}
    for noise in ("INFO", "log4j", "Setting default log level", "Stage", "NativeCodeLoader"):
        assert noise not in process.stderr


def test_spark_submit_has_chosen_master_and_jars(home: Settings, tmp_path: Path) -> None:
    create_numbers(home)
    script = tmp_path / "write_and_read.py"
    script.write_text(WRITE_AND_READ, encoding="utf-8")
    conf = submit_conf(home)
    process = subprocess.run(
        [
            str(Path(sys.executable).with_name("spark-submit")),
            *("--master", "local[1]"),
            *("--jars", conf.pop("spark.jars")),
            *("--driver-class-path", conf.pop("spark.driver.extraClassPath")),
            *(word for key, value in conf.items() for word in ("--conf", f"{key}={value}")),
            str(script),
        ],
        env=environ_of(home),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said_by(process) == {"rows": "3", "master": "local[1]", "zone": "UTC", "leaked": "False"}


def test_second_session_has_its_own_catalog_and_leaves_the_jvm_up(
    spark: SparkSession, home: Settings, shards: Shards
) -> None:
    create_numbers(home)
    with spark_session(home, app_name="second") as second:
        second.sql("INSERT INTO tidemark.collections.numbers VALUES (1)")
        assert second.table("tidemark.collections.numbers").count() == 1
    assert spark.sql("SHOW TABLES IN tidemark.collections").where("tableName = 'numbers'").count() == 0
    assert spark.range(2).count() == 2


def test_a_column_asks_the_jvm_one_question(jvm: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    client, asked = jvm.sparkContext._gateway._gateway_client, []
    send = client.send_command

    def count(command: str, *arguments: Any, **named: Any) -> Any:
        if not command.startswith("m\nd\n"):  # objects that nobody uses any more are forgotten at any time
            asked.append(command)
        return send(command, *arguments, **named)

    functions.col("a")  # the first column of all asks for options, too
    monkeypatch.setattr(client, "send_command", count)
    functions.col("a")
    assert len(asked) == 1


@pytest.mark.postgres
def test_second_session_may_have_a_catalog_in_postgresql(jvm: SparkSession, postgres_home: Settings) -> None:
    create_numbers(postgres_home)
    with spark_session(postgres_home, app_name="second") as second:
        second.sql("INSERT INTO tidemark.collections.numbers VALUES (1)")
        assert second.table("tidemark.collections.numbers").count() == 1


def test_a_warehouse_that_spark_cannot_speak_to_is_said_before_anything_is_done(
    jvm: SparkSession, home: Settings
) -> None:
    assert jvm.sparkContext is not None
    away = replace(home, warehouse="s3://bucket/lake")
    with pytest.raises(ConfigurationInvalid, match="s3://bucket/lake") as caught, spark_session(away, app_name="x"):
        pass
    assert "iceberg-aws-bundle" in caught.value.hint
