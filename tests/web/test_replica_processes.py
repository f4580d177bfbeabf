"""Two processes of the page behind nginx, with one PostgreSQL: they are killed, stopped and restarted.

nginx runs with docs/proxies/replicas.conf, in which only names, ports and the certificate are changed.
"""

import json
import re
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count
from threading import Event
from typing import Any
from uuid import uuid4

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, expect

from tests.conftest import App, Visitor, becomes
from tests.support.http_client import HttpVisitor, marker
from tests.support.ports import free_port
from tests.support.postgres_server import PostgresServer
from tests.support.proxies import replicas_proxy, self_signed
from tests.support.script_language import token
from tests.support.scripted_server import Running

pytestmark = [pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(400)]

TAKEOVER_SECONDS = 30.0
"""Seconds within which a page must show the whole answer after its process was killed."""
PAUSE_SECONDS = 40.0


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresServer]:
    server = PostgresServer()
    server.start()
    yield server
    server.stop()
    server.remove()


@dataclass
class Topology:
    """The processes, the proxy in front of them, their model server, and what their database has."""

    apps: tuple[App, App]
    url: str
    server: Running
    database: PostgresServer
    restart_proxy: Callable[[], None]

    def writer(self) -> App:
        """Return the process that writes the newest answer. Each has a key of its own for the model server."""
        newest = self.server.journal()[-1]
        return self.apps[("Bearer page1", "Bearer page2").index(newest["authorization"])]

    def entries(self) -> Iterator[tuple[object, Any]]:
        """Return each stored entry after its conversation, in the order of a conversation."""
        for conversation, entry in self.database.run_sql(
            "SELECT conversation_id, entry::text FROM entries ORDER BY rowid"
        ):
            yield conversation, json.loads(str(entry))

    def stored_prompts(self) -> list[str]:
        """Return the text of each stored message of a visitor."""
        parts = (part for _, entry in self.entries() for part in entry["message"]["parts"])
        return [str(part["content"]) for part in parts if part["part_kind"] == "user-prompt"]

    def stored_texts(self) -> list[str]:
        """Return the text of each stored answer, with what continues it."""
        texts: dict[object, str] = {}
        for conversation, entry in self.entries():
            for part in entry["message"]["parts"]:
                if part["part_kind"] == "text":
                    texts[conversation] = texts.get(conversation, "") + part["content"]
        return [*texts.values()]


@pytest.fixture(scope="module")
def topology(
    database: PostgresServer, start_app: Callable[..., App], server: Running, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Topology]:
    port, media = free_port(), tmp_path_factory.mktemp("media")
    one, other = (
        start_app(
            VLLM_BASE_URL=server.base_url,
            VLLM_API_KEY=f"page{number}",
            SWITCHBOARD_STORE=database.url(),
            SWITCHBOARD_MEDIA=f"file:{media}",
            SWITCHBOARD_SECRET="a secret that both processes share",
        )
        for number in (1, 2)
    )
    crt, key = self_signed(tmp_path_factory.mktemp("certificate"))
    with tempfile.TemporaryDirectory(prefix="proxy-") as folder, ExitStack() as proxy:
        start_proxy = partial(replicas_proxy, folder, port, (one.port, other.port), crt, key)

        def restart_proxy() -> None:
            proxy.close()
            proxy.enter_context(start_proxy())

        restart_proxy()
        yield Topology((one, other), f"https://localhost:{port}", server, database, restart_proxy)
    for app in (one, other):
        app.stop()


@pytest.fixture
def people(browser: Browser, topology: Topology) -> Iterator[Callable[..., Visitor]]:
    contexts: list[BrowserContext] = []

    def open_page(like: Visitor | None = None) -> Visitor:
        if like is None:
            contexts.append(browser.new_context(ignore_https_errors=True, reduced_motion="reduce"))
        visitor = Visitor((like.page.context if like else contexts[-1]).new_page())
        visitor.open(topology.url + (f"/c/{chat_of(like)}" if like else ""))
        return visitor

    yield open_page
    for app in topology.apps:
        if app.process is None:
            app.start()
    for context in contexts:
        context.close()


def chat_of(visitor: Visitor) -> str:
    found = re.search(r"/c/(\w+)", visitor.page.url)
    assert found is not None, visitor.page.url
    return found[1]


def words(count: int) -> str:
    return "".join(map(token, range(count)))


def begin(visitor: Visitor, text: str) -> None:
    visitor.say(text)
    expect(visitor.chat).to_contain_text("word20")
    visitor.page.wait_for_url(re.compile("/c/"))


