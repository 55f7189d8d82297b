"""What Spark is told, without a JVM."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.conftest import settings_in
from tidemark.errors import ConfigurationInvalid
from tidemark.settings import Settings
from tidemark.spark.class_archive import class_archive
from tidemark.spark.conf import catalog_conf, catalog_secrets, list_jars, session_conf, submit_conf

if TYPE_CHECKING:
    from pathlib import Path


def test_it_is_importable_without_pyspark() -> None:
    code = "import sys, tidemark.spark.conf; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_sqlite_catalog_waits_for_locks_and_uses_one_connection(tmp_path: Path) -> None:
    conf = catalog_conf(settings_in(tmp_path))
    assert conf["spark.sql.catalog.tidemark.uri"] == f"jdbc:sqlite:{tmp_path / 'catalog.db'}"
    assert conf["spark.sql.catalog.tidemark.clients"] == "1"
    assert conf["spark.sql.catalog.tidemark.jdbc.journal_mode"] == "WAL"
    assert conf["spark.sql.catalog.tidemark.cache-enabled"] == "false"


def test_password_is_unquoted_and_only_among_the_secrets(tmp_path: Path) -> None:
    uri = "postgresql://someone:p%40ss%2Fword@db.example:6543/lake?sslmode=require"
    settings = settings_in(tmp_path, TIDEMARK_CATALOG_URI=uri)
    public = catalog_conf(settings)
    assert public["spark.sql.catalog.tidemark.uri"] == "jdbc:postgresql://db.example:6543/lake?sslmode=require"
    assert catalog_secrets(settings) == {
        "spark.sql.catalog.tidemark.jdbc.user": "someone",
        "spark.sql.catalog.tidemark.jdbc.password": "p@ss/word",
    }
    assert not any("ss/word" in value or "ss%2Fword" in value for value in public.values())


def test_ipv6_address_and_missing_port(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, TIDEMARK_CATALOG_URI="postgresql://[::1]/lake")
    assert catalog_conf(settings)["spark.sql.catalog.tidemark.uri"] == "jdbc:postgresql://[::1]:5432/lake"
    assert catalog_secrets(settings) == {}


def test_object_store_gets_its_own_file_io(tmp_path: Path) -> None:
    conf = catalog_conf(settings_in(tmp_path, TIDEMARK_WAREHOUSE="s3://bucket/lake"))
    assert conf["spark.sql.catalog.tidemark.io-impl"] == "org.apache.iceberg.aws.s3.S3FileIO"


def test_jars_are_on_the_drivers_own_class_path(tmp_path: Path) -> None:
    for name in ("a b.jar", "c.jar"):
        (tmp_path / name).touch()
    settings = Settings.load({"TIDEMARK_HOME": str(tmp_path), "TIDEMARK_JARS": str(tmp_path)})
    conf = submit_conf(settings, environ={})
    assert conf["spark.driver.extraClassPath"] == f"{tmp_path}/a b.jar:{tmp_path}/c.jar"
    assert conf["spark.jars"].split(",")[0].endswith("/a%20b.jar")
    assert conf["spark.driver.memory"] == "2g"
    assert "spark.driver.memory" not in submit_conf(settings, environ={"SPARK_DRIVER_MEMORY": "8g"})
    assert " " not in session_conf()["spark.sql.extensions"]


def test_missing_jars_name_the_setting_and_the_way_out(tmp_path: Path) -> None:
    settings = Settings.load({"TIDEMARK_HOME": str(tmp_path), "TIDEMARK_JARS": str(tmp_path / "none")})
    with pytest.raises(ConfigurationInvalid, match="TIDEMARK_JARS") as caught:
        list_jars(settings)
    assert "make setup" in caught.value.hint


def test_a_small_run_starts_fast_and_nothing_else_differs(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    whole, small = submit_conf(settings, environ={}), submit_conf(settings, environ={}, is_small=True)
    changed = {name for name in small if small[name] != whole.get(name)}
    assert changed == {
        "spark.default.parallelism", "spark.driver.extraJavaOptions", "spark.sql.shuffle.partitions",
        "spark.sql.adaptive.coalescePartitions.initialPartitionNum",
    }  # fmt: skip
    assert small["spark.driver.extraJavaOptions"].startswith(whole["spark.driver.extraJavaOptions"])
    assert "-XX:TieredStopAtLevel=1" in small["spark.driver.extraJavaOptions"]


def test_an_archive_of_classes_is_named_only_where_there_is_one_for_this_java(tmp_path: Path) -> None:
    java, jars = tmp_path / "java" / "bin" / "java", tmp_path / "my jars"
    java.parent.mkdir(parents=True)
    java.touch()
    jars.mkdir()
    (jars / "a.jar").touch()
    settings = Settings.load({"TIDEMARK_HOME": str(tmp_path), "TIDEMARK_JARS": str(jars)})
    environ = {"JAVA_HOME": str(tmp_path / "java")}
    place = class_archive(jars, environ)
    assert place is not None
    assert "jsa" not in submit_conf(settings, environ)["spark.driver.extraJavaOptions"]
    place.touch()
    assert f'"-XX:SharedArchiveFile={place}"' in submit_conf(settings, environ)["spark.driver.extraJavaOptions"]
    os.utime(java, ns=(1, 1))  # another Java
    assert "jsa" not in submit_conf(settings, environ)["spark.driver.extraJavaOptions"]
    assert class_archive(jars, {"JAVA_HOME": str(tmp_path / "none")}) is None
