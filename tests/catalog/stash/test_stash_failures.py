"""A stash whose database is wrong, slow, busy or gone: what is reported at once, what is waited for, what is lost."""

from __future__ import annotations

import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT, settings_in
from tests.support.catalog.cutting_proxy import Cut, cutting_proxy
from tests.support.catalog.items_of import name, setting
from tests.support.catalog.stash_places import StashPlace
from tests.support.postgres_server import running_postgres
from tidemark.catalog.back_end import OpenMode
from tidemark.catalog.items.kinds import AUDIT_EVENT, SETTING
from tidemark.catalog.stash.connection import Conflict
from tidemark.catalog.stash.sqlite import SqliteConnection
from tidemark.catalog.stash.stash import Stash
from tidemark.catalog.stash.transactions import ATTEMPTS, LONGEST_PAUSE_S, StashTransactions
from tidemark.errors import (
    ConfigurationInvalid,
    ConflictsUnsettled,
    CorruptState,
    FencedByEpoch,
    NotPossible,
    Unreachable,
)
from tidemark.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.postgres_server import PostgresServer
    from tidemark.catalog.items.transaction import Transaction
    from tidemark.catalog.stash.handle import StashHandle


def count_up(transaction: Transaction) -> int:
    """Read and write: run twice, it counts twice."""
    number = transaction.allocate("collection")
    transaction.audit("count", kind=SETTING, subject=str(number), who="test")
    return number


def counted(handle: StashHandle) -> list[str]:
    return handle.transact(lambda transaction: [value.subject for _, value in transaction.items(AUDIT_EVENT)])


def terminate(place: StashPlace) -> None:
    place.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE pid <> pg_backend_pid() AND application_name = 'tidemark-stash' AND datname = current_database()"
    )


