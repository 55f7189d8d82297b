"""Words select collections by name, by tag and by what they read: each name once, in the order of the words."""

from __future__ import annotations

import pytest

from tidemark.collections.declarations.collection import Declaration, Kind
from tidemark.collections.declarations.selection import choose, select
from tidemark.collections.reconcile.choosing.choice import choose_declarations
from tidemark.errors import UnknownCollection, UsageError


def declared(name: str, *inputs: str, tags: tuple[str, ...] = (), kind: str = "differential") -> Declaration:
    sql = {"inputs": {read: {"collection": read} for read in inputs}, "sql": "SELECT 1"}
    files = {"format": "csv", "path": "/x.csv", "schema": "a int"}
    return Declaration.model_validate(
        {"name": name, "kind": kind, "source": sql if inputs else files, "tags": tags, "schema": "a int"}
    )


# planes ─┬─▶ flights ─▶ delays ─▶ report
# airports┘              weather ─┘
ALL = {
    each.name: each
    for each in (
        declared("airports", tags=("reference",)),
        declared("delays", "flights"),
        declared("events", kind="append-only", tags=("reference",)),
        declared("flights", "planes", "airports", tags=("daily",)),
        declared("planes", tags=("reference",)),
        declared("report", "delays", "weather", tags=("daily",)),
        declared("weather"),
    )
}


@pytest.mark.parametrize(
    ("words", "selected"),
    [
        ("planes", "planes"),
        ("planes weather planes", "planes weather"),
        ("tag:daily", "flights report"),
        ("+flights", "flights airports planes"),
        ("delays+", "delays report"),
        ("+delays+", "delays flights airports planes report"),
        ("tag:daily+", "flights report delays"),
        ("+tag:daily", "flights report airports delays planes weather"),
        ("weather +flights", "weather flights airports planes"),
        ("+planes", "planes"),
        ("report+", "report"),
    ],
)
def test_words_select(words: str, selected: str) -> None:
    found = select(ALL, words.split())
    assert found[: len(words.split())] == selected.split()[: len(words.split())]
    assert sorted(found) == sorted(selected.split())
    assert len(found) == len(set(found))


@pytest.mark.parametrize("word", ["plains", "+plains", "plains+", "+", "++", ""])
def test_what_is_not_declared_is_named_with_what_is_near(word: str) -> None:
    with pytest.raises(UnknownCollection, match="no collection is named"):
        select(ALL, [word])


def test_a_tag_that_nobody_has_is_named_with_those_that_are() -> None:
    with pytest.raises(UsageError, match="no collection has the tag 'refernce'") as refused:
        select(ALL, ["tag:refernce"])
    assert refused.value.hint == "declared are: daily, reference"
    with pytest.raises(UsageError) as refused:
        select({"weather": ALL["weather"]}, ["tag:daily"])
    assert refused.value.hint == "no collection declares `tags`"


def test_rules_leave_out_what_cannot_be_reconciled_and_names_do_not() -> None:
    assert [*choose_declarations(ALL, ["tag:reference"])] == ["airports", "planes"]
    with pytest.raises(UsageError, match="'events' is append-only"):
        choose_declarations(ALL, ["tag:reference", "events"])
    with pytest.raises(UsageError, match="events\\+ selects events, and none of them"):
        choose_declarations(ALL, ["events+"])


def test_what_does_not_belong_is_left_out_by_rules_and_refused_by_name() -> None:
    def refuse(declaration: Declaration) -> None:
        if declaration.kind is not Kind.APPEND_ONLY:
            raise UsageError(declaration.name)

    def chosen(*words: str) -> list[str]:
        found = choose(ALL, words, lambda each: each.kind is Kind.APPEND_ONLY, require=refuse)
        return [declaration.name for declaration in found]

    assert chosen() == chosen("tag:reference") == chosen("events") == ["events"]
    with pytest.raises(UsageError, match="tag:daily selects flights, report, and none of them"):
        chosen("tag:daily")
    with pytest.raises(UsageError, match="planes"):
        chosen("planes")
