"""Asks brokers about topics, and gives up as soon as it is clear that nobody answers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from tidemark.write_buffer.kafka.errors import NOBODY_ANSWERS, failure

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

_GRACE_S = 0.7  # for the other addresses of a cluster
_POLL_S = 0.02
Answer = TypeVar("Answer")


class Admin:
    """A client for questions; ``buffer`` is what errors name.

    Raises:
        ConfigurationInvalid: If librdkafka refuses the ``configuration``.
    """

    def __init__(self, configuration: Mapping[str, Any], buffer: str) -> None:
        self._buffer = buffer
        self._refusal: KafkaError | None = None
        try:
            settings: dict[str, Any] = {**configuration, "error_cb": self._heard}
            self.client = AdminClient(settings)
        except KafkaException as error:
            raise failure(error.args[0], buffer) from error

    def wait(self, answer: Future[Answer], *accepted: int) -> Answer | None:
        """Return the answer; ``None`` if it is an error whose code is ``accepted``.

        Raises:
            BufferUnreachable: If no broker answers. If none even listens, that is known before the time is up.
            ConfigurationInvalid: If the brokers refuse what is asked, or the login.
        """
        grace = time.monotonic() + _GRACE_S
        while not answer.done():
            self.client.poll(_POLL_S)  # lets the client say what it hears
            if self._refusal is not None and time.monotonic() > grace:
                raise failure(self._refusal, self._buffer)
        try:
            return answer.result()
        except KafkaException as error:
            if error.args[0].code() in accepted:
                return None
            raise failure(error.args[0], self._buffer) from error

    def _heard(self, error: KafkaError) -> None:
        if error.code() in NOBODY_ANSWERS:
            self._refusal = error
