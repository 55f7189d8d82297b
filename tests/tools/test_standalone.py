from __future__ import annotations

from pathlib import Path

import pytest

from tools.local_airflow.standalone import inherited_environment, list_bundles, main


def test_connections_are_handed_on_and_the_persons_own_airflow_is_not() -> None:
    given = {
        "AIRFLOW_CONN_SHOP": "postgres://me@db/shop",
        "AIRFLOW_HOME": "/home/me/airflow",
        "AIRFLOW__CORE__DAGS_FOLDER": "/home/me/dags",
        "TIDEMARK_SOURCE_SHOP_PASSWORD": "secret",
    }
    assert set(inherited_environment(given)) == {"AIRFLOW_CONN_SHOP", "TIDEMARK_SOURCE_SHOP_PASSWORD"}


def test_each_folder_of_dags_is_a_bundle() -> None:
    first, second = list_bundles({"dags-folder": Path("/project/dags"), "examples": Path("/project/examples/dags")})
    assert (first["name"], first["kwargs"]) == ("dags-folder", {"path": "/project/dags"})
    assert (second["name"], second["kwargs"]) == ("examples", {"path": "/project/examples/dags"})


@pytest.mark.parametrize(("generation", "folder"), [(None, "airflow"), ("1", "airflow"), ("2", "airflow-2")])
def test_each_deployment_has_an_airflow_of_its_own_beside_the_others(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    generation: str | None,
    folder: str,
) -> None:
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path))
    monkeypatch.delenv("TIDEMARK_GENERATION", raising=False)
    if generation is not None:
        monkeypatch.setenv("TIDEMARK_GENERATION", generation)
    assert main(["down"]) == 0
    assert capsys.readouterr().out == f"Airflow is not running in {tmp_path / folder}\n"
