from __future__ import annotations

from pathlib import Path

import pytest

import tidemark.settings
from tidemark.errors import ConfigurationInvalid
from tidemark.settings import PROJECT_ROOT, Settings


def test_a_home_alone_puts_everything_below_it(tmp_path: Path) -> None:
    settings = Settings.load({"TIDEMARK_HOME": str(tmp_path)})
    assert settings.catalog_uri.reveal() == f"sqlite:///{tmp_path}/catalog.db"
    assert settings.catalog_path == tmp_path / "catalog.db"
    assert settings.stash_uri.path == tmp_path / "stash.db"
    assert settings.warehouse == (tmp_path / "warehouse").as_uri()
    assert settings.reports == tmp_path / "reports"
    assert settings.generation == 1


def test_without_any_variable_state_lies_in_the_project() -> None:
    settings = Settings.load({})
    assert settings.home == PROJECT_ROOT / ".tidemark"
    assert settings.jars == PROJECT_ROOT / ".jars"


def test_installed_from_a_wheel_state_lies_with_the_users_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tidemark.settings, "IN_CHECKOUT", False)
    settings = Settings.load({"XDG_DATA_HOME": str(tmp_path)})
    assert settings.home == tmp_path / "tidemark" / "home"
    assert settings.jars == tmp_path / "tidemark" / "jars"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Settings.load({}).home == tmp_path / ".local" / "share" / "tidemark" / "home"


def test_each_place_can_be_set_by_itself(tmp_path: Path) -> None:
    settings = Settings.load(
        {
            "TIDEMARK_HOME": str(tmp_path),
            "TIDEMARK_CATALOG_URI": "postgresql://keeper:secret@db:5432/tides",
            "TIDEMARK_STASH_URI": "postgres://keeper:secret@db/stash",
            "TIDEMARK_WAREHOUSE": "s3://bucket/warehouse/",
            "TIDEMARK_REPORTS": "/reports",
            "TIDEMARK_JARS": "/jars",
            "TIDEMARK_GENERATION": "3",
        }
    )
    assert not settings.catalog_is_sqlite
    assert settings.stash_uri.reveal() == "postgresql://keeper:secret@db:5432/stash"
    assert settings.warehouse == "s3://bucket/warehouse", "one way to write a folder"
    assert (settings.reports, settings.jars, settings.generation) == (Path("/reports"), Path("/jars"), 3)


def test_a_warehouse_folder_becomes_a_uri(tmp_path: Path) -> None:
    assert Settings.load({"TIDEMARK_WAREHOUSE": str(tmp_path)}).warehouse == tmp_path.as_uri()


def test_the_scheme_that_airflow_writes_is_understood() -> None:
    settings = Settings.load({"TIDEMARK_CATALOG_URI": "postgres://u:p@h/d"})
    assert settings.catalog_uri.reveal() == "postgresql://u:p@h:5432/d"


@pytest.mark.parametrize("uri", ["sqlite:///catalog.db", "sqlite://", "sqlite:///:memory:"])
def test_a_database_file_without_an_absolute_path_is_refused(uri: str) -> None:
    with pytest.raises(ConfigurationInvalid, match="TIDEMARK_CATALOG_URI must name a file by its absolute path"):
        Settings.load({"TIDEMARK_CATALOG_URI": uri})


@pytest.mark.parametrize("variable", ["TIDEMARK_CATALOG_URI", "TIDEMARK_STASH_URI"])
def test_a_foreign_scheme_is_refused_without_its_password(variable: str) -> None:
    with pytest.raises(ConfigurationInvalid, match=variable) as refused:
        Settings.load({variable: "mysql://u:hunter2@h/d"})
    assert "hunter2" not in str(refused.value)


def test_what_is_no_uri_at_all_is_refused() -> None:
    with pytest.raises(ConfigurationInvalid, match="TIDEMARK_STASH_URI is not a URI of PostgreSQL"):
        Settings.load({"TIDEMARK_STASH_URI": "postgresql://u:hunter2@[/d"})


@pytest.mark.parametrize("text", ["0", "-1", "one", "1.5", " "])
def test_a_generation_is_a_whole_number_from_one_on(text: str) -> None:
    with pytest.raises(ConfigurationInvalid, match="TIDEMARK_GENERATION"):
        Settings.load({"TIDEMARK_GENERATION": text})
