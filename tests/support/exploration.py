"""How long property tests and state machines explore: briefly and the same in every run, or at random until stopped.

The profile ``ci``, which every run has unless it says otherwise, draws the same few examples each time, so that a red
run is red again. ``--hypothesis-profile=soak``, as `make soak` runs it, draws others each time, and very many.
"""

from __future__ import annotations

import os
import random

from hypothesis import HealthCheck, settings
from hypothesis.internal.charmap import charmap, intervals_from_codec

SEED_VARIABLE = "SOAK_SEED"
_CI_SHARE = 0.4  # of the examples that a test names for itself
_SOAK_TIMES = 20
_LENGTH_TIMES = 4


def register_profiles() -> None:
    settings.register_profile("ci", max_examples=30, derandomize=True, deadline=None, database=None)
    every = list(HealthCheck)
    settings.register_profile(
        "soak", max_examples=5_000, deadline=None, database=None, print_blob=True, suppress_health_check=every
    )
    settings.load_profile("ci")


def list_characters() -> None:
    """Let Hypothesis list all characters, which takes a second in a new clone: no test shall pay for that."""
    charmap()
    intervals_from_codec("utf-8")  # what `text()` draws from


def is_soak() -> bool:
    return settings.get_current_profile_name() == "soak"


def explore(examples: int, *, steps: int | None = None) -> settings:
    """Return the settings of a test that is worth ``examples`` of up to ``steps`` steps; the profile scales both."""
    length = {} if steps is None else {"stateful_step_count": stretch(steps)}
    number = examples * _SOAK_TIMES if is_soak() else max(3, round(examples * _CI_SHARE))
    return settings(max_examples=number, deadline=None, suppress_health_check=list(HealthCheck), **length)


def stretch(steps: int) -> int:
    """Return how many steps a test takes that takes ``steps`` of them in a usual run."""
    return steps * _LENGTH_TIMES if is_soak() else steps


def draw_seed() -> int:
    """Return the seed of a test that draws for itself: fixed, but for a soak, whose seed can be repeated."""
    if not is_soak():
        return 0
    return int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(2**32))
