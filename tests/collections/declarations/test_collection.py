"""Declarations: what they mean, what is refused when they are read, and where a message says it is."""

from __future__ import annotations

from textwrap import dedent, indent
from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from tidemark.collections.declarations.append_only import Intervals
from tidemark.collections.declarations.collection import (
    NOTHING_ABOUT_ROWS,
    Declaration,
    Kind,
    OnForeignCommit,
    OnNullKey,
)
from tidemark.collections.declarations.files import load_declarations, order_by_inputs
from tidemark.collections.declarations.lifecycle import Late, LifecycleRules
from tidemark.collections.sources.formats.files import FileSource
from tidemark.collections.sources.formats.jdbc import JdbcSource
from tidemark.collections.sources.formats.sql import SqlSource
from tidemark.errors import ConfigurationInvalid, InputMissing
from tidemark.interval import Unit, fill_interval

if TYPE_CHECKING:
    from pathlib import Path

DESIGN_EXAMPLE = """
version: 1
collections:
  planes:
    kind: differential
    key: [tailnum]                      # omitted: rows are a multiset
    source: {format: csv, path: data/planes.csv, options: {header: true}, schema: "tailnum string, year int, seats int"}
    guards: {max_delete_ratio: 0.5, allow_empty: false, on_duplicate_key: refuse, on_null_key: refuse}
    tags: [reference]
  flights:
    kind: differential
    key: [flight_date, carrier, flight, origin]
    source:
      inputs: {f: {format: parquet, path: data/flights}, p: {collection: planes}}
      sql: "SELECT f.*, p.seats FROM f LEFT JOIN p USING (tailnum)"
    scope: {column: flight_date, every: day}
    on_foreign_commit: reset
  weather:
    kind: append-only
    schema: "origin string, time_hour timestamp, temp double"
    source: {format: csv, path: "data/weather.csv", where: "time_hour >= '{start}' AND time_hour < '{end}'"}
    on_read_only: stage
    retention: {age: 400d, column: time_hour}
"""
CSV = '{format: csv, path: x.csv, schema: "a int, b string, d date"}'


def write(path: Path, text: str) -> Path:
    path.write_text(dedent(text).lstrip(), encoding="utf-8")
    return path


def one(path: Path, fields: str) -> Declaration:
    """Return the declaration ``it`` with ``fields``, through a file as users write it."""
    body = indent(dedent(fields).strip(), "    ")
    text = f"version: 1\ncollections:\n  it:\n{body}\n"
    return load_declarations([write(path / "d.yaml", text)]).by_name["it"]


def message(path: Path, text: str) -> str:
    with pytest.raises(ConfigurationInvalid) as caught:
        load_declarations([write(path / "d.yaml", text)])
    return str(caught.value)


def test_the_example_of_the_design_is_read_whole(tmp_path: Path) -> None:
    found = load_declarations([str(write(tmp_path / "d.yaml", DESIGN_EXAMPLE))]).by_name
    assert list(found) == ["planes", "flights", "weather"]
    planes, flights, weather = found.values()
    assert isinstance(planes.source, FileSource)
    assert planes.source.path == str(tmp_path / "data/planes.csv")
    assert planes.guards.on_duplicate_key is None
    assert planes.guards.on_null_key is OnNullKey.REFUSE
    assert [str(column) for column in planes.known_columns or ()] == ["tailnum string", "year int", "seats int"]
    assert isinstance(flights.source, SqlSource)
    assert flights.inputs == ("planes",)
    assert flights.known_columns is None
    assert flights.on_foreign_commit is OnForeignCommit.RESET
    assert weather.kind is Kind.APPEND_ONLY
    assert weather.retention is not None
    assert weather.retention.window_ms == 400 * 86_400_000
    assert weather.needs_interval
    assert not planes.needs_interval
    assert isinstance(weather.source, FileSource)
    assert weather.source.columns == weather.known_columns, "a text file without a schema has the collection's"


