"""Finds the corrections from what changed in a source, without a look at the rest of the source."""
