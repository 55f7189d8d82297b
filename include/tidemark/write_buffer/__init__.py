"""Ordered logs of writes: one interface, kept in memory, in files, or by Kafka."""
