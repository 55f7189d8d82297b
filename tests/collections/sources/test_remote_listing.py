"""Listing an object store without Spark, through a real client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.object_store import ObjectStore, reachable_store
from tidemark.collections.sources import remote_listing
from tidemark.collections.sources.remote_listing import find_remote_files, list_remote_files
from tidemark.collections.sources.watching import look_at, name_files
from tidemark.errors import ConfigurationInvalid, Unreachable

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    with reachable_store(monkeypatch) as store:
        for key in ("in/day=1/a.csv", "in/day=1/_started", "in/day=2/b.csv", "in/_temporary/c.csv", "in/d e.csv", "x"):
            store.put("lake", key)
        yield store


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("in", ["in/d e.csv", "in/day=1/a.csv", "in/day=2/b.csv"]),
        ("in/", ["in/d e.csv", "in/day=1/a.csv", "in/day=2/b.csv"]),
        ("in/day=*", ["in/day=1/a.csv", "in/day=2/b.csv"]),
        ("in/*", ["in/_temporary/c.csv", "in/d e.csv", "in/day=1/a.csv", "in/day=2/b.csv"]),
        ("in/*/a.csv", ["in/day=1/a.csv"]),
        ("in/*/*", ["in/_temporary/c.csv", "in/day=1/a.csv", "in/day=2/b.csv"]),
        ("in/day=1/_started", []),
        ("in/day={1,3}/?.csv", ["in/day=1/a.csv"]),
        ("in/day=[!1]/*", ["in/day=2/b.csv"]),
        ("x", ["x"]),
        ("", ["in/d e.csv", "in/day=1/a.csv", "in/day=2/b.csv", "x"]),
        ("none", []),
    ],
)
def test_folders_patterns_and_objects_are_listed_as_spark_lists_them(
    store: ObjectStore, path: str, found: list[str]
) -> None:
    assert store.buckets
    listed = list_remote_files(f"s3a://lake/{path}")
    assert [file.uri for file in listed] == [f"s3a://lake/{name}" for name in found]


def test_a_look_sees_what_came_and_what_was_replaced(store: ObjectStore) -> None:
    names = [name_files(look_at(["s3://lake/in"]))]
    store.put("lake", "in/day=3/new.csv")
    names.append(name_files(look_at(["s3://lake/in"])))
    store.put("lake", "in/day=3/new.csv", second=1)
    names.append(name_files(look_at(["s3://lake/in"])))
    store.remove("lake", "in/day=3/new.csv")
    names.append(name_files(look_at(["s3://lake/in"])))
    assert len(set(names)) == 3
    assert names[0] == names[3]


def test_a_store_that_refuses_is_no_empty_folder(store: ObjectStore) -> None:
    assert list_remote_files("s3://nothere/in") == (), "a bucket may come, as a folder may"
    store.answers = False
    with pytest.raises(Unreachable, match="s3://lake/in cannot be listed"):
        list_remote_files("s3://lake/in")


def test_only_spark_lists_where_this_module_cannot(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_remote_files("s3://lake/x") == list_remote_files("s3://lake/x")
    for path in ("hdfs://name/in", "s3://lake/{in/day=1,x}", r"s3://lake/\[x"):
        assert find_remote_files(path) is None
    store.answers = False
    assert find_remote_files("s3a://lake/x") is None
    store.answers = True
    assert find_remote_files("s3a://lake/x") is None, "that one is not asked for a while"
    assert find_remote_files("s3://lake/x"), "other stores are"
    monkeypatch.setattr(remote_listing, "_PATIENCE_S", 0)
    assert find_remote_files("s3a://lake/x")


def test_times_are_those_that_hadoop_tells(store: ObjectStore) -> None:
    store.put("lake", "once/x", microsecond=123456)
    assert [file.modified_ns for file in list_remote_files("s3://lake/once")] == [1_767_225_600_123_000_000]


def test_a_store_that_nobody_knows_is_to_be_declared_differently() -> None:
    with pytest.raises(ConfigurationInvalid, match="ftp://host/in cannot be watched"):
        list_remote_files("ftp://host/in")
