"""What a task of Spark's raised while it read a buffer is known again by its text."""

from __future__ import annotations

import traceback

import pytest
from pyspark.errors import PySparkException

from tidemark.errors import InputsGone, TidemarkError
from tidemark.ingest.spark_source import translating_tasks
from tidemark.write_buffer.errors import AfterWatermark, BufferUnreachable, NoLongerExists


def as_spark_tells(error: Exception) -> PySparkException:
    """Return what the driver gets of an error of a task: its traceback, as text in one of Spark's."""
    try:
        raise error
    except type(error) as raised:
        told = "".join(traceback.format_exception(raised))
    return PySparkException(f"[PYTHON_DATA_SOURCE_ERROR] Failed to read: {told}\n\tat org.apache.spark.Some.thing\n")


@pytest.mark.parametrize(
    ("raised", "known"),
    [
        (BufferUnreachable("t delivers nothing", hint="is the broker well?"), BufferUnreachable),
        (NoLongerExists(0, 2, 5, buffer="t"), InputsGone),
        (AfterWatermark(0, 5, 2, buffer="t"), InputsGone),
    ],
)
def test_errors_of_tasks_are_known_again(raised: TidemarkError, known: type[TidemarkError]) -> None:
    with pytest.raises(known) as caught, translating_tasks():
        raise as_spark_tells(raised)
    assert (str(caught.value), bool(caught.value.hint)) == (str(raised), True)


def test_what_is_nobodys_fault_that_is_known_passes() -> None:
    with pytest.raises(PySparkException), translating_tasks():
        raise as_spark_tells(ZeroDivisionError("division by zero"))
