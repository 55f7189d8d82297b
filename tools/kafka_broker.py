"""One Kafka broker on this machine, from the jars of the set-up: for tests, benchmarks and the demo.

It is a KRaft broker and controller in one process, on free loopback ports, in a process group of its own, under a
supervisor: it ends with whoever started it, however that process ends.
``python -m tools.kafka_broker FOLDER`` runs one until it is interrupted.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import NoReturn

import psutil  # type: ignore[import-untyped]  # it has no stubs of its own
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tidemark.errors import Unreachable
from tidemark.settings import Settings
from tidemark.spark.toolchain import KAFKA_FOLDER, KAFKA_PACKAGES, check_jars, find_java, find_spark_folder
from tools.local_airflow.supervised import Supervised

START_S = 60.0  # it takes 4 s on an idle machine
_STOP_S = 20.0
_JAVA_OPTIONS = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")  # starts fast, and leaves room for others
_PROPERTIES = """
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},DOOR://127.0.0.1:{inner_port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},DOOR://127.0.0.1:{door_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,DOOR:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
log.dirs={data}
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=200
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
auto.create.topics.enable=true
log.retention.ms=-1
log.retention.check.interval.ms=500
log.initial.task.delay.ms=500
"""


class KafkaBroker:
    """A broker whose data is in ``folder``; it can be stopped or killed, and started again on the same port.

    Topics are created when somebody asks for them, as many clusters do, so that a client which must not cause that is
    seen not to. Nothing expires unless a topic, or the timeout of a transaction, says so: then within a second.
    Clients that come by ``inner_port`` are sent to ``door_port``, where a test may listen and pass on what it likes.
    """

    def __init__(self, folder: Path, jars: Path) -> None:
        self._log = folder / "broker.log"
        if not (found := check_jars(jars / KAFKA_FOLDER, KAFKA_PACKAGES)).ok:
            raise Unreachable(found.message, hint=found.hint)
        scala = next(((find_spark_folder() or Path()) / "jars").glob("scala-library-*.jar"))
        java = find_java(os.environ)
        if java is None:
            raise Unreachable("there is no Java to run a broker with", hint="install Java 17 or newer")
        class_path = os.pathsep.join([str(jars / KAFKA_FOLDER / "*"), str(scala)])
        self._java = [str(java), *_JAVA_OPTIONS, "-cp", class_path]
        self.port, self.inner_port, self.door_port, controller_port = free_ports(4)
        self._properties = folder / "server.properties"
        self._supervised: Supervised | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._properties.write_text(
            _PROPERTIES.format(
                port=self.port,
                inner_port=self.inner_port,
                door_port=self.door_port,
                controller_port=controller_port,
                data=folder / "data",
            ),
            encoding="utf-8",
        )
        # A first character of its own: with a minus the id would be taken for an option, one time in 64.
        cluster = "T" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
        command = ["kafka.tools.StorageTool", "format", "--standalone", "-t", cluster, "-c", str(self._properties)]
        subprocess.run([*self._java, *command], check=True, capture_output=True, timeout=START_S)

    @property
    def address(self) -> str:
        """The bootstrap server."""
        return f"127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._supervised is not None and self._supervised.running

    def start(self) -> None:
        """Start, and return once it listens and leads every partition that its data has.

        Raises:
            Unreachable: If it ends, or does not get there in time; its log is in its folder.
        """
        with self._log.open("ab") as output:
            command = [*self._java, "kafka.Kafka", str(self._properties)]
            self._supervised = Supervised(command, stdout=output, stderr=output)
        self._wait_until_it_leads()

    def stop(self) -> None:
        """Stop in good order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it as a crash would."""
        self._end(signal.SIGKILL)

    def _wait_until_it_leads(self) -> None:
        until = time.monotonic() + START_S
        while not (_listens(self.port) and _leads(self.address)):
            if not self.is_running or time.monotonic() > until:
                self.kill()
                raise Unreachable(f"the broker did not start: see {self._log}")
            time.sleep(0.05)

    def suspend(self) -> None:
        """Let it stand still, as on a machine that hangs, until ``resume``."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on, and return once it leads every partition again, as ``start`` does."""
        self._signal(signal.SIGCONT)
        self._wait_until_it_leads()

    def _signal(self, number: signal.Signals) -> None:
        if self._supervised is not None:
            for process in psutil.Process(self._supervised.process.pid).children():
                process.send_signal(number)

    def _end(self, how: signal.Signals) -> None:
        if self._supervised is None:
            return
        supervised, self._supervised = self._supervised, None
        supervisor = supervised.process
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            family = psutil.Process(supervisor.pid).children()
            os.killpg(supervisor.pid, how)  # the supervisor leads the group
            _, alive = psutil.wait_procs(family, _STOP_S)
            if alive:
                os.killpg(supervisor.pid, signal.SIGKILL)
                psutil.wait_procs(alive)
        supervised.stop()


def free_ports(count: int) -> list[int]:
    """Return that many loopback ports that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for listening in sockets:
            listening.bind(("127.0.0.1", 0))
        return [int(listening.getsockname()[1]) for listening in sockets]
    finally:
        for listening in sockets:
            listening.close()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _leads(address: str) -> bool:
    """Tell whether the broker leads all partitions: after a crash the election ends later than listening begins."""
    try:
        found = AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=5)
    except KafkaException:
        return False
    return bool(found.brokers) and all(
        partition.leader in found.brokers for topic in found.topics.values() for partition in topic.partitions.values()
    )


def main() -> NoReturn:
    """Run a broker in the folder that is named, and print its address, until it is interrupted."""
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, lambda *_: sys.exit(0))
    arguments = argparse.ArgumentParser(prog="python -m tools.kafka_broker", description=main.__doc__)
    arguments.add_argument("folder", type=Path, help="where the broker keeps its data; made if it is not there")
    broker = KafkaBroker(arguments.parse_args().folder.resolve(), Settings.load(os.environ).jars)
    try:
        broker.start()
        sys.stdout.write(f"{broker.address}\n")
        sys.stdout.flush()
        while True:
            signal.pause()
    finally:
        broker.stop()


if __name__ == "__main__":
    main()
