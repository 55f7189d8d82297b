"""What Spark's tasks raised while they read a buffer, which arrives as text in an error of Spark's, as errors again."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j has no annotations
from pyspark.errors import PySparkException

from tidemark.errors import InputsGone
from tidemark.write_buffer.errors import AfterWatermark, BufferMissing, BufferUnreachable, NoLongerExists

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidemark.errors import TidemarkError

_RAISED = re.compile(rf"\b{re.escape(BufferUnreachable.__module__)}\.(\w+): (.+)")  # the last line of a traceback
_PLAN_AGAIN = {each.__name__ for each in (AfterWatermark, BufferMissing, NoLongerExists)}


@contextmanager
def translating_tasks() -> Iterator[None]:
    """Turn the errors of Spark in the block into those that its tasks raised; others pass unchanged.

    Raises:
        BufferUnreachable: If the log could not be read.
        InputsGone: If it does not hold any more what was planned: plan again, which says what is gone.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        translated = translate_task_error(str(error))
        if translated is None:
            raise
        raise translated from error


def translate_task_error(text: str) -> TidemarkError | None:
    """Return the error that a task raised, by what Spark's says; None if it is none of a buffer's."""
    for kind, message in _RAISED.findall(text):
        if kind == BufferUnreachable.__name__:
            return BufferUnreachable(message.strip(), hint="is the broker well? then run it again")
        if kind in _PLAN_AGAIN:
            return InputsGone(message.strip(), hint="run it again")
    return None
