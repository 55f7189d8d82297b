"""What a run read and wrote, in the classes of OpenLineage's client; the client is optional, so the edge loads this."""

from __future__ import annotations

from openlineage.client.event_v2 import Dataset, InputDataset, OutputDataset
from openlineage.client.facet_v2 import (
    DatasetFacet,
    JobFacet,
    OutputDatasetFacet,
    column_lineage_dataset,
    dataset_version_dataset,
    datasource_dataset,
    output_statistics_output_dataset,
    schema_dataset,
    sql_job,
    storage_dataset,
    symlinks_dataset,
)

from tidemark.orchestration.lineage.datasets import DatasetName
from tidemark.orchestration.lineage.flows import Flow, Origin, Table


def describe_inputs(flow: Flow) -> list[Dataset]:
    """Return the datasets that were read, with the schemas of the collections among them."""
    tables = {table.place: table for table in flow.read}
    return [
        InputDataset(place.namespace, place.name, facets=_facets_of(place, tables.get(place))) for place in flow.inputs
    ]


def describe_output(flow: Flow) -> OutputDataset:
    """Return the dataset that was written, with the rows that came and went, and the origins of its columns."""
    facets = _facets_of(flow.output, flow.table)
    if flow.origins:
        fields = {
            column: column_lineage_dataset.Fields([_input_field(origin) for origin in origins])
            for column, origins in flow.origins.items()
        }
        facets["columnLineage"] = column_lineage_dataset.ColumnLineageDatasetFacet(fields)
    if flow.version is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(flow.version)
    written: dict[str, OutputDatasetFacet] = {}
    if flow.rows is not None:
        written["outputStatistics"] = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(flow.rows)
    return OutputDataset(flow.output.namespace, flow.output.name, facets=facets, outputFacets=written)


def describe_job(flow: Flow) -> dict[str, JobFacet]:
    """Return the query of a source in SQL."""
    return {} if flow.query is None else {"sql": sql_job.SQLJobFacet(flow.query, "spark")}


def _facets_of(place: DatasetName, table: Table | None) -> dict[str, DatasetFacet]:
    facets: dict[str, DatasetFacet] = {
        "dataSource": datasource_dataset.DatasourceDatasetFacet(name=place.namespace, uri=place.namespace)
    }
    if table is not None:
        columns = [schema_dataset.SchemaDatasetFacetFields(each.name, str(each.type)) for each in table.columns]
        catalogued = symlinks_dataset.Identifier(table.in_catalog.namespace, table.in_catalog.name, "TABLE")
        facets |= {
            "schema": schema_dataset.SchemaDatasetFacet(columns),
            "storage": storage_dataset.StorageDatasetFacet("iceberg", "parquet"),
            "symlinks": symlinks_dataset.SymlinksDatasetFacet([catalogued]),
        }
    return facets


def _input_field(origin: Origin) -> column_lineage_dataset.InputField:
    copied = [column_lineage_dataset.Transformation("DIRECT", "IDENTITY")] if origin.is_copied else []
    return column_lineage_dataset.InputField(
        origin.dataset.namespace, origin.dataset.name, origin.column, transformations=copied
    )
