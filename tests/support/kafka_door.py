"""A door to a Kafka broker at which a test meets the commits of transactions on their way."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tools.kafka_broker import KafkaBroker

_END_TXN = (26).to_bytes(2)  # the key of the request, which is the first of its fields
_ANSWERS_WITHIN_S = 20.0


class Commit:
    """The request of a client to commit, of which nothing has reached the broker yet."""

    def __init__(self, request: bytes, joined: _Joined) -> None:
        self._request, self._joined = request, joined

    def pass_on(self) -> None:
        self._joined.server.sendall(self._request)

    def pass_on_and_lose_the_answer(self) -> None:
        """Return once the broker has answered, which it does when the commit is durable; the client hears nothing."""
        self._joined.is_mute = True
        self.pass_on()
        assert self._joined.answered.wait(_ANSWERS_WITHIN_S), "the broker did not answer"


class KafkaDoor:
    """Passes requests and answers on; once armed, the next commit is given to the test instead."""

    def __init__(self, broker: KafkaBroker, listener: socket.socket) -> None:
        self._broker, self._listener = broker, listener
        self._act: Callable[[Commit], object] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._broker.door_port}"

    @property
    def is_armed(self) -> bool:
        return self._act is not None

    def arm(self, act: Callable[[Commit], object]) -> None:
        """Let ``act`` decide what becomes of the next commit; it runs beside the client, which waits for the answer."""
        self._act = act

    def serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed: the test is over
                return
            threading.Thread(target=self._join, args=(client,), daemon=True).start()

    def _join(self, client: socket.socket) -> None:
        with (
            client,
            suppress(OSError),
            socket.create_connection(("127.0.0.1", self._broker.inner_port)) as server,
            client.makefile("rb") as requests,  # which keeps the socket open until it is closed itself
        ):
            joined = _Joined(client, server)
            threading.Thread(target=joined.answer, daemon=True).start()
            while size := requests.read(4):
                body = requests.read(int.from_bytes(size))
                act = self._act
                if act is not None and body.startswith(_END_TXN):
                    self._act = None
                    act(Commit(size + body, joined))
                else:
                    server.sendall(size + body)


class _Joined:
    """One connection of a client, and the one to the broker that stands for it."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.is_mute = False
        self.answered = threading.Event()

    def answer(self) -> None:
        with suppress(OSError):
            while data := self.server.recv(65_536):
                if self.is_mute:
                    self.answered.set()
                else:
                    self.client.sendall(data)
        with suppress(OSError):
            self.client.shutdown(socket.SHUT_RDWR)


@contextmanager
def kafka_door(broker: KafkaBroker) -> Iterator[KafkaDoor]:
    """Yield the door; the broker runs again afterwards."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", broker.door_port))
        listener.listen()
        door = KafkaDoor(broker, listener)
        thread = threading.Thread(target=door.serve, daemon=True)
        thread.start()
        try:
            yield door
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
