"""Iceberg tables: of which catalogs, in one commit, beside other engines that maintain them."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.transforms import BucketTransform, IdentityTransform
from sqlalchemy.exc import OperationalError

from tests.sinks.targets.conftest import place, with_lake
from tests.sinks.targets.driving import PLAIN, Driven, columns
from tests.support.dying import Crash, dying_at, interrupted_at
from tidemark.collections.schema.convert import to_iceberg
from tidemark.collections.schema.ddl import parse_columns
from tidemark.errors import (
    CommitStateUnknown,
    ConfigurationInvalid,
    InputMissing,
    NotPossible,
    Refused,
    SchemaMismatch,
    Unreachable,
)
from tidemark.secrets.redaction import redact
from tidemark.settings import Settings
from tidemark.sinks.targets.iceberg import target as iceberg_target
from tidemark.sinks.targets.iceberg.catalogs import catalog_properties
from tidemark.sinks.targets.registry import open_target

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from tests.support.postgres_server import PostgresServer


@pytest.fixture
def lake(home: Settings, tmp_path: Path) -> Driven:
    return Driven(with_lake(home, tmp_path), place("named catalog", tmp_path))


def catalog(driven: Driven) -> SqlCatalog:
    """The catalog as another engine opens it."""
    known = driven.settings.connections
    return SqlCatalog(
        "lake", uri=known["TIDEMARK_CATALOG_LAKE_URI"], warehouse=known["TIDEMARK_CATALOG_LAKE_WAREHOUSE"]
    )


def stored(driven: Driven) -> Table:
    return catalog(driven).load_table(("analytics", "copies"))


def make(driven: Driven, text: str, **properties: str) -> Table:
    """Make the table as another engine does."""
    opened = catalog(driven)
    opened.create_namespace_if_not_exists("analytics")
    schema = to_iceberg(parse_columns(text))
    return opened.create_table(("analytics", "copies"), schema=schema, properties={"format-version": "2", **properties})


def row(id_: int, name: str | None) -> dict[str, Any]:
    return {"id": id_, "name": name}


def test_rows_and_progress_are_one_snapshot(lake: Driven) -> None:
    run = lake.run()
    assert not catalog(lake).list_namespaces(), "a claim of nothing makes nothing"
    run.load([row(1, "a"), row(2, "b")])
    run.mirror([row(2, "B")], [row(1, None)])
    table = stored(lake)
    assert [snapshot.summary["tidemark-sink.time"] for snapshot in table.snapshots()] == ["10", "11"]  # type: ignore[index]
    assert table.scan().to_arrow().to_pylist() == [row(2, "B")]


def test_a_table_that_fits_is_written_and_one_that_does_not_is_65_with_both_schemas(lake: Driven) -> None:
    make(lake, "name string, id bigint")
    run = lake.run()
    run.target.inspect(PLAIN)
    run.load([row(1, "a")])
    assert run.rows() == [{"name": "a", "id": 1}]
    with pytest.raises(SchemaMismatch, match=r"lacks 'date'; it has .name string, id bigint.") as caught:
        lake.run().target.inspect(columns(id_1="bigint", name_2="string", date_3="date"))
    assert "date date" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [("id int, name string", "with another type 'id'"), ("id bigint, name string, z int", "besides 'z'")],
)
def test_other_columns_are_65(lake: Driven, text: str, told: str) -> None:
    make(lake, text)
    with pytest.raises(SchemaMismatch, match=told):
        open_target(lake.sink, lake.settings).inspect(PLAIN)


def test_rows_of_somebody_else_are_65_unless_they_may_be_replaced(lake: Driven) -> None:
    table = make(lake, "id bigint, name string")
    table.append(pa.table({"id": pa.array([9]), "name": ["theirs"]}))
    with pytest.raises(Refused, match="rows already"):
        open_target(lake.sink, lake.settings).inspect(PLAIN)
    lake.to = {**lake.to, "existing": "replace"}
    run = lake.run()
    run.target.inspect(PLAIN)
    run.load([row(1, "a")])
    assert run.rows() == [row(1, "a")]


def test_a_table_that_is_partitioned_and_sorted_stays_so(lake: Driven) -> None:
    table = make(lake, "id bigint, name string")
    with table.update_spec() as spec:
        spec.add_field("id", BucketTransform(4), "bucket")
    with table.update_sort_order() as order:
        order.asc("id", IdentityTransform())
    run = lake.run()
    run.load([row(id_, "a") for id_ in range(20)])
    run.mirror([row(id_, "b") for id_ in range(10, 30)], [row(id_, None) for id_ in range(5)])
    assert len(stored(lake).inspect.partitions()) == 4
    assert by_name(run) == {"a": [*range(5, 10)], "b": [*range(10, 30)]}


def by_name(run: Driven) -> dict[str, list[int]]:
    return {name: sorted(each["id"] for each in run.rows() if each["name"] == name) for name in ("a", "b")}


def test_other_format_versions_are_76(lake: Driven) -> None:
    make(lake, "id bigint, name string", **{"format-version": "1"})
    with pytest.raises(NotPossible, match="format version 1"):
        open_target(lake.sink, lake.settings).inspect(PLAIN)


def test_foreign_maintenance_between_and_within_runs_is_welcome(lake: Driven) -> None:
    run = lake.run()
    run.load([row(id_, "a") for id_ in range(6)])
    run.mirror([row(1, "b")], [row(2, None)])
    rewrite(lake)
    run.mirror([row(3, "c")], [row(4, None)])
    with interrupted_at("sink.iceberg-written", lambda: rewrite(lake)) as failures:
        run.mirror([row(1, "d")], [row(0, None)])
    assert not failures
    assert run.rows() == [row(1, "d"), row(3, "c"), row(5, "a")]


def rewrite(driven: Driven) -> None:
    """Write all rows anew, and expire the snapshots before, as maintenance does."""
    table = stored(driven)
    table.overwrite(table.scan().to_arrow())
    table = stored(driven)
    last = table.current_snapshot()
    assert last is not None
    table.maintenance.expire_snapshots().by_ids(
        [snapshot.snapshot_id for snapshot in table.snapshots() if snapshot.snapshot_id != last.snapshot_id]
    ).commit()


def test_a_commit_whose_answer_is_lost_counts(lake: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    run = lake.run()
    run.load([row(1, "a")])
    real = SqlCatalog.commit_table

    def commit(*arguments: Any) -> Any:
        real(*arguments)
        monkeypatch.undo()
        raise OperationalError("COMMIT", {}, Exception("the server closed the connection"))

    monkeypatch.setattr(SqlCatalog, "commit_table", commit)
    run.mirror([row(1, "b")])
    assert run.rows() == [row(1, "b")]


def test_a_commit_that_did_not_land_is_69_and_the_next_run_goes_on(
    lake: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = lake.run()
    run.load([row(1, "a")])

    def commit(*_arguments: Any) -> Any:
        raise OperationalError("COMMIT", {}, Exception("the server closed the connection"))

    monkeypatch.setattr(SqlCatalog, "commit_table", commit)
    with pytest.raises(Unreachable, match="did not land"):
        run.mirror([row(1, "b")])
    monkeypatch.undo()
    run = lake.run()
    run.mirror([row(1, "b")])
    assert run.rows() == [row(1, "b")]


def test_a_catalog_that_cannot_be_asked_leaves_it_open(lake: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    run = lake.run()
    run.load([row(1, "a")])
    target = run.target
    monkeypatch.setattr("tidemark.sinks.targets.iceberg.target._QUESTIONS", 1)

    def lost(*_arguments: Any) -> Any:
        raise OperationalError("SELECT", {}, Exception("the server is gone"))

    def commit(*_arguments: Any) -> Any:
        monkeypatch.setattr(SqlCatalog, "load_table", lost)
        lost()

    monkeypatch.setattr(SqlCatalog, "commit_table", commit)
    with pytest.raises(CommitStateUnknown, match="may have landed"):
        run.mirror([row(1, "b")])
    with pytest.raises(Unreachable, match="the server is gone"):
        target.check()


@pytest.mark.parametrize("point", ["sink.iceberg-written", "sink.iceberg-committed"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_run_that_died_left_all_or_nothing(lake: Driven, point: str, *, is_first: bool) -> None:
    if not is_first:
        lake.run().load([row(1, "a")])
    run = lake.run()
    with dying_at(point), pytest.raises(Crash):
        (run.load if is_first else run.mirror)([row(2, "b")])
    if point == "sink.iceberg-committed":
        assert run.rows() == ([row(2, "b")] if is_first else [row(1, "a"), row(2, "b")])
    else:
        assert lake.target_time() == (None if is_first else 10)


def test_the_namespaces_of_the_collections_are_78(home: Settings) -> None:
    for namespace in ("collections", "system"):
        driven = Driven(home, {"catalog": "tidemark", "table": f"{namespace}.copies"})
        with pytest.raises(ConfigurationInvalid, match="belongs to the collections"):
            open_target(driven.sink, home)


def test_namespaces_in_others_need_a_catalog_that_has_them(lake: Driven) -> None:
    lake.to = {**lake.to, "table": "a.b.copies"}
    with pytest.raises(ConfigurationInvalid, match="namespaces inside others"):
        lake.run()


def test_a_catalog_that_is_not_set_is_78_and_says_what_to_set(home: Settings, tmp_path: Path) -> None:
    driven = Driven(home, place("named catalog", tmp_path))
    with pytest.raises(ConfigurationInvalid) as caught:
        open_target(driven.sink, home)
    assert "TIDEMARK_CATALOG_LAKE_URI" in caught.value.hint


def test_properties_of_pyiceberg_come_from_the_environment_and_their_secrets_are_known() -> None:
    variables = {
        "TIDEMARK_HOME": "/nowhere",
        "TIDEMARK_CATALOG_LAKE_TYPE": "sql",
        "TIDEMARK_CATALOG_LAKE_URI": "postgresql://me:hidden-word@host/lake",
        "TIDEMARK_CATALOG_LAKE_S3__ACCESS_KEY_ID": "an-id",
        "TIDEMARK_CATALOG_LAKE_S3__SECRET_ACCESS_KEY": "another-hidden-word",
    }
    found = catalog_properties("lake", Settings.load(variables))
    assert found == {
        "type": "sql",
        "uri": "postgresql+psycopg://me:hidden-word@host/lake?connect_timeout=3",
        "s3.access-key-id": "an-id",
        "s3.secret-access-key": "another-hidden-word",
    }
    assert "hidden" not in redact(" ".join(found.values()))


@pytest.mark.parametrize("form", ["{}", "file://{}/"])
def test_another_catalog_of_our_own_warehouse_is_78(home: Settings, form: str) -> None:
    warehouse = form.format(home.warehouse.removeprefix("file://"))
    known = {"TIDEMARK_CATALOG_LAKE_TYPE": "sql", "TIDEMARK_CATALOG_LAKE_WAREHOUSE": warehouse}
    with pytest.raises(ConfigurationInvalid, match="warehouse of this installation"):
        catalog_properties("lake", replace(home, connections=known))


@pytest.mark.parametrize("properties", [{"TYPE": "sql"}, {"TYPE": "no"}, {"WAREHOUSE": "x"}])
def test_properties_that_pyiceberg_refuses_are_78(lake: Driven, properties: dict[str, str]) -> None:
    named = {f"TIDEMARK_CATALOG_LAKE_{name}": value for name, value in properties.items()}
    lake.settings = replace(lake.settings, connections=named)
    with pytest.raises(ConfigurationInvalid, match="'lake'"):
        lake.run()


def test_a_server_that_does_not_answer_is_69(lake: Driven) -> None:
    named = {"TYPE": "sql", "URI": "postgresql://me@127.0.0.1:1/lake", "WAREHOUSE": "file:///nowhere"}
    lake.settings = replace(
        lake.settings, connections={f"TIDEMARK_CATALOG_LAKE_{name}": value for name, value in named.items()}
    )
    with pytest.raises(Unreachable):
        open_target(lake.sink, lake.settings).check()


@pytest.mark.postgres
def test_a_catalog_in_postgresql_that_is_killed_at_the_commit(
    lake: Driven, postgres: PostgresServer, unique_name: str, tmp_path: Path
) -> None:
    named = {"TYPE": "sql", "URI": postgres.create_database(unique_name[-50:]), "WAREHOUSE": f"file://{tmp_path}/lake"}
    lake.settings = replace(
        lake.settings, connections={f"TIDEMARK_CATALOG_LAKE_{name}": value for name, value in named.items()}
    )

    starting = threading.Timer(0.3, postgres.start)

    def restart() -> None:
        postgres.kill()
        starting.start()

    with closing((run := lake.run()).target):
        run.load([row(1, "a")])
        with interrupted_at("sink.iceberg-written", restart), pytest.raises(Unreachable, match="did not land"):
            run.mirror([row(1, "b")])
    starting.join()
    with closing((run := lake.run()).target):
        run.mirror([row(1, "b")])
        assert run.rows() == [row(1, "b")]


def test_a_table_that_somebody_rolled_back_is_65_until_it_is_rolled_forward(lake: Driven) -> None:
    run = lake.run()
    run.load([row(1, "a")])
    first = stored(lake).current_snapshot()
    run.mirror([row(2, "b")], [])
    second = stored(lake).current_snapshot()
    assert first is not None
    assert second is not None
    stored(lake).manage_snapshots().create_branch(first.snapshot_id, "main").commit()
    with pytest.raises(Refused, match="rolled back"):
        run.mirror([row(3, "c")], [])
    stored(lake).manage_snapshots().create_branch(second.snapshot_id, "main").commit()
    run.mirror([row(3, "c")], [])
    assert len(stored(lake).scan().to_arrow()) == 3


def test_a_data_file_that_somebody_removed_is_66(lake: Driven) -> None:
    run = lake.run()
    run.load([row(1, "a")])
    for task in stored(lake).scan().plan_files():
        Path(task.file.file_path.removeprefix("file://")).unlink()
    with pytest.raises(InputMissing, match="is gone"):
        run.mirror([row(1, "b")], [])


def test_a_catalog_that_never_answers_keeps_no_other_sink_waiting(
    lake: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()
    opened = iceberg_target.open_target_catalog

    def open_slowly(name: str, settings: Settings) -> Catalog:
        if threading.current_thread() is not first:
            return opened(name, settings)
        answer.wait(30)
        return opened(name, settings)

    silent = open_target(lake.sink, lake.settings)
    first = threading.Thread(target=silent.look)
    monkeypatch.setattr(iceberg_target, "open_target_catalog", open_slowly)
    first.start()
    with open_target(lake.sink, lake.settings) as target:
        target.check()
    answer.set()
    first.join()
    silent.close()


@pytest.mark.parametrize("type_", [{}, {"TIDEMARK_CATALOG_LAKE_TYPE": "sql"}])
def test_a_catalog_without_a_uri_is_told_by_our_own_variable(lake: Driven, type_: dict[str, str]) -> None:
    known = {name: lake.settings.connections[name] for name in ["TIDEMARK_CATALOG_LAKE_WAREHOUSE"]}
    lake.settings = replace(lake.settings, connections={**known, **type_})
    with pytest.raises(ConfigurationInvalid, match="the URI of the catalog 'lake' is not set") as caught:
        lake.run()
    assert "TIDEMARK_CATALOG_LAKE_URI" in caught.value.hint


def test_a_folder_of_an_sqlite_catalog_that_is_missing_is_named(lake: Driven, tmp_path: Path) -> None:
    known = {**lake.settings.connections, "TIDEMARK_CATALOG_LAKE_URI": f"sqlite:///{tmp_path}/none/lake.db"}
    lake.settings = replace(lake.settings, connections=known)
    with pytest.raises(Unreachable, match=r"none/lake\.db' does not exist") as caught:
        lake.run()
    assert f"make the folder '{tmp_path}/none'" in caught.value.hint
