"""Two processes of the page with one PostgreSQL or Redis: when the first is killed, the second takes its answer over.

The pages of visitors and a proxy are in test_replica_processes.py. Here, nothing but the takeover is between the kill
and the next text. The test prints the seconds; the promise is 20 s on a machine that has time for it.
"""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.history import HistoryStore, replicas_of
from tests.conftest import App, becomes
from tests.support.history_stores import STORES, Clock
from tests.support.http_client import HttpVisitor, marker, owner_in
from tests.support.replica_houses import two_processes
from tests.support.script_language import token
from tests.support.scripted_server import Running
from tests.support.waiting import until_async

pytestmark = [pytest.mark.slow, pytest.mark.full]


class Watched:
    """The newest answer of a visitor, as the store has it."""

    def __init__(self, store: HistoryStore, owner: str) -> None:
        replicas = replicas_of(store)
        assert replicas is not None
        self.store, self.replicas, self.owner = store, replicas, owner
        self.conversation = self.run = ""

    async def has_text(self, text: str, *, after: str = "") -> bool:
        """Return True if a run that is not `after` is being written and has this text."""
        for record in await self.store.list(self.owner):
            found = await self.replicas.unfinished_run(record.id, owner=self.owner)
            if found in (None, after):
                continue
            self.conversation, self.run = record.id, found or ""
            events = await self.store.runs.events(self.run, owner=self.owner)
            if text in "".join(str(event.value.get("content", "")) for event in events):
                return True
        return False


async def test_killed_process_is_replaced(
    name: str, start_app: Callable[..., App], server: Running, tmp_path: Path
) -> None:
    killed, living = two_processes(start_app, name, tmp_path, server)
    visitor = HttpVisitor(killed.url)
    elsewhere = HttpVisitor(living.url, visitor.cookie)
    store = await STORES[name](tmp_path, Clock())
    answer = Watched(store, owner_in(visitor.cookie or ""))
    held = marker()
    visitor.begin(f"!tokens 300 @100 hold 100 {held}")
    await until_async(lambda: answer.has_text("word20"))
    before = answer.run
    killed.stop(signal.SIGKILL)
    at = time.monotonic()
    server.release(held)
    await until_async(lambda: answer.has_text("word", after=before))
    print(f"another process went on with the answer {time.monotonic() - at:.1f} s after the kill")
    path = f"/conversations/{answer.conversation}"
    becomes("", lambda: elsewhere.ask("GET", path).json["state"], seconds=120)
    shown = elsewhere.ask("GET", f"/export/{answer.conversation}").text
    assert json.dumps("".join(map(token, range(290, 300))))[1:-1] in shown
    assert "another one has continued the text" in shown
    await store.aclose()