def test_intervals_are_read_as_times_in_utc(tmp_path: Path) -> None:
    def intervals(text: str) -> Intervals:
        source = "{format: parquet, path: x, where: \"a >= '{start}'\"}"
        path = write(
            tmp_path / "d.yaml",
            f"version: 1\ncollections:\n  it:\n    kind: append-only\n    schema: a timestamp\n    source: {source}\n"
            f"    intervals: {text}\n",
        )
        [declared] = load_declarations([path]).by_name.values()
        assert Declaration.model_validate(declared.to_json()) == declared
        assert declared.intervals is not None
        return declared.intervals

    midnight_ms = 1_356_998_400_000
    for start in ("2013-01-01", "2013-01-01T00:00:00", "'2013-01-01T02:00:00+02:00'", "2013-01-01T00:00:00Z"):
        assert intervals(f"{{start: {start}}}").start_ms == midnight_ms
    found = intervals("{start: 2013-01-01, end: 2013-01-03, every: day}")
    day_ms = 86_400_000
    assert found.over_by(midnight_ms + day_ms - 1) == midnight_ms
    assert found.over_by(midnight_ms + 100 * day_ms) == midnight_ms + 2 * day_ms


def test_the_stored_form_gives_the_same_declaration_back(tmp_path: Path) -> None:
    for declaration in load_declarations([write(tmp_path / "d.yaml", DESIGN_EXAMPLE)]).by_name.values():
        assert Declaration.model_validate(declaration.to_json()) == declaration
        assert Declaration.model_validate(declaration.to_json()).to_json() == declaration.to_json()


def test_what_rows_are_clustered_by_is_stored_where_declared_and_decides_nothing_about_them(tmp_path: Path) -> None:
    plain, clustered = (
        one(tmp_path, f"kind: differential\nsource: {CSV}\n{more}") for more in ("", "cluster_by: [d, a]")
    )
    assert clustered.cluster_by == ("d", "a")
    assert Declaration.model_validate(clustered.to_json()) == clustered
    assert "cluster_by" not in plain.to_json(), "an older program reads it"
    dumps = {declared.model_dump_json(exclude=NOTHING_ABOUT_ROWS) for declared in (plain, clustered)}
    assert len(dumps) == 1
    assert "cluster_by" not in dumps.pop(), "the name of a state is that of an older program"


@pytest.mark.parametrize("type_", ["timestamp", "timestamp_ntz", "date"])
def test_event_times_are_stored_as_they_were_read(tmp_path: Path, type_: str) -> None:
    source = f"kind: append-only\nschema: at {type_}\nsource: {{buffer: writes}}\nevent_time: at"
    plain = one(tmp_path, source)
    assert (plain.partition, plain.lifecycle) == (None, None), "a later default changes what is stored now"
    found = one(tmp_path, f"{source}\npartition: month\nlifecycle: {{late_arrive_window: 0, late: refuse}}")
    assert (found.partition, found.lifecycle) == (Unit.MONTH, LifecycleRules(late_arrive_window="5m", late=Late.REFUSE))
    assert Declaration.model_validate(found.to_json()) == found


def test_everything_that_is_for_append_only_collections_is_stored_as_it_was_read(tmp_path: Path) -> None:
    fields = """
        kind: append-only
        schema: "id bigint, status string, at timestamp"
        retention: {last_n: 5, key: [id], order_by: [at]}
        staged_retention: 30d
        expect: {not_null: [id], range: {at: {min: 2026-01-01}}, one_of: {status: [up, down]}, unique: [id, at]}
        status: {key: [id], column: status, time: at}
    """
    found = one(tmp_path, dedent(fields).strip())
    assert found.staged_retention is not None
    assert (found.staged_retention.age_ms, found.staged_retention.include_leader) == (30 * 86_400_000, False)
    assert found.expect is not None
    assert found.expect.range["at"].min == "2026-01-01", "YAML reads a date without quotes as one"
    assert Declaration.model_validate(found.to_json()) == found


def test_paths_are_relative_to_the_declaring_file_and_uris_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "deep"
    folder.mkdir()
    for given, seen in [("x.csv", str(folder / "x.csv")), ("/x.csv", "/x.csv"), ("s3a://b/x", "s3a://b/x")]:
        source = one(folder, f'kind: differential\nsource: {{format: csv, path: "{given}", schema: "a int"}}').source
        assert isinstance(source, FileSource)
        assert source.path == seen


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ("jdbc:sqlite:x.db", "jdbc:sqlite:{folder}/x.db"),
        ("jdbc:sqlite:/x.db", "jdbc:sqlite:/x.db"),
        ("jdbc:sqlite:shop:main.db", "jdbc:sqlite:{folder}/shop:main.db"),
        ("jdbc:sqlite:file:/x.db?mode=ro", "jdbc:sqlite:file:/x.db?mode=ro"),
        ("jdbc:postgresql:shop", "jdbc:postgresql:shop"),
    ],
)
def test_the_path_of_an_sqlite_file_is_relative_to_the_declaring_file(tmp_path: Path, given: str, seen: str) -> None:
    source = one(tmp_path, f'kind: differential\nsource: {{format: jdbc, url: "{given}", dbtable: t}}').source
    assert isinstance(source, JdbcSource)
    assert source.url == seen.format(folder=tmp_path)
    assert JdbcSource.model_validate(source.model_dump()) == source


