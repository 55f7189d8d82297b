"""Sources whose changes can be told: a run reads these alone."""
