"""A Spark session for work of which most needs none: started when it is first asked for."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from tidemark.settings import Settings


@contextmanager
def spark_on_demand(
    settings: Settings, *, app_name: str, starting: Callable[[], AbstractContextManager[object]] = nullcontext
) -> Iterator[Callable[[], SparkSession]]:
    """Yield a function that returns the one session, which is stopped at the end if it was ever asked for.

    Args:
        settings: As ``spark_session``.
        app_name: As ``spark_session``.
        starting: Surrounds the seconds that the start takes, to tell people of it.
    """
    with ExitStack() as stack:

        @cache
        def start_spark() -> SparkSession:
            from tidemark.spark.session import spark_session  # noqa: PLC0415 - takes a second, and is mostly not needed

            with starting():
                return stack.enter_context(spark_session(settings, app_name=app_name))

        yield start_spark
