from __future__ import annotations

from pathlib import Path

from tools.local_airflow.standalone import inherited_environment, list_bundles


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
