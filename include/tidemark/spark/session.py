"""Makes Spark sessions, for all other modules.

pyspark is imported when a session is made, not before: most commands need no Spark, and the import takes a second.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from threading import Lock
from typing import TYPE_CHECKING, Any

from tidemark.errors import ConfigurationInvalid
from tidemark.settings import Settings
from tidemark.spark.conf import S3_SCHEMES, catalog_conf, catalog_secrets, local_conf, session_conf, submit_conf
from tidemark.spark.toolchain import S3_PACKAGES

_S3_CLIENT = "software.amazon.awssdk.services.s3.S3Client"
_FUNCTIONS = ("col", "expr", "isnull", "lit", "when", "xxhash64")
_OFTEN_ASKED_FOR = {  # by class, its members that are asked for often
    "PythonSQLUtils": (),
    "PythonUtils": ("toSeq",),
    "functions": _FUNCTIONS,
    "org.apache.hadoop.fs.Path": (),
    "org.apache.spark.sql.catalyst.trees.TreePattern": (),
    "org.apache.spark.sql.classic.SparkSession": (),
    "org.apache.spark.sql.functions": _FUNCTIONS,
}

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


@contextmanager
def spark_session(
    settings: Settings,
    *,
    app_name: str,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    is_small: bool = False,
) -> Iterator[SparkSession]:
    """Yield a session whose catalog ``tidemark`` is the one of ``settings``.

    Works in plain Python and under ``spark-submit``, which has then chosen master, jars and memory. If this process
    runs Spark already, the session is a new one on it with its own catalog, and Spark keeps running at the end.

    ``master`` and ``is_small`` (as of ``submit_conf``) are for plain Python only; without a master, this machine's
    cores work. ``conf`` wins over all options that are set here. Spark's own pages show ``app_name``.

    Raises ``ConfigurationInvalid`` if jars are missing, those for a warehouse in an object store included.
    """
    from pyspark import SparkContext  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    running = SparkContext._active_spark_context  # noqa: SLF001 - the only way to ask without starting one
    if running is not None:
        yield _session_on_running(running, settings, conf or {})
        return
    context = _start_context(settings, app_name=app_name, master=master, conf=conf or {}, is_small=is_small)
    try:
        _check_store(context, settings)
        _set_in_driver(context, catalog_secrets(settings))
        _remember_names(context)
        yield SparkSession(context)
    finally:
        context.stop()


@contextmanager
def spark_on_demand(
    settings: Settings, *, app_name: str, starting: Callable[[], AbstractContextManager[object]] = nullcontext
) -> Iterator[Callable[[], SparkSession]]:
    """Yield a function that starts a session at its first call, and then returns this session; stop it at the end.

    ``starting`` surrounds the start, which takes seconds: it shows people that Spark starts. Any thread may call the
    function. The rest as ``spark_session``.
    """
    with ExitStack() as stack:
        lock = Lock()
        started: list[SparkSession] = []

        def start_spark() -> SparkSession:
            with lock:
                if not started:
                    with starting():
                        started.append(stack.enter_context(spark_session(settings, app_name=app_name)))
                return started[0]

        yield start_spark


def _start_context(
    settings: Settings, *, app_name: str, master: str | None, conf: Mapping[str, str], is_small: bool
) -> SparkContext:
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415

    spark_conf = SparkConf().setAppName(app_name)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit made the JVM: its choices stand
    wanted = session_conf() | catalog_conf(settings)
    if not submitted:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # of the workers; else any `python3` of the PATH
        spark_conf.setMaster(master or "local[*]")
        wanted |= submit_conf(settings, is_small=is_small)
    if (spark_conf.get("spark.master") or "").startswith("local"):
        wanted = local_conf(_local_cores(str(spark_conf.get("spark.master")))) | wanted
    given = {key for key, _ in spark_conf.getAll()}
    for key, value in (wanted | dict(conf)).items():
        if key in conf or key not in given:
            spark_conf.set(key, value)
    return SparkContext(conf=spark_conf)


def _check_store(context: SparkContext, settings: Settings) -> None:
    """Raise ``ConfigurationInvalid`` if the warehouse is in S3 and Spark cannot speak to it."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # noqa: PLC0415  # comes with Spark

    if not settings.warehouse.startswith(S3_SCHEMES):
        return
    jvm: Any = context._jvm  # noqa: SLF001 - no Python form of it
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(_S3_CLIENT)
    except Py4JJavaError as error:
        raise ConfigurationInvalid(
            f"Spark cannot read or write {settings.warehouse}: it has no {_S3_CLIENT}",
            hint=f"put the jars of {', '.join(S3_PACKAGES)}, and of Hadoop's own client for S3, into TIDEMARK_JARS",
        ) from error


def _local_cores(master: str) -> int:
    text = master.removeprefix("local").strip("[]").split(",")[0]
    if text == "*":
        return len(os.sched_getaffinity(0))
    return int(text or 1)


def _set_in_driver(context: SparkContext, secrets: Mapping[str, str]) -> None:
    # pyspark passes a SparkConf to the JVM as `--conf` arguments, which `ps` shows to everybody. Later sessions take
    # over the options of the running context, and Spark redacts them in its lists.
    java_conf = context._jsc.sc().conf()  # noqa: SLF001 - no Python form of it
    for key, value in secrets.items():
        java_conf.set(key, value)


def _remember_names(context: SparkContext) -> None:
    """Keep what pyspark looks up for each column and each frame.

    pyspark asks the JVM for a class whenever it calls one, and the JVM seeks some names in each of 300 jars.
    """
    jvm = context._jvm  # noqa: SLF001 - no Python form of it
    for class_name, members in _OFTEN_ASKED_FOR.items():
        found = getattr(jvm, class_name)
        setattr(jvm, class_name, found)
        for member in members:
            setattr(found, member, getattr(found, member))


def _session_on_running(context: SparkContext, settings: Settings, conf: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415

    _check_store(context, settings)
    session = SparkSession(context).newSession()
    for key, value in (catalog_conf(settings) | catalog_secrets(settings) | dict(conf)).items():
        session.conf.set(key, value)
    return session
