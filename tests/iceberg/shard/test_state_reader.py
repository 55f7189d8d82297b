from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.damage import damage_metadata, metadata_file
from tests.support.rows import SCHEMA, correction
from tidemark.errors import CorruptState, ForeignTable, UnknownCollection, Unreachable
from tidemark.iceberg.commit.holds import hold
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.shard.state_reader import read_state, read_states
from tidemark.iceberg.shards import Shards
from tidemark.settings import Settings


def _check(settings: Settings) -> None:
    assert read_states(settings) == {}
    shard = Shards.connect(settings).create("planes", schema=SCHEMA)
    writer = Writer.raise_token(shard, 1)
    writer.publish(correction(shard.load(), insert=[(1, "a"), (2, "b")], time=1), lower=0, new_upper=2)
    writer.publish(correction(shard.load(), retract=[(1, "a")], time=2), lower=2, new_upper=3)
    hold(shard, "reader", expires_at_ms=99)
    summary = read_state(settings, "planes")
    assert (summary.state, summary.rows, summary.staged) == (shard.load().state, 1, ())
    assert read_states(settings) == {"planes": summary}
    with pytest.raises(UnknownCollection) as caught:
        read_state(settings, "plane")
    assert "planes" in caught.value.hint


def test_state_is_the_writers_own_on_sqlite(bare_home: Settings) -> None:
    _check(bare_home)


@pytest.mark.postgres
def test_state_is_the_writers_own_on_postgres(postgres_home: Settings) -> None:
    _check(postgres_home)


def test_unreachable_catalog_is_said_so(home: Settings) -> None:
    environ = {"TIDEMARK_HOME": str(home.home), "TIDEMARK_CATALOG_URI": "postgresql://u:secret@127.0.0.1:1/x"}
    with pytest.raises(Unreachable) as caught:
        read_states(Settings.load(environ))
    assert "secret" not in str(caught.value)


def test_reading_state_imports_neither_pyiceberg_nor_spark() -> None:
    heavy = ("pyiceberg", "pyspark", "pyarrow")
    program = f"import sys, tidemark.iceberg.shard.state_reader; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_metadata_file_that_cannot_be_read_is_a_store_that_does_not_answer(home: Settings) -> None:
    place = metadata_file(Shards.connect(home).create("planes", schema=SCHEMA))
    place.unlink()
    place.mkdir()
    with pytest.raises(Unreachable, match="cannot be read") as caught:
        read_state(home, "planes")
    assert "TIDEMARK_WAREHOUSE" in caught.value.hint


@pytest.mark.parametrize("damage", ["cut", "empty", "binary", "list", "without refs", "gone"])
def test_a_damaged_shard_is_said_so_and_takes_nothing_from_the_others(bare_home: Settings, damage: str) -> None:
    shards = Shards.connect(bare_home)
    damage_metadata(shards.create("planes", schema=SCHEMA), damage)
    shards.create("weather", schema=SCHEMA)
    states = read_states(bare_home)
    assert list(states) == ["planes", "weather"]
    assert isinstance(states["planes"], CorruptState)
    assert "'planes'" in str(states["planes"])
    assert states["weather"] == read_state(bare_home, "weather")
    with pytest.raises(CorruptState, match="planes"):
        read_state(bare_home, "planes")


def test_a_table_without_any_properties_is_somebody_elses(bare_home: Settings) -> None:
    shards = Shards.connect(bare_home)
    damage_metadata(shards.create("planes", schema=SCHEMA), "without properties")
    with pytest.raises(ForeignTable):
        read_state(bare_home, "planes")
    assert read_states(bare_home) == {}
