"""A process that dies at a fail point and shares the test's JVM: starting another one takes longer than the test."""

from __future__ import annotations

import os
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def exit_code_of_death(point: str, run: Callable[[], object]) -> int:
    """Run ``run`` in a fork that dies at ``point``, and return how the fork ended.

    Spark has nothing under way between two steps of a driver, so that a driver's death is all that there is to see.
    """
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status)
    code = 1
    try:
        os.environ["TIDEMARK_FAIL_POINT"] = point
        run()
        code = 0
    except BaseException:  # noqa: BLE001 -- nothing may come back into pytest, which the fork is a copy of
        traceback.print_exc()
    finally:
        os._exit(code)
