"""What a run read and wrote, down to columns, as events of OpenLineage."""
