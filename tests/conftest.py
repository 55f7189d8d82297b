"""Fixtures for all tests; shuts out whatever configuration the developer's machine has.

One JVM serves a whole test session. A test that needs a catalog of its own takes ``home`` (settings, no JVM) and
``home_spark`` (a session on the one JVM whose catalog is that home); others share ``shards`` and choose a
``unique_name``.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

PROJECT_ROOT = Path(__file__).resolve().parents[1]
ROOT = Path(tempfile.mkdtemp(prefix="tidemark-tests-"))
# A JVM of the tests lives for seconds or minutes over a few rows: the better compiler costs more than it saves.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# With this compiler alone a JVM has room for 48 MB of code, which one session of tests fills: the JVM would spend its
# time on throwing code away and compiling that code again; and on collecting garbage, with little room for it.
ROOMY_JAVA = f"{QUICK_JAVA} -XX:ReservedCodeCacheSize=240m -XX:MetaspaceSize=256m -Xmn384m"


def _isolate_environment() -> None:
    # Here and not in a fixture: Airflow and Spark read these when they are imported.
    jars = os.environ.get("TIDEMARK_JARS")  # part of the set-up, not of the state
    for name in [each for each in os.environ if each.startswith(("TIDEMARK_", "AIRFLOW_", "AIRFLOW__", "SPARK_"))]:
        del os.environ[name]
    for name in ("PYSPARK_SUBMIT_ARGS", "PYTHONWARNINGS"):
        os.environ.pop(name, None)
    for folder in ("airflow", "spark-conf", "home", "runtime"):
        (ROOT / folder).mkdir(mode=0o700)
    os.environ |= {
        "AIRFLOW_HOME": str(ROOT / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(PROJECT_ROOT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(PROJECT_ROOT / "plugins"),
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "SPARK_CONF_DIR": str(ROOT / "spark-conf"),
        "SPARK_LAUNCHER_OPTS": QUICK_JAVA,
        "SPARK_SUBMIT_OPTS": ROOMY_JAVA,  # for every driver that a test submits; these keep generated code
        "TIDEMARK_HOME": str(ROOT / "home"),
        "TZ": "UTC",
        "XDG_RUNTIME_DIR": str(ROOT / "runtime"),  # where the PostgreSQL package keeps its lock
        **({"TIDEMARK_JARS": jars} if jars else {}),
    }
    time.tzset()


_isolate_environment()

from tests.support import cpu_time  # noqa: E402 - after the environment is clean
from tests.support.compiled_statements import share_compiled_statements  # noqa: E402
from tests.support.exploration import is_soak, list_characters, register_profiles  # noqa: E402
from tidemark.settings import Settings  # noqa: E402
from tidemark.spark.session import spark_session  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.support.postgres_server import PostgresServer
    from tidemark.iceberg.shards import Shards
    from tools.kafka_broker import KafkaBroker


share_compiled_statements()
register_profiles()  # before the option --hypothesis-profile is read


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu", type=int, default=0, metavar="N", help="name the N tests that took the most CPU seconds")
    parser.addoption("--write-cpu-budgets", action="store_true", help="write what was measured to tests/cpu_budgets.py")
    parser.addoption("--cpu-file", metavar="FILE", help="write there how many CPU seconds all tests took")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(cpu_time.CpuTime())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if any(hasattr(getattr(item, "obj", None), "hypothesis") for item in items):
        list_characters()


def pytest_unconfigure() -> None:
    shutil.rmtree(ROOT, ignore_errors=True)


def settings_in(home: Path, **more: str) -> Settings:
    """Return embedded settings below ``home``, with the jars of the set-up; ``more`` are ``TIDEMARK_`` variables."""
    environ = {"TIDEMARK_HOME": str(home), **more}
    if "TIDEMARK_JARS" in os.environ:
        environ["TIDEMARK_JARS"] = os.environ["TIDEMARK_JARS"]
    return Settings.load(environ)


@pytest.fixture(scope="session")
def settings() -> Settings:
    """The settings of the home that the test session shares."""
    return settings_in(ROOT / "home")


@pytest.fixture(scope="session")
def jvm(settings: Settings) -> Iterator[SparkSession]:
    """The first session, which owns the JVM, and whose configuration all others take over.

    Over a few rows Spark spends most of the time on generating and compiling code: here it interprets the expressions
    instead. Applications that tests submit run generated code, and so does a soak.
    """
    interpreted = {"spark.sql.codegen.factoryMode": "NO_CODEGEN", "spark.sql.codegen.wholeStage": "false"}
    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "1",
        "spark.sql.adaptive.coalescePartitions.initialPartitionNum": "2",
        **({} if is_soak() else interpreted),
    }
    with spark_session(settings, app_name="tidemark-tests", master="local[2]", conf=conf) as session:
        logging.getLogger("py4j").setLevel(logging.WARNING)  # it tells of its end when pytest's streams are closed
        yield session


@pytest.fixture
def spark(jvm: SparkSession, settings: Settings) -> Iterator[SparkSession]:
    """A session on the shared home; what a test sets in it is gone with it."""
    with spark_session(settings, app_name="tidemark-tests") as session:
        session.conf.set("spark.sql.shuffle.partitions", "2")
        yield session


@pytest.fixture(scope="session")
def shards(settings: Settings) -> Shards:
    """The shards of the shared home: create yours under a ``unique_name``."""
    from tidemark.iceberg.shards import Shards

    return Shards.connect(settings)


@pytest.fixture
def unique_name(request: pytest.FixtureRequest) -> str:
    """A collection name that no other test of this session has."""
    words = re.sub(r"\W+", "_", request.node.name).strip("_").lower()
    return f"{words[:60]}_{zlib.crc32(request.node.nodeid.encode()):08x}"


@pytest.fixture(scope="session")
def empty_catalog() -> Path:
    """The database of a catalog without tables: made once and copied, which saves every test four commits."""
    from tidemark.iceberg.shards import Shards

    folder = ROOT / "empty"
    folder.mkdir()
    settings = settings_in(folder)
    Shards.connect(settings).iceberg.close()
    return settings.catalog_path


@pytest.fixture
def bare_home(tmp_path: Path) -> Settings:
    """Settings of a home of the test's own in which there is nothing, not even a catalog."""
    folder = tmp_path / "home"
    folder.mkdir()
    return settings_in(folder)


