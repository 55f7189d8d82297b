"""Named places between two durable steps where a test makes the process die as if by ``kill -9``."""

from __future__ import annotations

import os
from collections import Counter

FAIL_POINT_EXIT = 113
_VARIABLE = "TIDEMARK_FAIL_POINT"
_reached: Counter[str] = Counter()


def fail_point(name: str) -> None:
    """Die here, without any clean-up, if ``TIDEMARK_FAIL_POINT`` is ``name`` or ``name:n`` (the n-th time, from 1).

    The environment is read at each call because tests set it for child processes only; in production it is unset
    and this is one dictionary look-up.
    """
    target, _, nth = os.environ.get(_VARIABLE, "").partition(":")
    if target != name:
        return
    _reached[name] += 1
    if _reached[name] == int(nth or 1):
        os._exit(FAIL_POINT_EXIT)
