"""The interface of a type of buffers: parse an address, open a writer, open a reader."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tidemark.clock import Clock
from tidemark.errors import ConfigurationInvalid
from tidemark.write_buffer.reader import Reader
from tidemark.write_buffer.writer import DEFAULT_LIMIT_BYTES, Writer

DEFAULT_TIMEOUT_S = 3.0  # a broker that is down is reported within 5 s, the start of Python included


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A parsed address. ``place`` is a memory buffer's name, a folder, or bootstrap servers."""

    type: str
    place: str = ""
    topic: str = ""
    sequencers: int = 1
    replication: int = 1
    limit_bytes: int = DEFAULT_LIMIT_BYTES
    timeout_s: float = DEFAULT_TIMEOUT_S  # how long a server may take to answer
    topic_options: Mapping[str, str] = field(default_factory=dict)
    client: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold a password
    producer: Mapping[str, str] = field(default_factory=dict, repr=False)
    consumer: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.sequencers < 1:
            raise ConfigurationInvalid(f"a buffer has at least one sequencer, not {self.sequencers}")


class BackEnd(ABC):
    """One type of buffers. A module of ``registry.MODULES`` has an instance as ``BACK_END``."""

    options: frozenset[str] = frozenset()  # names of options that an address may have after the `?`
    shared = True  # whether other processes, Spark's tasks among them, can open these buffers

    @abstractmethod
    def locate(self, connection: Connection, uri: str) -> Connection:
        """Return ``connection``, which has the options of ``uri``, with the place that ``uri`` names.

        Raises:
            ConfigurationInvalid: If ``uri`` names no valid place; an address that may hold a password is not quoted.
        """

    def beside(self, connection: Connection, what: str) -> Connection:
        """Return the connection of a log of one sequencer that stands beside a buffer, and keeps ``what`` for ever."""
        return replace(connection, place=f"{connection.place}/{what}", sequencers=1)

    def airflow_address(self, fields: Mapping[str, Any], extra: dict[str, Any]) -> str:  # noqa: ARG002
        """Return the address in the fields and extras of an Airflow connection.

        Raises:
            ValueError: If Airflow has no connections of this type.
            KeyError: If a field is missing.
            TypeError: If a field has a wrong type.
        """
        raise ValueError(fields["conn_type"])

    @abstractmethod
    def open_writer(self, connection: Connection, *, clock: Clock, create: bool) -> Writer:
        """Open a writer, as ``registry.open_writer`` says."""

    @abstractmethod
    def open_reader(self, connection: Connection, *, create: bool) -> Reader:
        """Open a reader, as ``registry.open_reader`` says."""