@pytest.fixture
def home(bare_home: Settings, empty_catalog: Path) -> Settings:
    """Settings of a home of the test's own, with an empty catalog."""
    shutil.copy(empty_catalog, bare_home.catalog_path)
    return bare_home


@pytest.fixture
def home_spark(jvm: SparkSession, home: Settings) -> Iterator[SparkSession]:
    """A session on the one JVM whose catalog ``tidemark`` is that of ``home``."""
    with spark_session(home, app_name="tidemark-tests") as session:
        session.conf.set("spark.sql.shuffle.partitions", "2")
        yield session


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server on a loopback port; ``create_database`` gives an empty database and its URI."""
    from tests.support.postgres_server import running_postgres

    # Not below tmp_path: the next pytest on the machine shuts that folder to the server's user.
    (ROOT / "postgres").mkdir()
    with running_postgres(ROOT / "postgres" / "data") as server:
        yield server


@pytest.fixture(scope="session")
def kafka(settings: Settings) -> Iterator[KafkaBroker]:
    """A Kafka broker on loopback ports, for topics of a ``unique_name``; whoever stops it starts it again."""
    from tools.kafka_broker import KafkaBroker

    broker = KafkaBroker(ROOT / "kafka", settings.jars)
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()  # nobody needs its data any more


@pytest.fixture
def postgres_home(postgres: PostgresServer, tmp_path: Path, unique_name: str) -> Settings:
    """Settings whose catalog is an empty PostgreSQL database, with the warehouse below ``tmp_path``."""
    folder = tmp_path / "home"
    folder.mkdir()
    return settings_in(folder, TIDEMARK_CATALOG_URI=postgres.create_database(unique_name[-50:]))
