"""Room for what one run writes down for itself: copies of sources, corrections on their way."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tidemark.settings import Settings

SCRATCH = "_scratch"  # below the warehouse, which driver and executors share


@contextmanager
def scratch_folder(spark: SparkSession, settings: Settings) -> Iterator[str]:
    """Yield the URI of a folder that does not exist yet, and remove it at the end with what is in it.

    What a killed run leaves is taken by ``remove_abandoned_scratch``.
    """
    folder = f"{scratch_root(settings)}/{uuid4()}"
    try:
        yield folder
    finally:
        _remove(spark, folder)


def remove_abandoned_scratch(spark: SparkSession, settings: Settings, *, older_than_ms: int) -> int:
    """Remove folders that nobody has written to since ``older_than_ms`` (ms since the Unix epoch); return how many.

    It must lie further back than the longest run takes.
    """
    path, filesystem = _at(spark, scratch_root(settings))
    if not filesystem.exists(path):
        return 0
    old = [folder for folder in filesystem.listStatus(path) if _last_written_ms(filesystem, folder) < older_than_ms]
    for folder in old:
        filesystem.delete(folder.getPath(), True)  # noqa: FBT003  Java knows no keyword arguments
    return len(old)


def scratch_root(settings: Settings) -> str:
    """Return the folder that all runs make theirs in, as Hadoop's file systems name it."""
    return f"{settings.warehouse}/{SCRATCH}".replace("s3://", "s3a://")


def _last_written_ms(filesystem: Any, folder: Any) -> int:
    """Return the time of the youngest file, because a folder in an object store has none of its own."""
    files, times = filesystem.listFiles(folder.getPath(), True), []  # noqa: FBT003
    while files.hasNext():
        times.append(int(files.next().getModificationTime()))
    return max(times, default=int(folder.getModificationTime()))


def _remove(spark: SparkSession, folder: str) -> None:
    path, filesystem = _at(spark, folder)
    filesystem.delete(path, True)  # noqa: FBT003


def _at(spark: SparkSession, folder: str) -> tuple[Any, Any]:
    jvm, context = spark._jvm, spark.sparkContext._jsc  # noqa: SLF001  Hadoop's file systems have no Python form
    assert jvm is not None  # noqa: S101  only a session of Spark Connect has none
    path = jvm.org.apache.hadoop.fs.Path(folder)
    return path, path.getFileSystem(context.hadoopConfiguration())
