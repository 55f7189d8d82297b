from __future__ import annotations

from tools.local_airflow.standalone import inherited_environment


def test_connections_are_handed_on_and_the_persons_own_airflow_is_not() -> None:
    given = {
        "AIRFLOW_CONN_SHOP": "postgres://me@db/shop",
        "AIRFLOW_HOME": "/home/me/airflow",
        "AIRFLOW__CORE__DAGS_FOLDER": "/home/me/dags",
        "TIDEMARK_SOURCE_SHOP_PASSWORD": "secret",
    }
    assert set(inherited_environment(given)) == {"AIRFLOW_CONN_SHOP", "TIDEMARK_SOURCE_SHOP_PASSWORD"}