def test_the_first_row_of_a_key_can_be_chosen(tmp_path: Path) -> None:
    for words in ("first_by: d", "{first_by: d}"):
        quoted = f'"{words}"' if words[0] != "{" else words
        fields = f"kind: differential\nkey: [a]\nsource: {CSV}\nguards: {{on_duplicate_key: {quoted}}}"
        chosen = one(tmp_path, fields).guards.on_duplicate_key
        assert chosen is not None
        assert chosen.first_by == "d"


def test_a_folder_stands_for_its_files_and_names_may_not_repeat_across_them(tmp_path: Path) -> None:
    text = "version: 1\ncollections:\n  NAME: {kind: differential, source: " + CSV + "}\n"
    write(tmp_path / "a.yaml", text.replace("NAME", "one"))
    write(tmp_path / "b.yml", text.replace("NAME", "two"))
    write(tmp_path / "c.txt", "not read")
    assert list(load_declarations([tmp_path]).by_name) == ["one", "two"]
    write(tmp_path / "d.yaml", text.replace("NAME", "one"))
    with pytest.raises(ConfigurationInvalid, match=r"d\.yaml:3: collection 'one' is declared at .*a\.yaml:3 already"):
        load_declarations([tmp_path])


def test_a_missing_file_is_missing_input(tmp_path: Path) -> None:
    with pytest.raises(InputMissing, match="nothing"):
        load_declarations([tmp_path / "nothing.yaml"])
    with pytest.raises(InputMissing, match="no YAML file"):
        load_declarations([tmp_path])


def test_a_file_without_its_version_is_refused_with_the_line_that_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "d.yaml").write_text("collections: {a: {}}\n")
    with pytest.raises(ConfigurationInvalid) as refused:
        load_declarations([tmp_path])
    assert refused.value.hint == "let the file begin with the line `version: 1`"


