from __future__ import annotations

import pickle
import traceback
from typing import TYPE_CHECKING

import pytest

from tidemark.errors import (
    Fenced,
    FencedByEpoch,
    FencedByGeneration,
    GuardRefused,
    TidemarkError,
    UnknownCollection,
    UnknownSink,
    UpperMismatch,
)
from tidemark.exit_codes import SEVERITY, ExitCode, most_severe
from tidemark.frontier import EMPTY
from tidemark.iceberg.shard.token import Token

if TYPE_CHECKING:
    from collections.abc import Iterator


def families(cls: type[TidemarkError] = TidemarkError) -> Iterator[type[TidemarkError]]:
    for each in cls.__subclasses__():
        yield each
        yield from families(each)


@pytest.mark.parametrize("error", sorted(set(families()), key=lambda each: each.__name__))
def test_every_error_says_what_the_caller_should_do(error: type[TidemarkError]) -> None:
    assert error.exit_code not in {ExitCode.OK, ExitCode.BUG}, "an error raised on purpose is no bug"
    assert error.__doc__, "its first line is what the caller learns"


def test_an_unknown_name_gets_near_matches() -> None:
    error = UnknownCollection.named("plane", ["planes", "airports"])
    assert (str(error), error.hint) == ("no collection is named 'plane'", "did you mean 'planes'?")
    renamed = UnknownCollection.named("plane", ["planes"], renamed={"plane": "aircraft"})
    assert renamed.hint == "it was renamed, and is called 'aircraft' now"
    assert UnknownCollection.named("xyz", ["planes", "airports"]).hint == "declared are: airports, planes"
    assert "tidemark apply" in UnknownCollection.named("planes", []).hint
    several = UnknownSink.all_named(["copy", "xyz"], ["copies", "others"])
    assert str(several) == "no sink is named 'copy'; no sink is named 'xyz'"
    assert several.hint == "did you mean 'copies'?; declared are: copies, others"


def test_a_fence_tells_a_newer_generation_from_a_newer_epoch() -> None:
    by_epoch = Fenced.by(mine=Token(1, 3), theirs=Token(1, 4), where="collections.planes")
    by_generation = Fenced.by(mine=Token(1, 3), theirs=Token(2, 0), where="collections.planes")
    assert isinstance(by_epoch, FencedByEpoch)
    assert isinstance(by_generation, FencedByGeneration)
    assert by_epoch.exit_code == by_generation.exit_code == ExitCode.FENCED
    assert "collections.planes" in str(by_epoch)
    assert "set TIDEMARK_GENERATION=2" in by_generation.hint


def test_an_upper_mismatch_survives_the_way_between_processes() -> None:
    error = pickle.loads(pickle.dumps(UpperMismatch(5, EMPTY)))  # noqa: S301 -- our own bytes
    assert (error.expected, error.actual) == (5, EMPTY)
    assert str(error) == "expected upper 5, found empty: recompute from empty"


def test_an_error_carries_a_sample_of_the_rows() -> None:
    error = GuardRefused("2 keys are there twice", hint="repair the source", sample=[{"tailnum": "N1", "rows": 2}])
    assert (error.kind, error.sample) == ("GuardRefused", [{"tailnum": "N1", "rows": 2}])


def test_a_traceback_says_what_to_do_next() -> None:
    error = pickle.loads(pickle.dumps(GuardRefused("2 keys are there twice", hint="repair the source")))  # noqa: S301
    assert traceback.format_exception(error)[-2:] == [
        "tidemark.errors.GuardRefused: 2 keys are there twice\n",
        "→ repair the source\n",
    ]


def test_the_most_severe_code_wins() -> None:
    assert set(SEVERITY) == set(ExitCode)
    assert most_severe([]) == ExitCode.OK
    assert most_severe([ExitCode.OK, ExitCode.TRANSIENT, ExitCode.REFUSED]) == ExitCode.REFUSED
    assert most_severe([ExitCode.REFUSED, ExitCode.FENCED, ExitCode.BUG]) == ExitCode.FENCED
