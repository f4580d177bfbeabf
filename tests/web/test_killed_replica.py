"""Two processes of the page with one PostgreSQL or Redis: when the first is killed, the second finishes its answer.

The pages of visitors and a proxy are in test_replica_processes.py. Here, nothing but the lease is between the kill and
the next text. The test prints the seconds; the promise is 30 s on a machine that has time for it.
"""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import App
from tests.support.http_client import HttpVisitor, marker
from tests.support.replica_houses import two_processes
from tests.support.script_language import token
from tests.support.scripted_server import Running

pytestmark = [pytest.mark.slow, pytest.mark.full]


def read_until(visitor: HttpVisitor, run: str, text: str) -> list[dict[str, object]]:
    """Read the events of a run until they have this text, or end."""
    with visitor.http.stream("GET", f"/runs/{run}/events") as stream:
        found = ""
        for piece in stream.iter_text():
            found += piece
            lines = found[: found.rfind("\n\n") + 1].splitlines()
            events = [json.loads(line[6:]) for line in lines if line.startswith('data: {"')]
            if text in "".join(str(event.get("content", "")) for event in events):
                break
    return events


def test_killed_process_is_replaced(name: str, start_app: Callable[..., App], server: Running, tmp_path: Path) -> None:
    killed, living = two_processes(start_app, name, tmp_path, server)
    visitor = HttpVisitor(killed.url)
    elsewhere, held = HttpVisitor(living.url, visitor.cookie), marker()
    sent = {"text": f"!tokens 300 @100 hold 100 {held}"}
    begun = visitor.ask("POST", "/conversations", json=sent).json
    read_until(elsewhere, begun["run"], "word20")
    killed.stop(signal.SIGKILL)
    at = time.monotonic()
    server.release(held)
    *_, last = read_until(elsewhere, begun["run"], "nothing")
    assert (last["type"], last["goes_on"]) == ("ended", "lost")
    path = f"/conversations/{begun['conversation']}"
    [message] = elsewhere.ask("GET", f"{path}?format=blocks").json["turns"]
    going_on = elsewhere.ask("POST", f"{path}/messages/{message['id']}/continue", json={"run": begun["run"]}).json[
        "run"
    ]
    read_until(elsewhere, going_on, "word")
    print(f"another process went on with the answer {time.monotonic() - at:.1f} s after the kill")
    read_until(elsewhere, going_on, "nothing")
    shown = elsewhere.ask("GET", f"/export/{begun['conversation']}").text
    assert json.dumps("".join(map(token, range(290, 300))))[1:-1] in shown
    assert "another one has continued the text" in shown
