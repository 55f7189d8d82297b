"""What a worker runs for one object: rounds of an ingestion, or of a sink."""
