"""The warm driver: one JVM for many applications of ``spark_apps/``, one at a time, each in a process of its own.

    python -m tests.support.warm_driver.serve SOCKET

What ``spark-submit`` does for an application is done here: its ``spark.`` properties are set in the JVM, and
``python APPLICATION ARGUMENTS`` is run with the caller's environment, folder and streams, told by
``PYSPARK_GATEWAY_PORT`` which JVM is its own. Instead of a new interpreter a copy of this process runs it, which has
imported everything. An application ends with its caller. The JVM's own log is that of this process.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidemark.settings import Settings

WITHOUT_SPARK = ("tidemark.orchestration", "tidemark.cli", "tidemark.__main__")
KILLED = 128  # and the signal's number, as Java counts


class Call:
    """A call of ``spark-submit`` in client mode: which application, with what."""

    def __init__(self, content: dict[str, Any]) -> None:
        parser = argparse.ArgumentParser(allow_abbrev=False)  # an option that the operator does not use is an error
        parser.add_argument("--master", required=True)
        parser.add_argument("--name")
        parser.add_argument("--conf", action="append", default=[])
        parser.add_argument("--deploy-mode", choices=["client"])
        parser.add_argument("application")
        parser.add_argument("arguments", nargs=argparse.REMAINDER)
        given = parser.parse_args(content["arguments"])
        self.properties = dict(word.split("=", 1) for word in given.conf) | {"spark.master": given.master}
        if given.name:
            self.properties["spark.app.name"] = given.name
        self.application, self.arguments = given.application, given.arguments
        self.environment, self.folder = content["environment"], content["folder"]


class WarmDriver:
    """The JVM, and what is needed to run an application on it."""

    def __init__(self, settings: Settings) -> None:
        from pyspark import SparkConf
        from pyspark.java_gateway import launch_gateway

        from tidemark.spark.conf import submit_conf

        import_everything()
        gateway = launch_gateway(SparkConf(loadDefaults=False).setAll(list(submit_conf(settings).items())))
        parameters = gateway.java_parameters
        self.gateway_environment = {
            "PYSPARK_GATEWAY_PORT": str(parameters.port),
            "PYSPARK_GATEWAY_SECRET": parameters.auth_token,
        }
        gateway.close()  # a copy of this process must make a connection of its own
        self.set_before: set[str] = set()

    def run(self, caller: socket.socket) -> None:
        """Run what the caller asks for, to its end or to the caller's; answer with the exit code."""
        length, streams, _, _ = socket.recv_fds(caller, 8, 3)
        try:
            text = b""
            while len(text) < (wanted := int.from_bytes(length, "big")):
                if not (part := caller.recv(wanted - len(text))):
                    return
                text += part
            call = Call(json.loads(text))
            process = os.fork()
            if not process:
                caller.close()
                self.become(call, streams)
        finally:
            for stream in streams:
                os.close(stream)
        self.set_before = set(call.properties)
        code = wait(process, caller)
        if code >= KILLED:
            self.stop_spark()
        with contextlib.suppress(BrokenPipeError):
            caller.sendall(bytes([code]))

    def become(self, call: Call, streams: Sequence[int]) -> NoReturn:
        """Become the application, in a copy of this process."""
        code = 1
        try:
            for target, stream in enumerate(streams):
                os.dup2(stream, target)
            os.environ.clear()
            os.environ |= call.environment | self.gateway_environment
            time.tzset()
            os.chdir(call.folder)
            jvm = self.connect()
            stop_active(jvm)
            for name in self.set_before - set(call.properties):
                jvm.System.clearProperty(name)
            for name, value in call.properties.items():
                jvm.System.setProperty(name, value)
            sys.argv = [call.application, *call.arguments]
            sys.path[0] = str(Path(call.application).parent)
            runpy.run_path(call.application, run_name="__main__")
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:  # noqa: BLE001 -- as the interpreter does it
            traceback.print_exc()
        finally:
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def connect(self) -> Any:
        """Return the JVM, over a connection of this process's own."""
        from pyspark import SparkContext

        SparkContext._ensure_initialized()
        return SparkContext._jvm

    def stop_spark(self) -> None:
        """Stop what an application left in the JVM that was killed; in a copy, as this process has no connection."""
        process = os.fork()
        if not process:
            try:
                os.environ |= self.gateway_environment
                stop_active(self.connect())
            finally:
                os._exit(0)
        os.waitpid(process, 0)


def stop_active(jvm: Any) -> None:
    """Stop Spark if the application has not: the JVM would have ended with it."""
    if jvm.org.apache.spark.SparkEnv.get() is not None:
        jvm.org.apache.spark.SparkContext.getOrCreate().stop()


def wait(process: int, caller: socket.socket) -> int:
    """Return the exit code of ``process``, which is killed as soon as the caller is gone."""
    ended = os.pidfd_open(process)
    try:
        ready, _, _ = select.select([ended, caller], [], [])
        if ended not in ready:
            os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
    finally:
        os.close(ended)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else KILLED - code


def import_everything() -> None:
    """Import what any application may import, so that no copy has to."""
    import tidemark

    for module in pkgutil.walk_packages(tidemark.__path__, "tidemark."):
        if not module.name.startswith(WITHOUT_SPARK):
            importlib.import_module(module.name)


def serve(address: str) -> None:
    """Serve callers one after the other, until this process is killed."""
    from tidemark.settings import Settings

    driver = WarmDriver(Settings.load(os.environ))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{address}.new")
        listening.listen(16)
        Path(f"{address}.new").rename(address)  # it is there when it can be called
        while True:
            caller, _ = listening.accept()
            with caller:
                driver.run(caller)


if __name__ == "__main__":
    serve(sys.argv[1])