# -- never there ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("uri", ["postgresql://h:port/db", "postgresql://h/db?sslmod=1", "postgresql://h/%zz"])
def test_an_invalid_uri_is_an_error_at_once(tmp_path: Path, uri: str) -> None:
    with pytest.raises(ConfigurationInvalid, match="TIDEMARK_STASH_URI") as refused:
        Stash.of(settings_in(tmp_path, TIDEMARK_STASH_URI=uri.replace("//h", "//me:hunter2@h")))
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("answers", [False, pytest.param(True, marks=pytest.mark.postgres)])  # the latter takes 3 s
def test_an_unreachable_server_is_reported_within_five_seconds(tmp_path: Path, *, answers: bool) -> None:
    """Refused at once, and, worse, a port that takes the connection and then says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        if not answers:
            silent.close()
        stash = Stash.of(settings_in(tmp_path, TIDEMARK_STASH_URI=f"postgresql://me:hunter2@127.0.0.1:{port}/db"))
        started = time.monotonic()
        with pytest.raises(Unreachable, match=f"the stash at 127.0.0.1:{port} cannot be reached") as refused:
            stash.head()
        assert time.monotonic() - started < 5
    assert refused.value.exit_code is ExitCode.UNREACHABLE
    assert "hunter2" not in str(refused.value)


def test_no_way_to_open_tries_for_ever(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    place = StashPlace(settings_in(tmp_path, TIDEMARK_STASH_URI=f"postgresql://me@127.0.0.1:{port}/db"))
    ways: list[Callable[[], object]] = [lambda mode=mode: place.open(mode) for mode in OpenMode]
    for way in [*ways, place.join, lambda: list(place.stash.dump())]:
        started = time.monotonic()
        with pytest.raises(Unreachable):
            way()
        assert time.monotonic() - started < 1


@pytest.mark.postgres
def test_a_wrong_password_or_database_is_reported_at_once(postgres: PostgresServer, tmp_path: Path) -> None:
    uri = postgres.uri("postgres")
    for wrong in (uri.replace("secret", "wrong"), postgres.uri("nowhere")):
        stash = Stash.of(settings_in(tmp_path, TIDEMARK_STASH_URI=wrong))
        started = time.monotonic()
        with pytest.raises(Unreachable):
            stash.head()
        assert time.monotonic() - started < 3


def test_a_folder_that_cannot_be_made_and_a_file_that_is_none(tmp_path: Path) -> None:
    tmp_path.joinpath("file").write_text("x" * 5_000)
    for path in ("file/stash.db", "file"):
        place = StashPlace(settings_in(tmp_path, TIDEMARK_STASH_URI=f"sqlite:///{tmp_path / path}"))
        with pytest.raises((Unreachable, CorruptState)):
            place.open()
    with pytest.raises(CorruptState, match="the stash 'file' cannot be read"):
        place.stash.head()


@pytest.mark.postgres
def test_what_the_server_forbids_is_not_tried_again(server_place: StashPlace, unique_name: str) -> None:
    server_place.open().close()
    schema, reader = unique_name[-60:], "reader_" + unique_name[-8:]
    server_place.sql(f"CREATE ROLE {reader} LOGIN PASSWORD 'guest'")
    server_place.sql(f"GRANT USAGE ON SCHEMA {schema} TO {reader}")
    server_place.sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {reader}")
    uri = replace(server_place.settings.stash_uri, user=reader, password="guest")  # noqa: S106 - as above
    guest = StashPlace(replace(server_place.settings, stash_uri=uri))
    with guest.open(OpenMode.READ_ONLY) as handle:
        assert handle.snapshot().counts() == {"config": 2}
    started = time.monotonic()
    with pytest.raises(NotPossible, match="permission denied"):
        guest.open()
    assert time.monotonic() - started < 2
    server_place.sql("DROP TABLE uppers")
    server_place.sql("CREATE INDEX uppers ON sinces (since)")
    with pytest.raises(NotPossible, match="uppers"):
        server_place.open()


def limit_pages(private: SqliteConnection, pages: int) -> None:
    private._opened.execute(f"PRAGMA max_page_count = {pages}")


@pytest.mark.parametrize("is_full_at_once", [True, False])
def test_a_dry_run_without_space_for_its_private_copy_says_so_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_full_at_once: bool
) -> None:
    """It is neither a lost connection to the stash nor, when it is made again and empty, a stash without tables."""
    place, began = StashPlace(settings_in(tmp_path)), SqliteConnection.begin
    copies: list[SqliteConnection] = []

    def begin(connection: SqliteConnection, *, write: bool) -> None:
        began(connection, write=write)
        if connection.where == "a private copy" and connection not in copies:
            copies.append(connection)
            if is_full_at_once:
                limit_pages(connection, 12)

    def fill(transaction: Transaction) -> None:
        for number in range(20):
            transaction.put(SETTING, name(str(number)), setting("v" * 10_000))

    with place.open() as leader:
        leader.transact(fill)
    monkeypatch.setattr(SqliteConnection, "begin", begin)
    started = time.monotonic()
    with pytest.raises(Unreachable, match=r"the private copy of a dry run cannot be written: .* full") as refused:
        dry_run_without_space(place, copies)
    assert "SQLITE_TMPDIR" in refused.value.hint
    assert time.monotonic() - started < 5, "not tried again"
    assert len(copies) == 1


def dry_run_without_space(place: StashPlace, copies: list[SqliteConnection]) -> None:
    with place.open(OpenMode.SAVEPOINT) as handle:
        limit_pages(copies[0], 1)  # which is as many as there are
        handle.transact(lambda transaction: transaction.put(SETTING, name("more"), setting("v" * 100_000)))


# -- gone in the middle --------------------------------------------------------------------------------------------


@pytest.mark.postgres
def test_a_connection_that_is_killed_is_made_again(server_place: StashPlace) -> None:
    with server_place.open() as handle:
        terminate(server_place)
        assert handle.transact(count_up) == 1
        terminate(server_place)
        assert handle.snapshot().counts()["audit_event"] == 1
        runs = []

        def killed_in_the_middle(transaction: Transaction) -> int:
            runs.append(count_up(transaction))
            if len(runs) < 3:
                terminate(server_place)
            return runs[-1]

        assert handle.transact(killed_in_the_middle) == 2
        assert (runs, counted(handle)) == ([2, 2, 2], ["1", "2"])


@pytest.mark.postgres
def test_a_writer_that_freezes_does_not_hold_its_locks_for_ever(server_place: StashPlace) -> None:
    with server_place.open() as handle:
        setting_of = "SELECT current_setting('idle_in_transaction_session_timeout')"
        for _ in range(2):
            assert handle.run(lambda collections: collections._connection.query(setting_of)) == [("1min",)]
            terminate(server_place)  # a new connection has it too


@pytest.mark.postgres
@pytest.mark.parametrize("cut", [Cut.BEFORE_COMMIT, Cut.AFTER_COMMIT])
def test_a_commit_whose_answer_is_lost_happens_exactly_once(server_place: StashPlace, cut: Cut) -> None:
    assert server_place.server is not None
    with cutting_proxy(server_place.server.port) as proxy:
        uri = replace(server_place.settings.stash_uri, port=proxy.port)
        behind = replace(server_place, settings=replace(server_place.settings, stash_uri=uri))
        behind.open().close()
        with behind.join() as handle:
            handle._consolidates = False  # it commits too
            runs = []

            def change(transaction: Transaction) -> int:
                runs.append(1)
                return count_up(transaction)

            for number in (1, 2):
                proxy.cut = cut
                assert handle.transact(change) == number
            assert counted(handle) == ["1", "2"]
            assert (proxy.cuts, len(runs)) == (2, 4 if cut is Cut.BEFORE_COMMIT else 2)
        proxy.cut = cut
        with behind.open() as handle:
            assert handle.epoch == 3, "the epoch too is raised exactly once"


@pytest.mark.postgres
@pytest.mark.crash
def test_a_server_that_crashes_is_waited_for(tmp_path: Path) -> None:
    folder = ROOT / "postgres-crash"  # not below tmp_path, which the next pytest shuts to the server's user
    folder.mkdir()
    with running_postgres(folder / "data") as server:
        place = StashPlace(settings_in(tmp_path, TIDEMARK_STASH_URI=server.create_database("stash")), server)
        with place.open() as handle:
            runs = []

            def change(transaction: Transaction) -> int:
                runs.append(count_up(transaction))
                if len(runs) == 1:  # a backend that is killed takes the whole server into crash recovery
                    backends = place.sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'tidemark-stash'")
                    os.kill(backends[0][0], signal.SIGKILL)
                return runs[-1]

            assert handle.transact(change) == 1
            assert counted(handle) == ["1"]


# -- in each other's way -------------------------------------------------------------------------------------------


def test_writers_side_by_side_lose_nothing(place: StashPlace) -> None:
    with place.open():

        def write(_: int) -> list[int]:
            with place.join() as handle:
                return [handle.transact(count_up) for _ in range(5)]

        with ThreadPoolExecutor(3) as pool:
            numbers = sorted(number for found in pool.map(write, range(3)) for number in found)
        assert numbers == [*range(1, 16)]
        with place.join() as handle:
            assert sorted(map(int, counted(handle))) == numbers


def test_openers_side_by_side_get_different_epochs(place: StashPlace) -> None:
    with ThreadPoolExecutor(3) as pool:
        handles = [handle for handle in pool.map(lambda _: _opened(place), range(3)) if handle is not None]
    assert place.stash.head().epoch == 4
    assert len({handle.epoch for handle in handles}) == len(handles)
    for handle in handles:
        with handle:
            if handle.epoch == 4:
                handle.confirm_leadership()
            else:
                with pytest.raises(FencedByEpoch):
                    handle.confirm_leadership()
    assert 4 in {handle.epoch for handle in handles}


def _opened(place: StashPlace) -> StashHandle | None:
    try:
        return place.open()
    except FencedByEpoch:  # by the next opener, before it had initialised: it has to start over
        return None


@pytest.mark.postgres
def test_a_transaction_begun_before_the_fence_does_not_commit_after_it(server_place: StashPlace) -> None:
    with server_place.open() as first:
        opened = []

        def change(transaction: Transaction) -> None:
            transaction.put(SETTING, name("a"), setting("late"))
            if not opened:
                opened.append(server_place.open())

        with pytest.raises(FencedByEpoch):
            first.transact(change)
        with opened[0] as second:
            assert second.snapshot().counts() == {"config": 2}
            second.confirm_leadership()


@pytest.mark.postgres
def test_the_bare_fence_is_enough_to_stop_a_transaction(server_place: StashPlace) -> None:
    """A successor that has done no more than raise the fence, and reads in no serializable transaction."""
    with server_place.open() as first:
        raised = []

        def change(transaction: Transaction) -> None:
            transaction.put(SETTING, name("a"), setting("late"))
            if not raised:
                raised.append(server_place.sql("UPDATE fence SET epoch = epoch + 1, nonce = '\\x00'"))

        with pytest.raises(FencedByEpoch):
            first.transact(change)
        assert server_place.sql("SELECT * FROM data WHERE value LIKE '%late%'") == []


def test_what_commits_before_the_fence_is_seen_behind_it(place: StashPlace) -> None:
    """An opener comes in the middle of a transaction: either it sees the change, or the change is refused."""
    with place.open() as first, ThreadPoolExecutor(1) as pool:
        opening = []

        def change(transaction: Transaction) -> None:
            transaction.put(SETTING, name("a"), setting("1"))
            if not opening:
                opening.append(pool.submit(place.open))
                deadline = time.monotonic() + 0.2  # the opener may finish, or wait for this transaction
                while not opening[0].done() and time.monotonic() < deadline:
                    time.sleep(0.01)

        try:
            first.transact(change)
            committed = True
        except FencedByEpoch:
            committed = False
        with opening[0].result(30) as second:
            assert ("setting" in second.snapshot().counts()) is committed


# -- how long it waits ---------------------------------------------------------------------------------------------


def test_a_transaction_waits_about_half_a_minute_with_growing_pauses(tmp_path: Path) -> None:
    connection = SqliteConnection(tmp_path / "stash.db")
    connection.create_database()
    pauses: list[float] = []

    def disturbed() -> None:
        raise Conflict("another transaction")

    with pytest.raises(ConflictsUnsettled, match=f"in the way {ATTEMPTS} times: another transaction"):
        StashTransactions(connection, pause=pauses.append).run(disturbed, write=False)
    connection.close()
    assert len(pauses) == ATTEMPTS - 1
    assert pauses[0] <= 0.04 < max(pauses) <= LONGEST_PAUSE_S
    assert 10 < sum(pauses) < 45
