"""What the board promises, on both databases."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from threading import Barrier, Thread
from typing import TYPE_CHECKING

import pytest

from tests.support.leases import run_sql, wait_for
from tidemark.clock import SystemClock
from tidemark.errors import Unreachable
from tidemark.secrets.database_uri import DatabaseUri
from tidemark.storage.board import Board

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.postgres_server import PostgresServer
    from tidemark.settings import Settings

WRITERS, NUMBERS = 4, 10


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store(request: pytest.FixtureRequest) -> Settings:
    settings: Settings = request.getfixturevalue("home" if request.param == "sqlite" else "postgres_home")
    return settings


@pytest.fixture
def board(store: Settings) -> Iterator[Board]:
    with closing(Board(store)) as opened:
        yield opened


def values_of(board: Board, prefix: str = "") -> dict[str, object]:
    return {entry.place: entry.value["v"] for entry in board.read(prefix)[0]}


def test_a_store_without_the_table_is_empty_and_the_first_level_makes_it(store: Settings, board: Board) -> None:
    assert board.read() == ([], 0)
    assert board.put("worker/0", {"v": 1}, life=3, number=7)
    with closing(Board(store)) as other:
        ((entry,), now_ms) = other.read("worker/")
    assert (entry.place, entry.life, entry.number, entry.value) == ("worker/0", 3, 7, {"v": 1})
    assert 0 <= now_ms - entry.written_ms < 60_000
    assert abs(now_ms - SystemClock().now_ms()) < 60_000, "the database of a test runs on the same machine"


def test_only_a_later_life_or_number_replaces_a_level(board: Board) -> None:
    assert board.put("a", {"v": 1})
    assert not board.put("a", {"v": 2}), "the same again"
    assert board.put("a", {"v": 3}, life=1, number=5)
    assert not board.put("a", {"v": 4}, life=0, number=9), "an older life"
    assert not board.put("a", {"v": 5}, life=1, number=4)
    assert board.put("a", {"v": 6}, life=2, number=0), "a new life counts from 0 again"
    assert values_of(board) == {"a": 6}


def test_time_goes_on_with_each_level_and_without_any(board: Board) -> None:
    board.put("a", {}, number=1)
    ((first,), _) = board.read()
    wait_for(lambda: board.read("nothing")[1] > first.written_ms)
    assert not board.put("a", {}, number=1)
    assert board.read()[0] == [first], "what is refused does not count as a sign of life"
    board.put("a", {}, number=2)
    assert board.read()[0][0].written_ms > first.written_ms


def test_a_prefix_is_taken_letter_by_letter(board: Board) -> None:
    for number, place in enumerate(["part/b_/1", "part/b%/1", "part/bx/1", "Part/bx/1", "part/b", "pär/t/1"]):
        board.put(place, {"v": number})
    assert [entry.place for entry in board.read()[0]] == sorted(values_of(board))
    assert values_of(board, "part/b_") == {"part/b_/1": 0}
    assert values_of(board, "part/b%") == {"part/b%/1": 1}
    assert values_of(board, "pär") == {"pär/t/1": 5}
    board.remove("part/b_")
    board.remove("P")
    assert [*values_of(board)] == ["part/b", "part/b%/1", "part/bx/1", "pär/t/1"]
    board.remove("")
    assert values_of(board) == {}


def test_what_has_not_changed_since_the_last_look_is_the_same_entry(store: Settings, board: Board) -> None:
    with closing(Board(store)) as other:
        other.put("a", {"v": 1}, number=1)
        other.put("b", {"v": 1}, number=1)
        assert values_of(board, "b") == {"b": 1}
        assert values_of(board) == {"a": 1, "b": 1}, "written before what was seen, and not seen itself"
        (first, _), _ = board.read()
        other.put("b", {"v": 2}, number=2)
        (again, changed), _ = board.read()
        other.remove("a")
        assert values_of(board) == {"b": 2}
    assert again is first
    assert changed.value == {"v": 2}


def test_a_value_comes_back_as_it_was(board: Board) -> None:
    value = {"näme": "wörker %s {0} ?", "objects": ["a", None], "deep": {"n": 2**60, "x": 1.5, "so": True}}
    board.put("a", value)
    assert board.read()[0][0].value == value


def test_of_writers_at_the_same_time_exactly_one_wins_each_number(store: Settings) -> None:
    start, wins = Barrier(WRITERS), list[tuple[int, int]]()

    def write(writer: int) -> None:
        with closing(Board(store)) as board:
            for number in range(NUMBERS):
                start.wait()
                if board.put("mint/a", {"v": writer}, number=number):
                    wins.append((number, writer))

    threads = [Thread(target=write, args=(writer,)) for writer in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(number for number, _ in wins) == [*range(NUMBERS)]
    with closing(Board(store)) as board:
        assert values_of(board) == {"mint/a": dict(wins)[NUMBERS - 1]}


def test_a_read_takes_less_than_a_few_ms(board: Board) -> None:
    for worker in range(8):
        board.put(f"worker/{worker}", {"objects": ["planes"] * 20})
    took = []
    for _ in range(20):
        before = time.perf_counter()
        board.read("worker/")
        took.append(time.perf_counter() - before)
    assert min(took) < 0.005


def test_a_database_that_is_busy_is_a_failure_and_can_be_read_meanwhile(home: Settings) -> None:
    board = Board(replace(home, connect_timeout_s=0.05))
    board.put("a", {"v": 1})
    with closing(sqlite3.connect(home.catalog_path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unreachable):
            board.put("a", {"v": 2}, number=1)
        assert values_of(board) == {"a": 1}
    assert board.put("a", {"v": 2}, number=1)


def test_a_catalog_that_was_put_back_from_a_backup_is_read_and_written_at_once(home: Settings) -> None:
    board = Board(home)
    board.put("a", {"v": 1}, number=9)
    aside = home.catalog_path.with_name("aside.db")
    home.catalog_path.rename(aside)
    assert board.read() == ([], 0)
    with pytest.raises(Unreachable):
        board.put("a", {"v": 2}, number=10)
    assert not home.catalog_path.exists(), "who shows a level makes no catalog"
    aside.rename(home.catalog_path)
    run_sql(home, "DELETE FROM tidemark_storage")
    assert board.put("a", {"v": 3})
    assert values_of(board) == {"a": 3}


def test_a_store_that_cannot_be_read_is_told(bare_home: Settings) -> None:
    bare_home.catalog_path.write_text("no database" * 100)
    with pytest.raises(Unreachable, match="cannot be read"):
        Board(bare_home).read()


@pytest.mark.postgres
def test_a_connection_that_was_cut_is_opened_anew(postgres_home: Settings, postgres: PostgresServer) -> None:
    with closing(Board(postgres_home)) as board:
        board.put("a", {"v": 1})
        postgres.cut_connections()
        with pytest.raises(Unreachable, match="cannot be reached"):
            board.read()
        assert values_of(board) == {"a": 1}
        postgres.cut_connections()
        with pytest.raises(Unreachable):
            board.put("a", {"v": 2}, number=1)
        assert board.put("a", {"v": 2}, number=1)


@pytest.mark.postgres
def test_a_server_that_is_away_is_told_without_its_password(postgres_home: Settings) -> None:
    uri = DatabaseUri.parse("postgresql://me:geheim@127.0.0.1:1/none", variable="TIDEMARK_CATALOG_URI")
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1") as told:
        Board(replace(postgres_home, catalog_uri=uri)).read()
    assert "geheim" not in str(told.value)