def test_what_is_not_yaml_is_refused_with_a_hint(tmp_path: Path) -> None:
    for text, hint in (("a: {kind: [}\n", "brackets"), ("a: \x00\n", "UTF-8"), ("a: 2013-02-31\n", "quotes")):
        (tmp_path / "d.yaml").write_text(text)
        with pytest.raises(ConfigurationInvalid, match="not valid YAML") as refused:
            load_declarations([tmp_path])
        assert hint in refused.value.hint


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version: 1\ncollections:\n  a: {kind: [}\n", r"d.yaml:3: not valid YAML"),
        ("version: 1\ncollections:\n  a:\n   b: 1\n  c\n", r"d.yaml:6: not valid YAML"),
        ("version: 1\ncollections:\n  a: {}\n  b: {}\n  a: {}\n", "d.yaml:5: 'a' stands twice, first on line 3"),
        ("- 1\n", "d.yaml:1: expected `version: 1`"),
        ("collections: {a: {}}\n", "d.yaml:1: `version` must be 1, got none"),
        ("version: 2\ncollections: {a: {}}\n", "d.yaml:1: `version` must be 1, got 2"),
        ("version: 1\n\ncollection: {}\n", "d.yaml:3: unknown field 'collection' at the top"),
        ("version: 1\ncollections: {}\n", "d.yaml:2: `collections` must hold at least one"),
        ("version: 1\ncollections:\n  a:\n", "d.yaml:3: collection 'a': must be a mapping of fields, got None"),
        ("version: 1\ncollections:\n  a:\n    kind: x\n", "d.yaml:4: collection 'a', field 'kind': "),
        ("version: 1\ncollections:\n  a:\n    key: [x]\n", "d.yaml:3: collection 'a', field 'kind': is missing"),
        (
            "version: 1\ncollections:\n  A: {kind: append-only, schema: a int}\n",
            "d.yaml:3: collection 'A', field 'name'",
        ),
        (
            "version: 1\ncollections:\n  a_quarantine: {kind: append-only, schema: a int}\n",
            "d.yaml:3: collection 'a_quarantine': names that end in '_quarantine' are kept for rows that do not parse",
        ),
    ],
)
def test_corrupt_declarations_are_refused_with_their_line(tmp_path: Path, text: str, said: str) -> None:
    assert said in message(tmp_path, text)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("sorce: 3", "4: collection 'it': unknown field 'sorce'; did you mean 'source'?"),
        ("guards:\n  alow_empty: true", "5: collection 'it': unknown field 'alow_empty' in 'guards'; did you mean 'al"),
        ("guards:\n  max_delete_ratio: 2", "5: collection 'it', field 'guards.max_delete_ratio': input should be less"),
        ("guards: {on_duplicate_key: keep}", "'keep' is neither `refuse` nor `first_by: COLUMN`"),
        ("source:\n  format: xml\n  path: x", "5: collection 'it', field 'source.format': unknown format 'xml'"),
        (
            "source: {format: orcc, path: x, pth: y}",
            "unknown format 'orcc': known are parquet, csv, json, iceberg, jdbc",
        ),
        ("source: {format: {}, path: x}", "field 'source.format': unknown format {}: known are parquet, csv"),
        ("source: {format: Jsn, path: x}", "unknown format 'Jsn': known are json, parquet, csv, iceberg, jdbc"),
        (
            "source:\n  sql: SELECT 1\n  inputs:\n    a: {format: parqet, path: x}",
            "7: collection 'it', field 'source.inputs.a.format': unknown format 'parqet': known are parquet, csv",
        ),
        (
            "source:\n  format: csv\n  pth: x",
            "6: collection 'it': unknown field 'pth' in 'source'; did you mean 'path'",
        ),
        ("source:\n  sql: SELECT 1", "4: collection 'it', field 'source': `sql` needs `inputs`"),
        ("source:\n  inputs: {f: {collection: f}}", "4: collection 'it', field 'source.sql': is missing"),
        ("source: {format: csv, path: x, schema: 'a int, b'}", "field 'source.schema': column 'b' has the type ''"),
        ("source: {format: csv, path: x}", "csv without a header has no column names"),
        ("source: {format: iceberg}", "exactly one of `table`"),
        ("source: {collection: other}", "reads the collection 'other', which is not declared"),
        ("source: {collection: it}", "collections read each other in a circle: it -> it"),
    ],
)
def test_errors_name_line_collection_and_field(tmp_path: Path, fields: str, said: str) -> None:
    body = indent(fields, "    ")
    assert said in message(tmp_path, f"version: 1\ncollections:\n  it:\n{body}\n    kind: differential\n")


def test_nobody_is_asked_to_write_what_stands_there(tmp_path: Path) -> None:
    body = "    kind: append-only\n    schema: a int\n    source: {buffer: b, format: {}}"
    said = message(tmp_path, f"version: 1\ncollections:\n  it:\n{body}\n")
    assert "unknown field 'format' in 'source'" in said
    assert "did you mean 'format'" not in said


