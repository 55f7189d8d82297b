"""From write buffers into append-only collections: what a run reads, how it is decoded, and how it becomes visible."""