def test_killed_process_is_replaced_while_two_pages_watch(topology: Topology, people: Callable[..., Visitor]) -> None:
    first = people()
    assert first.page.evaluate("performance.getEntriesByType('navigation')[0].nextHopProtocol") == "h2"
    begin(first, "!tokens 200 @20")
    second = people(first)
    expect(second.chat).to_contain_text("word20")
    killed = topology.writer()
    killed.stop(signal.SIGKILL)
    at = time.monotonic()
    for visitor in (first, second):
        expect(visitor.chat).to_contain_text("word199", timeout=TAKEOVER_SECONDS * 1000)
        visitor.idle()
        assert time.monotonic() - at < TAKEOVER_SECONDS
    print(f"both pages had the whole answer {time.monotonic() - at:.1f} s after the kill")
    expect(first.caption).to_contain_text("another one has continued the text")
    assert words(200) in topology.stored_texts()
    chat = chat_of(first)
    first.ask("!text And on it goes.")  # without a reload, in the same chat, at another process
    expect(first.chat).to_contain_text("And on it goes.")
    assert chat_of(first) == chat
    first.shot("taken-over")


def test_rolling_restart_loses_nothing(topology: Topology, people: Callable[..., Visitor]) -> None:
    visitors = [people() for _ in range(4)]
    for number, visitor in enumerate(visitors):
        begin(visitor, f"!tokens {300 + number} @20")
    for app in topology.apps:
        app.stop()
        app.start()
    for number, visitor in enumerate(visitors):
        expect(visitor.chat).to_contain_text(f"word{299 + number}", timeout=TAKEOVER_SECONDS * 1000)
        visitor.idle()
    stored = topology.stored_texts()
    assert all(words(300 + number) in stored for number in range(len(visitors)))


def test_restart_of_nginx_loses_and_doubles_no_message(topology: Topology) -> None:
    """Visitors send all the time while nginx restarts. One that got no answer sends the same message again."""
    messages, clients, has_restarted = 12, 4, Event()

    def send_all(visitor: HttpVisitor, texts: Sequence[str]) -> int:
        refused, at = 0, 0
        while at < len(texts) or not has_restarted.is_set():
            if at == len(texts):
                texts = [*texts, marker()]
            refused += send(visitor, texts[at])
            at += 1
        sent.extend(texts)
        return refused

    def send(visitor: HttpVisitor, text: str) -> int:
        """Send a message of a new chat until the app has it; return how many tries got no answer."""
        body, until = {"text": f"!text {text}", "id": uuid4().hex}, time.monotonic() + 60
        for failed in count():
            assert time.monotonic() < until, f"{text} was never sent"
            try:
                answer = visitor.ask("POST", "/conversations", json={**body, "again": bool(failed)})
                if answer.status == 200 and answer.json["conversation"]:
                    return failed
                assert answer.status in (429, 502, 503, 504), answer
            except (httpx.TransportError, json.JSONDecodeError):
                pass  # The connection broke, before the answer or in it.
        raise AssertionError

    sent = list[str]()
    visitors = [HttpVisitor(topology.url, verify=False) for _ in range(clients)]
    with ThreadPoolExecutor(clients) as pool:
        sending = [pool.submit(send_all, visitor, [marker() for _ in range(messages)]) for visitor in visitors]
        try:
            for _ in range(5):
                topology.restart_proxy()
        finally:
            has_restarted.set()
        refused = sum(one.result() for one in sending)
    assert refused > 0, "no restart was in the way of a message"
    stored = " ".join(topology.stored_prompts())
    assert {text: stored.count(text) for text in sent} == dict.fromkeys(sent, 1)


def test_process_that_wakes_up_late_changes_nothing(topology: Topology, people: Callable[..., Visitor]) -> None:
    visitor = people()
    begin(visitor, "!tokens 301 @20")
    paused = topology.writer()
    assert paused.process is not None
    log = len(paused.log)
    paused.process.send_signal(signal.SIGSTOP)
    at = time.monotonic()
    try:
        expect(visitor.chat).to_contain_text("word300", timeout=3 * TAKEOVER_SECONDS * 1000)
        visitor.page.wait_for_timeout(max(0.0, PAUSE_SECONDS - (time.monotonic() - at)) * 1000)
        before = topology.stored_texts()
    finally:
        paused.process.send_signal(signal.SIGCONT)
    assert words(301) in before
    # Its log says that the late process has given its answer up, whichever of its tasks is the first to notice.
    becomes(True, lambda: "were not stored" in paused.log[log:] or "has taken it" in paused.log[log:], seconds=60)
    assert topology.stored_texts() == before
    other = people()  # the late process serves visitors again
    other.ask("!text Awake.")
    expect(other.chat).to_contain_text("Awake.")
