from __future__ import annotations

from dataclasses import replace

import pytest

from tidemark.collections.schema.ddl import parse_columns
from tidemark.errors import CorruptState, FencedByEpoch, FencedByGeneration, NotPossible
from tidemark.sinks.progress import Owner, Progress, SinkColumn, check_epoch, claim

OWNER = Owner("copies", 1, "events", "a-uuid")
TYPES = "a bigint, `b c` string, d decimal(5,2), e array<struct<`x y`:int>>, f map<string,double>"
COLUMNS = tuple(SinkColumn(number, each.name, each.type) for number, each in enumerate(parse_columns(TYPES), start=1))
FOUND = Progress(owner=OWNER, mode="mirror", epoch=3, generation=2, time=10, columns=COLUMNS)


def claimed(found: Progress | None, owner: Owner = OWNER, *, generation: int = 2, replaces: bool = False) -> Progress:
    return claim(found, owner, mode="mirror", generation=generation, replaces=replaces, where="table 't'")


def test_progress_survives_its_json() -> None:
    assert Progress.parse(FOUND.to_json(), where="t") == FOUND


def test_edited_progress_is_corrupt() -> None:
    with pytest.raises(CorruptState):
        Progress.parse(FOUND.to_json() | {"time": "soon"}, where="t")


def test_every_claim_is_an_epoch_and_keeps_the_time() -> None:
    assert claimed(None) == Progress(owner=OWNER, mode="mirror", epoch=1, generation=2)
    assert claimed(FOUND) == replace(FOUND, epoch=4)
    assert claimed(FOUND, generation=3) == replace(FOUND, epoch=4, generation=3)


def test_an_older_deployment_is_fenced() -> None:
    with pytest.raises(FencedByGeneration):
        claimed(FOUND, generation=1)


@pytest.mark.parametrize("replaces", [False, True])
def test_progress_of_another_sink_is_never_taken(*, replaces: bool) -> None:
    with pytest.raises(NotPossible, match="belongs to the sink 'copies'"):
        claimed(FOUND, OWNER._replace(sink="others"), replaces=replaces)


@pytest.mark.parametrize("owner", [OWNER._replace(sink_id=2), OWNER._replace(table_uuid="another")])
def test_progress_of_an_earlier_sink_or_collection_is_taken_only_to_replace_the_rows(owner: Owner) -> None:
    with pytest.raises(NotPossible, match="earlier sink"):
        claimed(FOUND, owner)
    taken = claimed(FOUND, owner, replaces=True)
    assert (taken.owner, taken.epoch, taken.time, taken.columns) == (owner, 4, None, ())


def test_only_the_run_of_the_present_epoch_writes() -> None:
    check_epoch(FOUND, FOUND, where="t")
    with pytest.raises(FencedByEpoch):
        check_epoch(FOUND, replace(FOUND, epoch=2), where="t")
    with pytest.raises(FencedByGeneration):
        check_epoch(FOUND, replace(FOUND, epoch=2, generation=1), where="t")
    with pytest.raises(NotPossible):
        check_epoch(None, FOUND, where="t")
