"""What a refusal of Airflow's REST interface, or its silence, becomes; a server here gives the answers."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from tidemark.errors import NotPossible, StaleState, Unreachable
from tools.local_airflow import client as airflow_client
from tools.local_airflow.client import AirflowClient

if TYPE_CHECKING:
    from collections.abc import Iterator

BODY = {"connection_id": "db", "conn_type": 3, "password": "hunter2"}


class Answering(BaseHTTPRequestHandler):
    """Answers in JSON, and logs nothing."""

    def _answer(self, code: int, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def airflow_that_answers(
    status: int, answer: Any, *, busy: int = 0, slow: int = 0
) -> Iterator[tuple[AirflowClient, ThreadingHTTPServer]]:
    """A server that hands out tokens and answers everything else alike, after ``busy`` times that it could not.

    The state of a DAG run is told after ``slow`` questions that get no answer in time.
    """
    busy_answers = [HTTPStatus.SERVICE_UNAVAILABLE] * busy
    slow_answers = [None] * slow
    is_over = threading.Event()

    class Handler(Answering):
        def do_GET(self) -> None:
            if self.path == "/auth/token":
                self._answer(200, {"access_token": "t"})
            elif self.path.startswith("/api/v2/assets/events"):
                self._answer(busy_answers.pop() if busy_answers else status, answer)
            elif "/dagRuns/" in self.path:
                if slow_answers:
                    slow_answers.pop()
                    is_over.wait()
                else:
                    self._answer(status, answer)
            else:
                self._answer(404, {"detail": "not found"})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(busy_answers.pop() if busy_answers else status, answer)

    with serving(Handler) as served:
        try:
            yield served
        finally:
            is_over.set()


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[tuple[AirflowClient, ThreadingHTTPServer]]:
    """A client of a server of its own."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            with AirflowClient.login(f"http://127.0.0.1:{server.server_port}") as client:
                yield client, server
        finally:
            server.shutdown()


def test_refusal_is_told_without_the_password_that_airflow_repeats() -> None:
    detail = [{"loc": ["body", "conn_type"], "msg": "should be a string", "input": BODY}]
    with airflow_that_answers(422, {"detail": detail}) as (client, _), pytest.raises(NotPossible) as refused:
        client.upsert("connections/db", collection="connections", body=BODY)
    assert "refused POST connections with 422: body.conn_type: should be a string" in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("status", "answer", "error", "said"),
    [
        (403, {"detail": "Forbidden"}, NotPossible, "with 403: Forbidden"),
        (409, "odd", NotPossible, "with 409: Conflict"),
        (503, {"detail": "no database"}, Unreachable, "failed at POST connections with 503: no database"),
    ],
)
def test_only_trouble_of_airflow_itself_may_pass(
    status: int, answer: Any, error: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(airflow_client, "BUSY_ATTEMPTS", 2)
    with airflow_that_answers(status, answer) as (client, _), pytest.raises(error, match=said):
        client.upsert("connections/db", collection="connections", body=BODY)


@pytest.mark.slow  # waits as long as for a real one
def test_database_of_airflow_that_is_busy_for_a_moment_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(airflow_client, "BUSY_ATTEMPTS", 3)
    with airflow_that_answers(200, {"id": 7}, busy=2) as (client, _):
        assert client.request("POST", "backfills", json={}) == {"id": 7}
    with airflow_that_answers(200, {}, busy=3) as (client, _), pytest.raises(Unreachable, match="503"):
        client.request("POST", "backfills", json={})


def test_asset_events_are_waited_for_while_airflow_fails_to_tell_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(airflow_client, "BUSY_ATTEMPTS", 1)
    monkeypatch.setattr(airflow_client, "POLL_SECONDS", 0.01)
    with airflow_that_answers(200, {"asset_events": [{"id": 1}]}, busy=2) as (client, _):
        assert client.asset_events(timeout_s=5) == [{"id": 1}]
    with airflow_that_answers(500, {}) as (client, _), pytest.raises(StaleState, match="in vain for Airflow to tell"):
        client.asset_events(timeout_s=0.05)


def test_a_run_is_waited_for_while_airflow_is_slow_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(airflow_client, "REQUEST_SECONDS", 0.2)
    monkeypatch.setattr(airflow_client, "BUSY_ATTEMPTS", 1)
    with airflow_that_answers(200, {"state": "success"}, slow=2) as (client, _):
        assert client.wait("demo", "r1", timeout_s=30) == "success"
    with (
        airflow_that_answers(200, {}, slow=100) as (client, _),
        pytest.raises(StaleState, match="in vain for the end of demo r1: Airflow did not answer GET"),
    ):
        client.wait("demo", "r1", timeout_s=0.5)
    monkeypatch.setattr(airflow_client, "BUSY_ATTEMPTS", 3)
    with airflow_that_answers(200, {"state": "success"}, slow=2) as (client, _):
        assert client.request("GET", "dags/demo/dagRuns/r1") == {"state": "success"}


class RunsThatAreMade(Answering):
    """Makes DAG runs, one for each id and one for each date; the first answer is lost on the way."""

    made: dict[str, str | None]

    def do_GET(self) -> None:
        known = self.path == "/auth/token" or self.path.rpartition("/")[2] in self.made
        self._answer(200 if known else 404, {"access_token": "t"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        run_id, date = body["dag_run_id"], body["logical_date"]
        if run_id in self.made or (date is not None and date in self.made.values()):
            self._answer(409, {"detail": "exists"})
            return
        self.made[run_id] = date
        if len(self.made) == 1:
            time.sleep(0.5)  # longer than the client waits
        self._answer(200, {})


def test_a_run_whose_answer_was_lost_is_started_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(airflow_client, "REQUEST_SECONDS", 0.2)
    date = datetime(2026, 1, 1, tzinfo=UTC)
    RunsThatAreMade.made = {}
    with serving(RunsThatAreMade) as (client, _):
        run_id = client.trigger("demo", logical_date=date)
        assert RunsThatAreMade.made == {run_id: date.isoformat()}
        with pytest.raises(NotPossible, match="409: exists"):
            client.trigger("demo", logical_date=date)


def test_airflow_that_went_away_is_unreachable() -> None:
    with airflow_that_answers(200, {}) as (client, server):
        server.shutdown()
        server.server_close()
        with pytest.raises(Unreachable, match="did not answer GET connections/db"):
            client.upsert("connections/db", collection="connections", body=BODY)
        with pytest.raises(Unreachable, match="did not answer GET dags"):
            client.request("GET", "dags")
