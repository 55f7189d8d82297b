"""Sinks: a collection, or its changes, carried into another system exactly once."""