def test_a_declaration_built_in_code_names_the_formats_too() -> None:
    with pytest.raises(ValidationError, match="unknown format 'orcc': known are parquet, csv, json, iceberg, jdbc"):
        Declaration.model_validate({"name": "it", "kind": "differential", "source": {"format": "orcc", "path": "/x"}})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("kind: differential", "needs a `source`"),
        (
            "kind: differential\nsource: {format: parquet, path: x, where: \"at >= '{start}'\"}",
            "each run would retract the rows of all other intervals; add a `scope`",
        ),
        (
            "kind: differential\nsource:\n  inputs: {f: {collection: x}}\n  sql: SELECT a FROM f WHERE d < '{end}'",
            "each run would retract the rows of all other intervals; add a `scope`",
        ),
        ("kind: append-only", "needs a `schema`, or a `source`"),
        ("kind: append-only\nschema: a int\nkey: [a]", "`key` is for differential and `latest` collections, and for"),
        ("kind: append-only\nschema: a int\nscope: {column: a, every: day}", "`scope` is for differential"),
        (f"kind: differential\nsource: {CSV}\nretention: {{age: 1d, column: d}}", "`retention` is for append-only"),
        (f"kind: differential\nsource: {CSV}\nguards: {{on_duplicate_key: 'first_by: d'}}", "needs a `key`"),
        (f"kind: differential\nsource: {CSV}\nguards: {{on_null_key: drop}}", "needs a `key`"),
        (f"kind: differential\nsource: {CSV}\nbuckets: 4", "`buckets` needs a `key`"),
        (f"kind: differential\nsource: {CSV}\nkey: [a, a]", "names a column twice"),
        (f"kind: differential\nsource: {CSV}\nkey: [c]", "`key` names 'c', which is not among the columns a, b, d"),
        (f"kind: differential\nsource: {CSV}\nkey: [a]\nscope: {{column: d, every: day}}", "one key could live in two"),
        (f"kind: differential\nsource: {CSV}\nscope: {{column: b, every: day}}", "type string is no date or timestamp"),
        (f"kind: differential\nsource: {CSV}\nrenames: {{a: z}}", "`renames` names 'z'"),
        (
            f"kind: differential\nsource: {CSV}\ncluster_by: [z]",
            "`cluster_by` names 'z', which is not among the columns",
        ),
        (f"kind: differential\nsource: {CSV}\ncluster_by: [d, d]", "field 'cluster_by': names a column twice"),
        (f"kind: differential\nsource: {CSV}\ncluster_by: []", "field 'cluster_by': value should have at least 1 item"),
        (f"kind: differential\nsource: {CSV}\ncluster_by: d", "field 'cluster_by': input should be a valid tuple"),
        (
            "kind: differential\nschema: 'm map<string,int>'\nsource: {format: parquet, path: x}\ncluster_by: [m]",
            "`cluster_by` names 'm', whose type map<string,int> cannot be compared",
        ),
        ("kind: append-only\nschema: a int\ncluster_by: [a]", "`cluster_by` is for differential collections: leave it"),
        (
            "kind: differential\nkey: [m]\nschema: 'm map<string,int>'\nsource: {format: parquet, path: x}",
            "whose type map<string,int> cannot be a key",
        ),
        *(
            (f"kind: append-only\nschema: 'a int, b string, t timestamp, m map<string,int>'\n{fields}", said)
            for fields, said in [
                ("retention: {column: t}", "exactly one of `age`, `time_window` and `last_n`, got none of them"),
                ("retention: {age: 1d, last_n: 2, column: t}", "got `age` and `last_n`"),
                ("retention: {age: 1d}", "`age` needs `column`"),
                ("retention: {age: 1d, column: t, key: [a]}", "`key` does not go with `age`: leave it out"),
                ("retention: {age: 1d, column: a}", "`retention.column` names 'a', whose type int is no date"),
                ("retention: {age: 1w, column: t}", "field 'retention.age'"),
                ("retention: {time_window: 1d, column: t, order_by: [a]}", "`order_by` does not go with `time_window`"),
                ("retention: {time_window: 1d, column: t, key: [z]}", "`retention.key` names 'z', which is not among"),
                ("retention: {last_n: 2, key: [a]}", "`last_n` needs `order_by`"),
                ("retention: {last_n: 0, key: [a], order_by: [t]}", "field 'retention.last_n'"),
                ("retention: {last_n: 2, key: [m], order_by: [t]}", "whose type map<string,int> cannot be a key"),
                ("retention: {last_n: 2, key: [a], order_by: [m]}", "type map<string,int> cannot be compared"),
                ("retention: {agee: 1d, column: t}", "unknown field 'agee' in 'retention'; did you mean 'age'?"),
                ("staged_retention: 1w", "field 'staged_retention.age'"),
                ("staged_retention: {age: 1d, live: true}", "unknown field 'live' in 'staged_retention'"),
                ("expect: {}", "expects nothing"),
                ("expect: {not_nul: [a]}", "unknown field 'not_nul' in 'expect'; did you mean 'not_null'?"),
                ("expect: {not_null: [z]}", "`expect.not_null` names 'z'"),
                ("expect: {unique: [a, a]}", "names a column twice"),
                ("expect: {unique: [m]}", "`expect.unique` names 'm', whose type map<string,int> cannot be compared"),
                ("expect: {range: {a: {}}}", "needs `min` or `max`"),
                ("expect: {range: {a: {min: x}}}", "`expect.range.a`: 'x' cannot be a value of a column of type int"),
                ("expect: {range: {a: {min: 2, max: 1}}}", "`expect.range.a` is empty: `min` 2 is above `max` 1"),
                ("expect: {range: {t: {min: noon}}}", "'noon' cannot be a value of a column of type timestamp"),
                ("expect: {one_of: {b: [1]}}", "`expect.one_of.b`: 1 cannot be a value of a column of type string"),
                ("status: {key: [a], column: b}", "field 'status.time': is missing"),
                ("status: {key: [a], column: b, time: b}", "`status.time` names 'b', whose type string is no date"),
            ]
        ),
        (f"kind: differential\nsource: {CSV}\nexpect: {{not_null: [a]}}", "`expect` is for append-only collections"),
        (f"kind: differential\nsource: {CSV}\non_stale_input: go-on", "`on_stale_input` is about the collections that"),
        ("kind: append-only\nschema: a int\non_stale_input: go-on", "`on_stale_input` is for differential collections"),
        (
            "kind: append-only\nschema: a int\nintervals: {start: 2013-01-01}",
            "`intervals` needs a `source` that is cut",
        ),
        (f"kind: differential\nsource: {CSV}\nintervals: {{start: 2013-01-01}}", "`intervals` is for append-only"),
        *(
            (f"kind: append-only\nschema: a int\nsource: {{format: parquet, path: x, where: '{{end}}'}}\n{more}", said)
            for more, said in [
                ("intervals: {start: soon}", "'soon' is not a date or time in ISO form"),
                (
                    "intervals: {start: 2013-01-01T00:30}",
                    "`start` 2013-01-01T00:30:00+00:00 is not at the turn of the hour",
                ),
                ("intervals: {start: 2013-01-02, every: month}", "is not at the turn of the month"),
                ("intervals: {start: 2013-01-02, end: 2013-01-01}", "is not after `start` 2013-01-02T00:00:00+00:00"),
                ("intervals: {}", "field 'intervals.start': is missing"),
            ]
        ),
        (f"kind: differential\nsource: {CSV}\nstaged_retention: 1d", "`staged_retention` is for append-only"),
        *(
            (f"kind: append-only\nschema: 'a int, at timestamp'\nsource: {{buffer: writes}}\n{more}", said)
            for more, said in [
                ("partition: hour", "`partition` goes by event times: name their column in `event_time`"),
                ("lifecycle: {late: refuse}", "`lifecycle` goes by event times: name their column in `event_time`"),
                ("event_time: day", "`event_time` names 'day', which is not among the columns a, at"),
                ("event_time: a", "`event_time` names 'a', whose type int is no date or timestamp"),
                ("event_time: at\npartition: week", "field 'partition'"),
                ("event_time: at\npartition: week", "should be 'hour', 'day' or 'month', got 'week'"),
                ("event_time: at\nlifecycle: {hard_limit: lots}", "field 'lifecycle.hard_limit': a limit is a number"),
                ("event_time: at\non_recreated: earliest", "'on_recreated'; it belongs in 'source'"),
                ("event_time: at\nlifecycle: {late: never}", "field 'lifecycle.late'"),
                ("event_time: at\nlifecycle: {max_compactions: 5}", "unknown field 'max_compactions' in 'lifecycle'"),
                ("event_time: at\nlifecycle: {visible: when-persisted, persist: false}", "never persists any"),
                ("event_time: at\nlifecycle: {persist_age: [1h]}", "field 'lifecycle.persist_age'"),
                ("event_time: at\nlifecycle: {persist_age: 1m}", "`persist_age` 1m is less than `late_arrive_w"),
                ("event_time: at\nlifecycle: {persist: false, hard_limit: 9}", "`persist: false` never persists"),
                ("event_time: at\nlifecycle: {soft_limit: 9, hard_limit: 8}", "`soft_limit` 9 is more than"),
                ("event_time: at\nlifecycle: {visible: when-persisted, chunks: memory}", "without `every`"),
                ("event_time: at\nlifecycle: {merge: fields}", "`merge: fields` merges rows with the same `key`"),
                ("event_time: at\nkey: [b]", "`key` names 'b', which is not among the columns"),
                ("key: [a]", "`key` is for differential and `latest` collections, and for rows with an"),
            ]
        ),
        (
            "kind: append-only\nschema: at date\nsource: {buffer: writes}\nevent_time: at\npartition: hour",
            "cut it by `day` or `month`",
        ),
        ("kind: append-only\nschema: at timestamp\nevent_time: at", "`event_time` is for rows that arrive through a"),
        (f"kind: differential\nsource: {CSV}\nevent_time: a", "`event_time` is for append-only collections"),
        ("kind: append-only\nschema: '_time bigint'", "'_time' is Tidemark's own"),
        ("kind: append-only\nschema: '_Diff bigint'", "'_Diff' is Tidemark's own"),
        ("kind: append-only\nschema: '_entry bigint'", "'_entry' is Tidemark's own"),
        ("kind: append-only\nschema: 'a int, _file string'", "'_file' is Tidemark's own or Iceberg's"),
        ("kind: append-only\nschema: 'a int, A int'", "stands twice"),
        ("kind: append-only\nschema: 'a int'\ntags: ['a+']", "'a+' is no tag"),
        ("kind: append-only\nschema: 'a int'\ntags: ['']", "'' is no tag"),
        ("kind: append-only\nschema: 'a int'\ntags: ['a b']", "'a b' is no tag"),
    ],
)
def test_contradictions_are_refused_with_the_way_out(tmp_path: Path, fields: str, said: str) -> None:
    body = indent(fields, "    ")
    assert said in message(tmp_path, f"version: 1\ncollections:\n  it:\n{body}\n")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{format: jdbc, dbtable: t}", "needs a `url`, or a `connection`"),
        ("{format: jdbc, url: 'jdbc:sqlite:x'}", "exactly one of `dbtable` and `query`"),
        ("{format: jdbc, url: 'jdbc:sqlite:x', dbtable: t, query: q}", "exactly one of `dbtable` and `query`"),
        ("{format: jdbc, url: 'http://x', dbtable: t}", "must start with jdbc:"),
        ("{format: jdbc, url: 'jdbc:sqlite:', dbtable: t}", "names no file by its path"),
        ("{format: jdbc, url: 'jdbc:sqlite:file:x.db', dbtable: t}", "names no file by its path"),
        ("{format: jdbc, url: 'jdbc:postgresql://u:p@h/d', dbtable: t}", "must not hold a user or a password"),
        ("{format: jdbc, url: 'jdbc:postgresql://h/d?password=p', dbtable: t}", "must not hold a user or a password"),
        ("{format: jdbc, url: 'jdbc:oracle:thin:u/p@//h:1521/d', dbtable: t}", "must not hold a user or a password"),
        ("{format: jdbc, url: 'jdbc:mysql://(host=h,password=p)/d', dbtable: t}", "must not hold a user or a password"),
        ("{format: jdbc, connection: c, dbtable: t, options: {Password: p}}", "does not belong here"),
        ("{format: jdbc, connection: c, dbtable: t, options: {numPartitions: 4}}", "do not see one state"),
        ("{format: jdbc, connection: c-d, dbtable: t}", "cannot be part of an environment variable"),
        (
            "{sql: SELECT 1, inputs: {a: {format: jdbc, connection: c, dbtable: t},"
            " b: {format: jdbc, connection: c, dbtable: u}}}",
            "the inputs a, b are read by one database statement each",
        ),
    ],
)
def test_database_sources_hold_no_secret_and_are_one_statement(tmp_path: Path, source: str, said: str) -> None:
    text = f"version: 1\ncollections:\n  it:\n    kind: differential\n    source: {source}\n"
    assert said in message(tmp_path, text)


def test_every_error_is_said_at_once(tmp_path: Path) -> None:
    text = "version: 1\ncollections:\n  a: {kind: x}\n  b: {kind: differential}\n"
    assert message(tmp_path, text).count("d.yaml:") == 2


def test_collections_are_ordered_so_that_inputs_come_first(tmp_path: Path) -> None:
    text = f"""
        version: 1
        collections:
          c: {{kind: differential, source: {{collection: b}}}}
          b: {{kind: differential, source: {{sql: SELECT * FROM x, inputs: {{x: {{collection: a}}}}}}}}
          a: {{kind: differential, source: {CSV}}}
    """
    found = load_declarations([write(tmp_path / "d.yaml", text)])
    assert order_by_inputs(found.by_name) == ["a", "b", "c"]
    text = "version: 1\ncollections:\n  c: {kind: differential, source: {collection: a}}\n"
    assert list(load_declarations([write(tmp_path / "d.yaml", text)], known=["a"]).by_name) == ["c"]


def test_only_the_interval_is_filled_in() -> None:
    text = "t >= '{start}' AND t < '{end}' AND m = '{other}' AND j = '{}'"
    assert fill_interval(text, "A", "B") == "t >= 'A' AND t < 'B' AND m = '{other}' AND j = '{}'"
