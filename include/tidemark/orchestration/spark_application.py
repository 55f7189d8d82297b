"""The operator that runs one of ``spark_apps/`` and returns its report; the library as executors get it."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import logging
import os
import tempfile
import zipfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException

from tidemark.atomic_files import write_whole
from tidemark.errors import ConfigurationInvalid
from tidemark.orchestration.connections import existing_connection, process_environment, source_connections
from tidemark.orchestration.retry_policy import RETRY_POLICY, application_failure, ending_task
from tidemark.orchestration.sensors.leader import LONGEST_MOVE, see_leader
from tidemark.settings import LIBRARY, SPARK_APPS, Settings
from tidemark.spark.conf import submit_conf

if TYPE_CHECKING:
    from airflow.sdk import Context

log = logging.getLogger(__name__)
SINK = "sink"  # the operation
_OLDEST_ZIP_TIME = (1980, 1, 1, 0, 0, 0)  # equal sources make equal archives


class SparkApplicationOperator(SparkSubmitOperator):
    """Run an application of ``spark_apps/`` with ``spark-submit`` in client mode, and return its JSON report.

    The task fails with a typed error that the retry policy understands; see ``retry_policy.py`` for which. Killing the
    task kills the application on a best-effort basis only. A driver that survives is fenced by the next try, which
    passes ``--raise-token``; without ``fence_on_retry`` it may go on beside that one.

    A try that finds the catalog without a leader waits in the triggerer, which takes neither a slot nor a try: the
    first task of the DAG saw a leader, but this one may come hours later, or may have been fenced by a migration.

    Args:
        application: File name in ``spark_apps/``.
        application_args: Its arguments, without ``--report`` and ``--raise-token``, which are added here. (templated)
        fence_on_retry: Whether a later try fences the earlier one. Off for work that two may do at once.
        joins_leader: Whether the application joins the leader of the catalog. Off for the copy of a migration.
        is_small: Whether the application reads so little that it is to start fast, as ``submit_conf`` says. (templated)
    """

    template_fields = (*SparkSubmitOperator.template_fields, "is_small")

    def __init__(
        self,
        *,
        application: str,
        fence_on_retry: bool = True,
        joins_leader: bool = True,
        is_small: Any = False,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("retry_policy", RETRY_POLICY)
        kwargs.setdefault("name", f"tidemark-{Path(application).stem}")
        # Not durable: a rerun must do the work again, and in 3.3 clearing keeps the state that says it was done.
        super().__init__(application=str(SPARK_APPS / application), durable=False, **kwargs)
        self.fence_on_retry, self.joins_leader, self.is_small = fence_on_retry, joins_leader, is_small

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]  # the base returns nothing
        with ending_task():
            environment = process_environment(os.environ)
            settings = Settings.load(environment)
            self._prepare(settings)
            if self.joins_leader and (obstacle := see_leader(settings).obstacle):
                from tidemark_triggers import LedTrigger  # type: ignore[import-not-found]  # noqa: PLC0415 -- of plugins/

                self.log.info("waiting: %s until now", obstacle)
                self.defer(trigger=LedTrigger(), method_name="execute_when_led", timeout=LONGEST_MOVE)
            environment |= source_connections(settings, environment)
        task_instance = context["ti"]
        with tempfile.TemporaryDirectory(prefix="tidemark-report-") as folder:
            report_path = Path(folder) / "report.json"
            arguments = [*(self.application_args or []), "--report", str(report_path)]
            if self.fence_on_retry and task_instance.try_number > 1:
                arguments.append("--raise-token")
            self.application_args = arguments
            code = self._submit(environment)
            report: dict[str, Any] | None = None
            if report_path.exists():
                report = json.loads(report_path.read_text(encoding="utf-8"))
        if report is not None:
            keep_last_report(settings, task_instance.dag_id, report)
        failure = application_failure(
            code,
            report,
            may_retry=task_instance.try_number <= task_instance.max_tries,
            fences_on_retry=self.fence_on_retry,
        )
        if failure is not None:
            raise failure
        return report or {}

    def execute_when_led(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Begin anew: the event is as old as the queue in front of this worker."""
        return self.execute(context)

    def _prepare(self, settings: Settings) -> None:
        """Fill in what every application gets: jars, logging, the library for executors on other machines.

        Raises ``ConfigurationInvalid`` if the connection is unknown (the provider would silently use YARN), asks for a
        driver elsewhere, or the jars are not there.
        """
        connection = existing_connection(self._conn_id)
        if {connection.extra_dejson.get("deploy-mode"), self._deploy_mode} - {None, "client"}:
            raise ConfigurationInvalid(
                f"the Airflow connection {self._conn_id!r} asks for a driver on the cluster",
                hint="use deploy-mode client: the driver reads secrets from its environment and writes the report here",
            )
        self.conf = submit_conf(settings, is_small=bool(self.is_small)) | (self.conf or {})
        if not (connection.host or "").startswith("local"):
            self.py_files = str(library_archive(settings.home / "archives"))

    def _submit(self, environment: Mapping[str, str]) -> int:
        """Run ``spark-submit`` to its end and return its exit code.

        The process gets the environment, not the argument ``env_vars``: the user interface shows that argument, and on
        Kubernetes and YARN it becomes part of the command line.
        """
        hook = self._hook = self._get_hook()
        try:
            hook.submit(self.application, env=dict(environment))
        except AirflowException:
            process = hook._submit_sp  # noqa: SLF001 -- the exception has the code in its text only
            if process is None or not process.returncode:
                raise
            return int(process.returncode)
        finally:
            if hook._submit_sp is not None and hook._submit_sp.stdout:  # noqa: SLF001
                hook._submit_sp.stdout.close()  # noqa: SLF001 -- the hook leaves the pipe open
        return 0


def keep_last_report(
    settings: Settings, dag_id: str, report: Mapping[str, Any], *, among: Collection[str] | None = None
) -> None:
    """Keep the DAG's last report for the status page; a failure only logs, because the task's result has the report.

    Sinks are run by many tasks, each with a report of its own: the last result of each sink is kept, of those that are
    ``among`` the present ones if these are given.
    """
    path = settings.reports / f"{dag_id}.json"
    try:
        if report["operation"] != SINK:
            write_whole(path, json.dumps(report, indent=2))
            return
        with _alone_at(path):
            before = json.loads(path.read_text(encoding="utf-8"))["collections"] if path.exists() else {}
            results = {**before, **report["collections"]}
            kept = {name: result for name, result in sorted(results.items()) if among is None or name in among}
            write_whole(path, json.dumps({**report, "collections": kept}, indent=2))
    except OSError as error:
        log.warning("the status page will not show this run: %s", error)


@contextmanager
def _alone_at(path: Path) -> Iterator[None]:
    """Let no other process of this machine change the file meanwhile: between its read and its write another may."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # ends with the process
        yield


def library_archive(folder: Path) -> Path:
    """Pack the library for executors without the project: a zip below ``folder``, named after its contents."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for source in sorted(LIBRARY.rglob("*.py")):
            entry = zipfile.ZipInfo(str(source.relative_to(LIBRARY.parent)), date_time=_OLDEST_ZIP_TIME)
            archive.writestr(entry, source.read_bytes())
    content = packed.getvalue()
    path = folder / f"tidemark-{hashlib.sha256(content).hexdigest()[:16]}.zip"
    if not path.exists():
        write_whole(path, content)  # two tasks may do this at once
    return path
