"""Exit codes of the command line and of every Spark application (after BSD sysexits)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    """The result of a process for its caller; design §11.2 says what Airflow does for which code."""

    OK = 0
    DIFFERENCES = 2  # only `plan --detailed-exitcode`: there is something to correct
    USAGE = 64
    REFUSED = 65
    INPUT_MISSING = 66
    UNREACHABLE = 69
    BUG = 70
    TRANSIENT = 75
    NOT_POSSIBLE = 76
    FENCED = 77
    CONFIGURATION = 78


# Most severe first: errors that stop everybody come before errors in one collection's data.
SEVERITY = (
    ExitCode.FENCED,
    ExitCode.BUG,
    ExitCode.CONFIGURATION,
    ExitCode.NOT_POSSIBLE,
    ExitCode.USAGE,
    ExitCode.REFUSED,
    ExitCode.INPUT_MISSING,
    ExitCode.UNREACHABLE,
    ExitCode.TRANSIENT,
    ExitCode.DIFFERENCES,
    ExitCode.OK,
)


PASSING: Final = frozenset({ExitCode.UNREACHABLE, ExitCode.TRANSIENT})  # by itself: the same again may work soon


def most_severe(codes: Iterable[ExitCode]) -> ExitCode:
    """Return the most severe of ``codes``; OK if there are none."""
    return min(codes, key=SEVERITY.index, default=ExitCode.OK)
