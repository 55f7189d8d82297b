"""Spark's configuration as plain dictionaries. Without pyspark, since the Airflow operator imports this module."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tidemark.errors import ConfigurationInvalid
from tidemark.settings import Settings
from tidemark.spark.class_archive import class_archive
from tidemark.spark.toolchain import FETCH_JARS

CATALOG = "tidemark"  # pyiceberg's catalog bears the same name: rows of the catalog database are keyed by it
_PREFIX = f"spark.sql.catalog.{CATALOG}"
S3_SCHEMES = ("s3://", "s3a://")
_BUSY_TIMEOUT_MS = 30_000
_LOG_CONFIGURATION = Path(__file__).with_name("log4j2.properties")
_DEFAULT_DRIVER_MEMORY = "2g"
_QUIETLY = ("-Xlog:disable", "-Xlog:all=error:stderr")  # of an archive that does not fit nobody needs to hear
_SMALL_JAVA = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
_SMALL = {
    "spark.default.parallelism": "1",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.coalescePartitions.initialPartitionNum": "1",
}


def list_jars(settings: Settings) -> list[Path]:
    """Return Spark's extra jars, sorted. Raises ``ConfigurationInvalid`` without a jar: nobody ran the set-up."""
    jars = sorted(settings.jars.glob("*.jar"))
    if not jars:
        raise ConfigurationInvalid(
            f"TIDEMARK_JARS names {str(settings.jars)!r}, where there is no jar", hint=f"run `{FETCH_JARS}`"
        )
    return jars


def submit_conf(
    settings: Settings, environ: Mapping[str, str] = os.environ, *, is_small: bool = False
) -> dict[str, str]:
    """Return the options that count only when the JVM starts: class path, Java options, memory. Has no secret.

    The jars are on the driver's own class path and not only in ``spark.jars``: ``DriverManager`` does not see
    drivers of a child class loader, and says "No suitable driver".

    A run that ``is_small`` takes its time for starting: its code is compiled fast instead of well, its rows are in one
    part.
    """
    jars = list_jars(settings)
    options = ["-Duser.timezone=UTC", f"-Dlog4j2.configurationFile={_LOG_CONFIGURATION.as_uri()}"]
    archive = class_archive(settings.jars, environ)
    if archive is not None and archive.exists():
        options += [f'"-XX:SharedArchiveFile={archive}"', *_QUIETLY]
    conf = {
        "spark.jars": ",".join(jar.as_uri() for jar in jars),
        "spark.driver.extraClassPath": os.pathsep.join(str(jar) for jar in jars),
        "spark.driver.extraJavaOptions": " ".join([*options, *(_SMALL_JAVA if is_small else ())]),
        "spark.executor.extraJavaOptions": "-Duser.timezone=UTC",
        **(_SMALL if is_small else {}),
    }
    if "SPARK_DRIVER_MEMORY" not in environ:  # an explicit setting would win over the variable
        conf["spark.driver.memory"] = _DEFAULT_DRIVER_MEMORY
    return conf


def session_conf() -> dict[str, str]:
    """Return the options of every session, for any catalog and any start of the JVM."""
    return {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.adaptive.enabled": "true",
        # Digests group by up to 2^20 buckets; Spark's quick aggregation takes 2^16 groups, and is half as fast above.
        "spark.sql.codegen.aggregate.fastHashMap.capacityBit": "20",
        "spark.scheduler.mode": "FAIR",  # one collection's long job must not hold up the others
        "spark.ui.showConsoleProgress": "false",
        # Spark can remember which Python line made a column; this doubles the time per column, and the line is ours.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.dataFrameQueryContext.enabled": "false",
        # Spark keeps the texts of the last plans, of a thousand by default; one that holds a set of buckets has 1 MB.
        "spark.sql.ui.retainedExecutions": "100",
    }


def local_conf(cores: int) -> dict[str, str]:
    """Return the options of a driver that is its own executor, with ``cores`` task slots."""
    return {
        "spark.driver.host": "127.0.0.1",  # the machine's name need not resolve
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": str(2 * cores),
        # Many, to be joined by size: a sort of 20 M rows in a few parts would not fit into the heap.
        "spark.sql.adaptive.coalescePartitions.initialPartitionNum": str(16 * cores),
    }


def catalog_conf(settings: Settings) -> dict[str, str]:
    """Return the catalog's options without user and password, which ``catalog_secrets`` has."""
    conf = {
        _PREFIX: "org.apache.iceberg.spark.SparkCatalog",
        f"{_PREFIX}.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        f"{_PREFIX}.warehouse": settings.warehouse,
        f"{_PREFIX}.jdbc.schema-version": "V1",
        f"{_PREFIX}.cache-enabled": "false",  # the publisher commits outside of Spark
    }
    if settings.warehouse.startswith(S3_SCHEMES):
        conf[f"{_PREFIX}.io-impl"] = "org.apache.iceberg.aws.s3.S3FileIO"
    if settings.catalog_is_sqlite:
        return conf | {
            f"{_PREFIX}.uri": f"jdbc:sqlite:{settings.catalog_path}",
            f"{_PREFIX}.jdbc.journal_mode": "WAL",
            f"{_PREFIX}.jdbc.busy_timeout": str(_BUSY_TIMEOUT_MS),
            f"{_PREFIX}.clients": "1",  # SQLite has one writer; a second connection would only wait for the first
        }
    return conf | {
        f"{_PREFIX}.uri": settings.catalog_uri.jdbc_url,
        f"{_PREFIX}.jdbc.connectTimeout": str(max(1, int(settings.connect_timeout_s))),
        f"{_PREFIX}.jdbc.ApplicationName": "tidemark",
        f"{_PREFIX}.clients": "4",
    }


def catalog_secrets(settings: Settings) -> dict[str, str]:
    """Return user and password of the catalog database.

    Set them only inside the running driver: every process of the machine can read a command line.
    """
    if settings.catalog_is_sqlite:
        return {}
    return {f"{_PREFIX}.jdbc.{key}": value for key, value in settings.catalog_uri.jdbc_secrets.items()}
