"""Sends what a run read and wrote through Airflow's provider of OpenLineage, where somebody has set that up."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemark.iceberg.shards import Shards
    from tidemark.orchestration.lineage.flows import Table

log = logging.getLogger(__name__)

_PROVIDER = "airflow.providers.openlineage"


def send_lineage(result: Mapping[str, Any]) -> None:
    """Add to the events of the running task what the run behind a result read and wrote.

    Does nothing, and imports nothing, unless the provider is installed and has somewhere to send events to. Lineage is
    told beside the work: what goes wrong is in the log, and fails no task.
    """
    if not _is_on():
        return
    try:
        _send(result)
    except Exception as error:  # noqa: BLE001 - parsers and clients of others fail in any way
        log.warning("%s: its lineage was not sent: %s: %s", result["name"], type(error).__name__, error)


def _is_on() -> bool:
    if find_spec(_PROVIDER) is None:
        return False
    from airflow.providers.openlineage import conf  # noqa: PLC0415 -- optional; a millisecond, where its API takes 500

    return not conf.is_disabled()


def _send(result: Mapping[str, Any]) -> None:
    from airflow.providers.openlineage.api import emit_dataset_lineage  # noqa: PLC0415 -- optional, and heavy

    from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415 -- heavy
    from tidemark.iceberg.shards import Shards  # noqa: PLC0415
    from tidemark.orchestration.connections import load_settings, with_source_connections  # noqa: PLC0415
    from tidemark.orchestration.lineage.facets import describe_inputs, describe_job, describe_output  # noqa: PLC0415
    from tidemark.orchestration.lineage.flows import flow_of  # noqa: PLC0415

    settings = with_source_connections(load_settings())
    shards, applied = Shards.connect(settings), deployment_of(settings).registry.read()
    if flow := flow_of(result, applied, settings, partial(look_at_table, shards)):
        emit_dataset_lineage(
            inputs=describe_inputs(flow), outputs=[describe_output(flow)], additional_job_facets=describe_job(flow)
        )


def look_at_table(shards: Shards, name: str) -> Table:
    """Return the table of a collection as the last commit left it. Raises as ``Shard.load``."""
    from tidemark.collections.apply.execute import read_stored  # noqa: PLC0415 -- heavy
    from tidemark.frontier import frontier_json  # noqa: PLC0415
    from tidemark.iceberg.shard.state_reader import CATALOG_NAME  # noqa: PLC0415
    from tidemark.orchestration.lineage.datasets import name_in_catalog, name_of_path  # noqa: PLC0415
    from tidemark.orchestration.lineage.flows import Table  # noqa: PLC0415

    head = shards.open(name).load()
    return Table(
        place=name_of_path(head.table.location()),
        in_catalog=name_in_catalog(CATALOG_NAME, ".".join(head.table.name())),
        columns=read_stored(head.table).columns,
        upper=frontier_json(head.state.upper),
        snapshot_id=head.main.snapshot_id,
    )
