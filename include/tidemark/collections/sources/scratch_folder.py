"""Folders for the temporary files of one run: copies of sources, and corrections before they are staged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tidemark.collections.sources.file_listing import hadoop_path
from tidemark.iceberg.leases.protection import protect_writers
from tidemark.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRATCH = "_scratch"  # below the warehouse, which driver and executors share


@contextmanager
def scratch_folder(spark: SparkSession, settings: Settings) -> Iterator[str]:
    """Yield the URI of a folder that does not exist yet, and remove the folder at the end.

    ``remove_abandoned_scratch`` removes the folder of a killed run.
    """
    folder = f"{scratch_root(settings)}/{uuid4()}"
    try:
        yield folder
    finally:
        path, filesystem = hadoop_path(folder, spark)
        filesystem.delete(path, True)  # noqa: FBT003  Java knows no keyword arguments


def remove_abandoned_scratch(spark: SparkSession, settings: Settings, *, older_than_ms: int) -> int:
    """Remove the folders without writes since ``older_than_ms`` (ms since the Unix epoch); return their number.

    ``older_than_ms`` must lie further back than the longest run takes. Those of runs that hold a lease stay.
    """
    path, filesystem = hadoop_path(scratch_root(settings), spark)
    if not filesystem.exists(path):
        return 0
    old = [folder for folder in filesystem.listStatus(path) if _last_written_ms(filesystem, folder) < older_than_ms]
    if old and (since_ms := protect_writers(settings)) is not None:
        old = [folder for folder in old if _last_written_ms(filesystem, folder) < since_ms]
    for folder in old:
        filesystem.delete(folder.getPath(), True)  # noqa: FBT003
    return len(old)


def scratch_root(settings: Settings) -> str:
    """Return the URI of the folder that holds the folders of all runs, as Hadoop names it."""
    return f"{settings.warehouse}/{SCRATCH}".replace("s3://", "s3a://")


def _last_written_ms(filesystem: Any, folder: Any) -> int:
    """Return the time of the youngest file, because a folder in an object store has no time."""
    files, times = filesystem.listFiles(folder.getPath(), True), []  # noqa: FBT003
    while files.hasNext():
        times.append(int(files.next().getModificationTime()))
    return max(times, default=int(folder.getModificationTime()))
