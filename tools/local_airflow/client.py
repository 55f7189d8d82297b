"""A small client of Airflow's REST interface: what the loader, the demo and the live tests need, no more."""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import httpx

from tidemark.errors import NotPossible, StaleState, Unreachable
from tidemark.retry import retrying

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

FINISHED = frozenset({"success", "failed"})
POLL_SECONDS = 0.2
REQUEST_SECONDS = 30.0
BUSY_ATTEMPTS, BUSY_PAUSE_S, LONGEST_BUSY_PAUSE_S = 5, 0.2, 2.0


class NothingDone(Unreachable):
    """Airflow's database was busy, by chance on SQLite, or no answer came and to ask twice is safe."""


class AlreadyThere(NotPossible):
    """What the request makes was made before."""


class AirflowClient:
    """An authenticated client; every answer that is not a success is an error with Airflow's own words."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    @classmethod
    def login(cls, url: str, *, user: str = "", password: str = "") -> AirflowClient:
        """Take a token; without a user, as an instance where everybody is an administrator hands them out.

        Raises:
            Unreachable: If nothing answers there, or it refuses the user.
        """
        http = httpx.Client(base_url=url.rstrip("/"), timeout=REQUEST_SECONDS)
        try:
            answer = (
                http.post("/auth/token", json={"username": user, "password": password})
                if user
                else http.get("/auth/token")
            )
            answer.raise_for_status()
        except httpx.HTTPError as error:
            http.close()
            raise Unreachable(
                f"no token from Airflow at {url}: {error}",
                hint="is it running there? set AIRFLOW_USER and AIRFLOW_PASSWORD if it asks for them",
            ) from error
        http.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"
        return cls(http)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def request(self, method: str, path: str, *, is_repeatable: bool = False, **arguments: Any) -> Any:
        """Send a request below ``/api/v2`` and return the decoded answer.

        A question, and what ``is_repeatable``, is sent again if no answer comes.

        Raises:
            Unreachable: If there is no answer, or one that says that Airflow itself is in trouble.
            AlreadyThere: If what the request makes was made before.
            NotPossible: If Airflow refuses the request.
        """
        once_more = retrying(
            NothingDone,
            attempts=BUSY_ATTEMPTS,
            what=f"{method} {path}",
            first_pause_s=BUSY_PAUSE_S,
            longest_pause_s=LONGEST_BUSY_PAUSE_S,
            give_up=lambda failure: failure,
        )
        is_repeatable = is_repeatable or method == "GET"
        return once_more(self._request_once, method, path, is_repeatable=is_repeatable, **arguments)

    def _request_once(self, method: str, path: str, *, is_repeatable: bool, **arguments: Any) -> Any:
        try:
            answer = self._http.request(method, f"/api/v2/{path}", **arguments)
        except httpx.HTTPError as error:
            is_slow_answer = isinstance(error, httpx.TimeoutException)
            failure = NothingDone if is_repeatable and is_slow_answer else Unreachable
            raise failure(f"Airflow did not answer {method} {path}: {error}") from error
        if answer.is_server_error:
            failure = NothingDone if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE else Unreachable
            raise failure(f"Airflow failed at {method} {path} with {answer.status_code}: {_reason(answer)}")
        if answer.is_error:
            refusal = AlreadyThere if answer.status_code == httpx.codes.CONFLICT else NotPossible
            raise refusal(f"Airflow refused {method} {path} with {answer.status_code}: {_reason(answer)}")
        return answer.json() if answer.content else None

    def get_page(self, path: str) -> httpx.Response:
        """Return a page outside the REST interface, as somebody who is logged in sees it."""
        return self._http.get(path)

    def upsert(self, path: str, *, collection: str, body: Mapping[str, Any]) -> None:
        """Create ``body`` in ``collection``, or update what is at ``path`` already."""
        exists = self._exists(path)  # asked first, because Airflow logs a stack trace for what is there already
        self.request("PATCH" if exists else "POST", path if exists else collection, json=dict(body))

    def _exists(self, path: str) -> bool:
        try:
            return self._http.get(f"/api/v2/{path}").is_success
        except httpx.HTTPError as error:
            raise Unreachable(f"Airflow did not answer GET {path}: {error}") from error

    def unpause(self, dag_id: str, *, paused: bool = False) -> None:
        self.request("PATCH", f"dags/{dag_id}", json={"is_paused": paused}, is_repeatable=True)

    def trigger(
        self, dag_id: str, *, conf: Mapping[str, Any] | None = None, logical_date: datetime | None = None
    ) -> str:
        """Start a manual run and return its id; the date must be in the request even when there is none.

        The id is given, so that a request whose answer was lost is sent again and starts no second run.
        """
        run_id = f"manual__{uuid.uuid4()}"
        date = logical_date.isoformat() if logical_date else None
        body = {"dag_run_id": run_id, "logical_date": date, "conf": dict(conf or {})}
        try:
            self.request("POST", f"dags/{dag_id}/dagRuns", json=body, is_repeatable=True)
        except AlreadyThere:
            if not self._exists(f"dags/{dag_id}/dagRuns/{run_id}"):  # another run has this date
                raise
        return run_id

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """Return the DAG's runs, oldest first."""
        return list(self.request("GET", f"dags/{dag_id}/dagRuns", params={"order_by": "id", "limit": 100})["dag_runs"])

    def wait(self, dag_id: str, run_id: str, *, timeout_s: float) -> str:
        """Wait until the run has ended and return its state. Raises ``StaleState`` with the states of its tasks."""
        what = f"the end of {dag_id} {run_id}"
        try:
            return str(self.wait_until(lambda: self._ended(dag_id, run_id), what=what, timeout_s=timeout_s))
        except StaleState as error:
            with suppress(Unreachable):
                states = {label: each["state"] for label, each in self.tasks(dag_id, run_id).items()}
                raise StaleState(f"{error}; its tasks: {states}") from error
            raise

    def tasks(self, dag_id: str, run_id: str) -> dict[str, dict[str, Any]]:
        """Return the run's task instances by task id; mapped ones as ``task_id[NAME]``, as the grid names them."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances"
        instances = self.request("GET", path, params={"limit": 200})["task_instances"]
        return {_label(instance): instance for instance in instances}

    def xcom(self, dag_id: str, run_id: str, task_id: str, *, map_index: int = -1) -> Any:
        """Return what the task returned."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/return_value"
        return self.request("GET", path, params={"deserialize": "false", "map_index": map_index})["value"]

    def asset_events(self, path: str = "assets/events", *, timeout_s: float) -> list[dict[str, Any]]:
        """Return the latest asset events below ``path``.

        Airflow 3.3 fails to tell an event that created a run which waits for its start (apache/airflow#71360).

        Raises:
            StaleState: If Airflow fails for ``timeout_s``.
        """

        def tell() -> Any:
            return self.request("GET", path, params={"limit": 200})

        return list(self.wait_until(tell, what=f"Airflow to tell {path}", timeout_s=timeout_s)["asset_events"])

    def clear(self, dag_id: str, run_id: str) -> None:
        """Run a finished run again, all of it."""
        self.request("POST", f"dags/{dag_id}/dagRuns/{run_id}/clear", json={"dry_run": False, "only_failed": False})

    def answer(self, dag_id: str, run_id: str, task_id: str, option: str) -> None:
        """Answer the question that a task waits with, such as ``Approve``.

        Raises:
            NotPossible: If it does not wait, was answered before, or has no such option.
        """
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/-1/hitlDetails"
        self.request("PATCH", path, json={"chosen_options": [option], "params_input": {}})

    def backfill(
        self,
        dag_id: str,
        *,
        start: datetime,
        end: datetime,
        reprocess: str = "none",
        conf: Mapping[str, Any] | None = None,
    ) -> int:
        """Start a backfill of the intervals that start in ``[start, end]``, both included, and return its id."""
        body = {
            "dag_id": dag_id,
            "from_date": start.isoformat(),
            "to_date": end.isoformat(),
            "reprocess_behavior": reprocess,
            "max_active_runs": 1,
            "dag_run_conf": dict(conf or {}),
        }
        return int(self.request("POST", "backfills", json=body)["id"])

    @staticmethod
    def wait_until(fact: Any, *, what: str, timeout_s: float) -> Any:
        """Wait until ``fact()``, which only asks, is true, and return it; a question without an answer is asked again.

        Raises:
            StaleState: If it is not within ``timeout_s``; from the last ``Unreachable``, if the last question failed.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            failure: Unreachable | None = None
            try:
                if seen := fact():
                    return seen
            except Unreachable as error:
                failure = error
            if time.monotonic() > deadline:
                told = f": {failure}" if failure else ""
                raise StaleState(f"waited {timeout_s:.0f} s in vain for {what}{told}") from failure
            time.sleep(POLL_SECONDS)

    def _ended(self, dag_id: str, run_id: str) -> str | None:
        state = str(self.request("GET", f"dags/{dag_id}/dagRuns/{run_id}")["state"])
        return state if state in FINISHED else None


def _reason(answer: httpx.Response) -> str:
    """Return Airflow's own words, without the input that it repeats: that of a connection has the password."""
    try:
        detail = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        return answer.reason_phrase
    if not isinstance(detail, list):
        return str(detail)[:1000]
    found = (problem for problem in detail if isinstance(problem, dict))
    return "; ".join(f"{'.'.join(map(str, problem.get('loc', ())))}: {problem.get('msg', '')}" for problem in found)[
        :1000
    ]


def _label(instance: Mapping[str, Any]) -> str:
    name = instance.get("rendered_map_index") or instance["map_index"]
    return str(instance["task_id"]) if instance["map_index"] == -1 else f"{instance['task_id']}[{name}]"
