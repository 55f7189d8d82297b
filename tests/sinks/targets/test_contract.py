"""What every target promises, read by engines that know nothing of Tidemark."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from math import isnan, nan
from typing import TYPE_CHECKING, Any

import pytest

from tests.sinks.targets.driving import OWNER, PLAIN, columns
from tests.sinks.wide import ALL, FULL
from tests.support.dying import interrupted_at
from tidemark.errors import FencedByEpoch, FencedByGeneration, NotPossible, Refused, StaleState

if TYPE_CHECKING:
    from tests.sinks.targets.driving import Driven

WRITTEN = {"path": "sink.files-written", "catalog": "sink.iceberg-written"}


def row(id_: int, name: str | None) -> dict[str, Any]:
    return {"id": id_, "name": name}


def update(id_: int, name: str, time: int, diff: int) -> dict[str, Any]:
    return {**row(id_, name), "_time": time, "_diff": diff}


def test_nothing_is_there_before_the_first_load(driven: Driven) -> None:
    run = driven.run()
    run.target.inspect(PLAIN)
    assert run.progress.time is None
    assert run.load([row(1, "a"), row(2, None), row(3, "")]) == 3
    assert run.rows() == [row(1, "a"), row(2, None), row(3, "")]
    assert driven.run().progress == replace(run.progress, epoch=run.progress.epoch + 1)


def test_the_mirror_equals_a_dictionary_after_any_changes(driven: Driven) -> None:
    chance = random.Random(15)  # noqa: S311 - a test
    model: dict[int, dict[str, Any]] = {id_: row(id_, f"n{id_ % 3}") for id_ in range(6)}
    run = driven.run()
    run.load(list(model.values()))
    for number in range(8):
        ids = chance.sample(range(9), 4)
        upserts = [row(id_, chance.choice(["x", "y/z=%", "", None])) for id_ in ids[:3]]
        deletes = [row(id_, None) for id_ in ids[3:] if id_ in model]
        run.mirror(upserts, deletes)
        model |= {each["id"]: each for each in upserts}
        for each in deletes:
            del model[each["id"]]
        if number % 3 == 0:
            run = driven.run()
        assert run.rows() == sorted(model.values(), key=repr)


def test_a_mirror_of_nothing(driven: Driven) -> None:
    run = driven.run()
    run.load([])
    assert run.rows() == []
    run.mirror([row(1, "a")])
    run.mirror([], [row(1, "a")])
    assert run.rows() == []
    run.mirror([])
    assert driven.target_time() == run.progress.time


def test_changes_are_appended_and_add_up(driven: Driven) -> None:
    driven.mode = "changes"
    run = driven.run()
    run.load([update(1, "a", 9, 1), update(2, "b", 9, 1), update(3, "c", 9, 1)])
    run.append([update(1, "a", 10, -1), update(1, "A", 10, 1)])
    run.append([update(2, "b", 11, -1)])
    log = run.rows()
    assert len(log) == 6
    assert {(each["id"], each["name"]) for each in log if total(log, each) > 0} == {(1, "A"), (3, "c")}


def total(log: list[dict[str, Any]], wanted: dict[str, Any]) -> int:
    return sum(each["_diff"] for each in log if (each["id"], each["name"]) == (wanted["id"], wanted["name"]))


def test_two_rows_of_one_key_are_refused_and_nothing_is_there(driven: Driven) -> None:
    run = driven.run()
    with pytest.raises(Refused, match="more than one row") as caught:
        run.load([row(1, "a"), row(2, "b"), row(3, "b"), row(1, "c")])
    assert caught.value.sample == [{"id": 1}]
    assert (driven.run().target.look() or run.progress).time is None


@pytest.mark.parametrize("moment", ["written", "committed"])
def test_readers_see_the_state_before_or_the_state_after(driven: Driven, moment: str) -> None:
    run = driven.run()
    before, after = [row(1, "a"), row(2, "b")], [row(1, "A"), row(3, "c")]
    seen: list[list[dict[str, Any]]] = []
    run.load(before)
    with interrupted_at(
        f"sink.{'files' if 'path' in driven.to else 'iceberg'}-{moment}", lambda: seen.append(run.rows())
    ):
        run.mirror(after, [row(2, "b")])
    (state,) = seen
    assert state == before or (moment == "committed" and state == after)
    assert run.rows() == after


# -- two runs, and other owners ------------------------------------------------------------------------------------


def test_an_older_run_is_fenced(driven: Driven) -> None:
    driven.run().load([row(1, "a")])
    older = driven.run()
    newer = driven.run()
    with pytest.raises(FencedByEpoch):
        older.mirror([row(1, "older")])
    newer.mirror([row(1, "newer")])
    assert newer.rows() == [row(1, "newer")]


@pytest.mark.parametrize("is_first", [True, False])
def test_a_run_that_another_overtakes_before_its_commit_writes_nothing(driven: Driven, *, is_first: bool) -> None:
    if not is_first:
        driven.run().load([row(1, "a")])
    older = driven.run()

    def write(run: Driven, name: str) -> None:
        (run.load if run.progress.time is None else run.mirror)([row(1, name)])

    point = WRITTEN["path" if "path" in driven.to else "catalog"]
    with (
        interrupted_at(point, lambda: write(driven.run(), "newer")) as failures,
        pytest.raises((FencedByEpoch, StaleState)),
    ):
        write(older, "older")
    assert not failures
    assert driven.run().rows() == [row(1, "newer")]


def test_two_that_claimed_a_target_that_was_not_there_write_once(driven: Driven) -> None:
    first, second = driven.run(), driven.run()
    if first.progress.epoch != second.progress.epoch:
        with pytest.raises(FencedByEpoch):
            first.load([row(1, "first")])
        second.load([row(1, "once")])
    else:
        first.load([row(1, "once")])
        with pytest.raises(StaleState):
            second.load([row(1, "twice")])
    assert driven.run().rows() == [row(1, "once")]


def test_the_progress_of_somebody_else_is_76(driven: Driven) -> None:
    driven.run().load([row(1, "a")])
    with pytest.raises(NotPossible, match="belongs to the sink 'copies'"):
        driven.run(owner=OWNER._replace(sink="others"))
    with pytest.raises(NotPossible, match="existing: replace"):
        driven.run(owner=OWNER._replace(table_uuid="another"))
    assert driven.run().rows() == [row(1, "a")]


def test_an_older_deployment_is_77(driven: Driven) -> None:
    driven.run(generation=2).load([row(1, "a")])
    with pytest.raises(FencedByGeneration):
        driven.run(generation=1)


def test_a_target_that_was_forgotten_is_taken_only_to_replace_its_rows(driven: Driven) -> None:
    run = driven.run()
    run.load([row(1, "a")])
    other = OWNER._replace(sink="others")
    run.target.forget(other)
    assert run.target.look() is not None
    run.target.forget(OWNER)
    assert run.target.look() is None
    assert run.rows() == [row(1, "a")], "the rows stay"
    taken = driven.run(owner=other)
    with pytest.raises(Refused, match="rows already"):
        taken.target.inspect(PLAIN)
    driven.to = {**driven.to, "existing": "replace"}
    taken = driven.run(owner=other)
    taken.target.inspect(PLAIN)
    taken.load([row(2, "b")])
    assert taken.rows() == [row(2, "b")]


def test_a_later_load_takes_the_place_of_all_rows_and_keeps_the_columns(driven: Driven) -> None:
    old = columns(id_1="bigint", name_2="string", more_3="date")
    run = driven.run()
    run.load([{**row(id_, "a"), "more": date(2026, 1, id_)} for id_ in (1, 2, 3)], old)
    run.mirror([{**row(1, "b"), "more": None}], [row(2, None)], old)
    new = columns(id_1="bigint", name_2="string", size_4="bigint")
    assert run.load([{**row(4, "a"), "size": 1}, {**row(5, "b"), "size": None}], new, time=20) == 2
    loaded = {4: {**row(4, "a"), "more": None, "size": 1}, 5: {**row(5, "b"), "more": None, "size": None}}
    assert by_id(run) == loaded
    run = driven.run()
    assert {column.id for column in run.progress.columns} == {1, 2, 3, 4}
    run.mirror([{**row(5, "B"), "size": 2}], [row(4, None)], new)
    assert by_id(run) == {5: {**row(5, "B"), "more": None, "size": 2}}


def test_a_later_load_of_a_run_that_was_overtaken_is_fenced(driven: Driven) -> None:
    run = driven.run()
    run.load([row(1, "a")])
    newer = driven.run()
    with pytest.raises(FencedByEpoch):
        run.load([row(2, "older")], time=20)
    assert newer.rows() == [row(1, "a")]


# -- columns -------------------------------------------------------------------------------------------------------

WIDE = columns(id_1="int", name_2="string", count_3="int", list_4="array<int>", pair_5="struct<a:int,b:float>")


def test_a_renamed_key_tells_the_same_rows_apart(driven: Driven) -> None:
    driven.run().load([row(1, "a"), row(2, "b"), row(3, "b")])
    if "partition" in driven.to:
        driven.to = {**driven.to, "partition": ["title"]}
    driven.key = ("number",)
    renamed, run = columns(number_1="bigint", title_2="string"), driven.run()
    run.mirror([{"number": 2, "title": "B"}], [{"number": 3, "title": None}], renamed)
    assert run.rows() == [{"number": 1, "title": "a"}, {"number": 2, "title": "B"}]
    run.mirror([{"number": 1, "title": "B"}], [{"number": 2, "title": None}], renamed)
    assert run.rows() == [{"number": 1, "title": "B"}]


def test_columns_come_go_are_renamed_and_widened(driven: Driven) -> None:
    run = driven.run()
    run.load([{"id": 1, "name": "a", "count": 1, "list": [1], "pair": {"a": 1, "b": 0.5}}], WIDE)
    wider = columns(
        id_1="bigint",
        name_2="string",
        total_3="bigint",
        list_4="array<bigint>",
        pair_5="struct<a:bigint,b:double>",
        count_6="date",
    )
    big = 2**40
    new = {"id": big, "name": "b", "total": big, "list": [big], "pair": {"a": big, "b": 0.1}, "count": date(2026, 1, 2)}
    run.mirror([new], cols=wider)
    old = {"id": 1, "name": "a", "total": 1, "list": [1], "pair": {"a": 1, "b": 0.5}, "count": None}
    assert by_id(run) == {1: old, big: new}
    run.mirror([row(1, "A")], cols=PLAIN)
    assert by_id(run)[1] == {**dict.fromkeys(old), **row(1, "A")}, "what the collection dropped gets NULL"
    assert by_id(run)[big] == new


def by_id(run: Driven) -> dict[int, dict[str, Any]]:
    return {each["id"]: each for each in run.rows()}


def test_two_columns_swap_their_names(driven: Driven) -> None:
    if "partition" in driven.to:
        driven.to = {"path": driven.to["path"]}
    run = driven.run()
    run.load([{"id": 1, "a": "x", "b": "y"}], columns(id_1="bigint", a_2="string", b_3="string"))
    run.mirror([{"id": 2, "a": "2", "b": "1"}], cols=columns(id_1="bigint", b_2="string", a_3="string"))
    assert by_id(run) == {1: {"id": 1, "a": "y", "b": "x"}, 2: {"id": 2, "a": "2", "b": "1"}}


def test_columns_alone_may_change(driven: Driven) -> None:
    driven.mode = "changes"
    run = driven.run()
    run.load([update(1, "a", 9, 1)])
    run.append([], columns(id_1="bigint", name_2="string", more_3="date"))
    assert run.rows() == [{**update(1, "a", 9, 1), "more": None}]


def test_values_of_every_type_arrive(driven: Driven) -> None:
    full = FULL
    run = driven.run()
    run.load([full, dict.fromkeys(full) | {"id": 1}], ALL)
    run.mirror([dict.fromkeys(full) | {"id": 2, "double": nan, "single": float("-inf")}], cols=ALL)
    found = by_id(run)
    assert as_read(found[full["id"]]) == as_read(full)
    assert isnan(found[2]["double"])
    assert found[2]["single"] == float("-inf")
    assert found[1] == dict.fromkeys(full) | {"id": 1}


def as_read(found: dict[str, Any]) -> dict[str, Any]:
    return found | {"map": dict(found["map"])}


@pytest.mark.parametrize("key", [("at", "money"), ("bytes",), ("double", "truth"), ("pair", "day")])
def test_any_column_is_a_key(driven: Driven, key: tuple[str, ...]) -> None:
    driven.key = key
    empty = dict.fromkeys(column.name for column in ALL)
    first = empty | {
        "at": datetime(2026, 1, 1, tzinfo=UTC), "money": Decimal(1), "bytes": b"\x00", "double": 0.0, "truth": True,
        "pair": {"a": 1, "b c": [nan]}, "day": date(2026, 1, 1),
    }  # fmt: skip
    second = first | {"money": Decimal(2), "bytes": b"", "double": nan, "day": date(2026, 1, 2)}
    run = driven.run()
    run.load([first | {"id": 1}, second | {"id": 2}], ALL)
    run.mirror([first | {"id": 3, "double": -0.0}], [second], cols=ALL)
    assert [each["id"] for each in run.rows()] == [3]
