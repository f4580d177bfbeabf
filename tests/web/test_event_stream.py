"""A message that is sent while a program's event stream closes is answered after the program knows that it closed."""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any, cast

import pytest
from starlette.types import Message, Receive, Scope, Send

from agent.web.gradio_compat import event_queue
from agent.web.gradio_compat.event_queue import SETTLE_SECONDS, EventStreamMiddleware
from agent.web.middleware.isolation import API
from tests.conftest import App
from tests.support.http_client import HttpVisitor
from tests.support.scripted_server import Running

CLOSE = b'data: {"msg":"close_stream","event_id":null}\n\n'
TEXT = b'data: {"msg":"process_generating","output":{"data":["\\"msg\\":\\"close_stream\\""]}}\n\n'


class Events:
    """The events of pages that are always busy."""

    def has_session(self, session: str) -> bool:
        return True

    def is_idle(self, session: str) -> bool:
        return False

    def end_stream(self, session: str) -> None:
        raise AssertionError(session)


class Gradio:
    """A stand-in for Gradio: a stream that sends something and ends, and a join that is answered."""

    def __init__(self, says: bytes) -> None:
        self.says = says
        self.joined = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"].endswith("join"):
            self.joined.set()
            await send({"type": "http.response.body", "body": b"{}"})
        else:
            await self.joined.wait()  # the join is accepted, but its answer is still on its way
            await send({"type": "http.response.body", "body": self.says})


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> float:
    """Set a pause that no test waits for, and return a shorter time."""
    monkeypatch.setattr(event_queue, "SETTLE_SECONDS", 60.0)
    return 60.0


async def order(says: bytes, *, sessions: tuple[str, str]) -> tuple[list[str], float]:
    """Return the order in which the page reads the end of its stream and the answer to its join, and the seconds."""
    read: list[str] = []
    app = EventStreamMiddleware(Gradio(says), cast(Any, Events()))

    async def ask(what: str, session: str) -> None:
        async def send(message: Message) -> None:
            if message["type"] == "http.response.body":
                read.append(what)

        async def receive() -> Message:
            return {"type": "http.disconnect"}

        await app({"type": "http", "path": API + what, "state": {"session": session}}, receive, send)

    begun = monotonic()
    stream = asyncio.create_task(ask("queue/data", sessions[0]))
    await asyncio.sleep(0)
    await ask("queue/join", sessions[1])
    await stream
    return read, monotonic() - begun


async def test_join_waits_for_closed_stream() -> None:
    gradio = Gradio(CLOSE)
    app = EventStreamMiddleware(gradio, cast(Any, Events()))
    read: list[tuple[str, float]] = []

    async def ask(what: str) -> None:
        async def send(message: Message) -> None:
            read.append((f"{what} {message['type'].rsplit('.', 1)[1]}", monotonic()))

        async def receive() -> Message:
            return {"type": "http.disconnect"}

        await app({"type": "http", "path": API + what, "state": {"session": "me"}}, receive, send)

    gradio.joined.set()  # the stream closes at once
    await ask("queue/data")
    await ask("queue/join")
    closed = next(at for what, at in read if what == "queue/data body")
    answered = next(at for what, at in read if what == "queue/join start")
    assert answered - closed >= SETTLE_SECONDS - 0.01


async def test_other_requests_do_not_wait(patience: float) -> None:
    read, took = await order(CLOSE, sessions=("me", "you"))
    assert sorted(read) == ["queue/data", "queue/join"]
    assert took < patience


async def test_answer_text_closes_nothing(patience: float) -> None:
    _, took = await order(TEXT, sessions=("me", "me"))
    assert took < patience


async def test_only_streams_that_closed_just_now_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that has left costs nothing here."""
    monkeypatch.setattr(event_queue, "SETTLE_SECONDS", 0.0)
    gradio = Gradio(CLOSE)
    gradio.joined.set()
    app = EventStreamMiddleware(gradio, cast(Any, Events()))

    async def exchange(*_: object) -> Message:
        return {"type": "http.disconnect"}

    for number in range(100):
        scope = {"type": "http", "path": f"{API}queue/data", "state": {"session": f"page-{number}"}}
        await app(scope, exchange, exchange)  # type: ignore[arg-type]
    assert len(app._closed) == 1


def test_stream_without_events_ends(app: App) -> None:
    """A page that has opened a stream at the wrong process opens one at the right process for its next event."""
    program = HttpVisitor(app.url)
    assert "Once." in program.say("!text Once.")
    again = program.listen(seconds=20.0)  # nothing is left to read
    assert '"close_stream"' in again
    assert "Once." not in again
    assert "Twice." in program.say("!text Twice.")


def test_stream_of_a_slow_event_stays_open(start_app: Callable[..., App], server: Running) -> None:
    """It stays open for as long as an event runs, and Gradio's heartbeat keeps proxies from ending it."""
    app = start_app(VLLM_BASE_URL=server.base_url, GRADIO_HEARTBEAT_INTERVAL="0.5")
    said = HttpVisitor(app.url).say("!wait 3 !text Slow.")
    assert "Slow." in said
    assert '"heartbeat"' in said
