"""How a path becomes a location, and which paths are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemark.errors import ConfigurationInvalid
from tidemark.locations import NOT_IN_FOLDERS, check_path, parse_uri, reading_uri, sqlite_path, to_location, to_path
from tidemark.settings import Settings
from tidemark.write_buffer.address import parse_connection


@pytest.mark.parametrize("path", ["/data/home-1_2.x/~", "/my home", "/ü", "/a%20b", "/100%", "//twice"])
def test_a_location_is_the_path_as_it_is_and_is_read_back_as_it_is(path: str) -> None:
    location = to_location(Path(path))
    assert location == f"file:///{path.lstrip('/')}"
    assert to_path(location) == Path("/" + path.lstrip("/"))


def test_every_form_that_engines_write_is_the_same_file() -> None:
    assert {to_path(each) for each in ("file:///a%20b", "file:/a%20b", "/a%20b")} == {Path("/a%20b")}
    assert to_path("s3://bucket/a") is None


def test_what_a_person_writes_is_decoded_if_it_is_a_uri() -> None:
    assert {parse_uri(each) for each in ("file:///my%20home", "file:/my home", "/my home")} == {Path("/my home")}
    assert parse_uri("/my%20home") == Path("/my%20home")
    assert parse_uri("s3://bucket/my%20home") is None
    for uri in ("file://host/data", "file:data", "file://"):
        with pytest.raises(ConfigurationInvalid, match="without a host"):
            parse_uri(uri)


def test_a_warehouse_may_be_written_as_a_path_or_as_a_uri(tmp_path: Path) -> None:
    folder = tmp_path / "my ü"
    written = [str(folder), folder.as_uri(), f"file:{folder}", f"file://{folder}/"]
    assert {Settings.load({"TIDEMARK_WAREHOUSE": each}).warehouse for each in written} == {f"file://{folder}"}


def test_a_link_below_the_home_stays_the_name_of_the_warehouse(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "warehouse").symlink_to(tmp_path / "disk")
    assert Settings.load({"TIDEMARK_HOME": str(tmp_path)}).warehouse == f"file://{tmp_path}/warehouse"


def test_an_sqlite_file_is_named_as_it_is() -> None:
    assert sqlite_path("sqlite:////my%20home/stash.db") == Path("/my%20home/stash.db")
    assert sqlite_path("postgresql://h/d") is None


@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {"LC_CTYPE": "POSIX"}, {"LANG": "de_DE.ISO-8859-1"}])
def test_java_reads_no_name_beyond_ascii_in_a_locale_without_it(locale: dict[str, str]) -> None:
    check_path(Path("/data"), refused=NOT_IN_FOLDERS, variable="TIDEMARK_HOME", environ=locale)
    with pytest.raises(ConfigurationInvalid, match="'ü', which Java cannot read in the locale") as refused:
        check_path(Path("/data/ü"), refused=NOT_IN_FOLDERS, variable="TIDEMARK_HOME", environ=locale)
    assert refused.value.hint == "set LC_ALL to C.UTF-8, or TIDEMARK_HOME to another path"
    for fine in ({}, {"LC_ALL": "C.UTF-8", "LANG": "C"}, {"LC_CTYPE": "de_DE.utf8"}):
        check_path(Path("/data/ü"), refused=NOT_IN_FOLDERS, variable="TIDEMARK_HOME", environ=fine)


def test_a_file_buffer_lies_where_its_address_says() -> None:
    assert parse_connection("file:///my%20home/100%/a%23b?sequencers=2").place == "/my home/100%/a#b"
    with pytest.raises(ConfigurationInvalid, match="contains '#'"):
        parse_connection("file:///a#b")


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
def test_a_database_that_somebody_has_open_is_not_taken_for_one_that_nobody_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    path = tmp_path / "a.db"
    assert not reading_uri(path).endswith("immutable=1")
    path.touch()
    monkeypatch.setattr("os.access", lambda *_: False)
    assert reading_uri(path).endswith("?mode=ro&immutable=1")
    (tmp_path / f"a.db{suffix}").touch()
    assert reading_uri(path).endswith("?mode=ro&immutable=1"), "an empty one is what is left of a killed process"
    (tmp_path / f"a.db{suffix}").write_bytes(b"changes")
    assert reading_uri(path).endswith("?mode=ro")
