"""One visitor cannot block the server for others: floods of events, sessions, unread streams and connections.

Each test makes a bounded attack on the real app over raw HTTP, and shows that another visitor is served meanwhile.
"""

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from tests.conftest import App, becomes
from tests.support.http_client import API, HttpVisitor

StartApp = Callable[..., App]


@pytest.fixture
def visitors() -> Iterator[Callable[..., HttpVisitor]]:
    """Make visitors, guests with `cookie=None`. Their connections are closed at the end."""
    made: list[HttpVisitor] = []

    def make(app: App, **how: Any) -> HttpVisitor:
        made.append(HttpVisitor(app.url, kept_connections=16, **how))
        return made[-1]

    yield make
    for visitor in made:
        visitor.http.close()


def last_message(messages: str) -> str:
    """Return the message that ended the last event."""
    return re.findall(r"^data: (.*process_completed.*)$", messages, re.M)[-1]


def is_served(visitor: HttpVisitor) -> bool:
    """Return True if a short message is answered, and the app reports that it is ready."""
    answered = json.loads(last_message(visitor.say("!text here")))["output"]["data"][0]
    return "here" in json.dumps(answered) and visitor.ask("GET", "/readyz").status == 200


def test_new_sessions_do_not_stop_the_queue(start_app: StartApp, visitors: Callable[..., HttpVisitor]) -> None:
    app = start_app()
    attacker, other = visitors(app), visitors(app)
    assert other.begin("!tokens 400 @50").status == 200  # this stream must survive too
    with ThreadPoolExecutor(16) as pool:  # more sessions than one visitor or all guests can have
        list(pool.map(lambda number: becomes(200, lambda: attacker.begin("", session=f"s{number}").status), range(400)))
    assert attacker.ask("GET", API + "queue/data", params={"session_hash": "s0"}).status == 404
    assert "finish_reason" in other.listen()
    assert is_served(other)
    assert "KeyError" not in app.log


def test_unread_stream_is_bounded_and_complete(app: App, visitors: Callable[..., HttpVisitor]) -> None:
    visitor = visitors(app)
    assert visitor.begin("!tokens 1500 @500", session="unread").status == 200
    assert visitor.begin("!tokens 1500 @500").status == 200
    answer = visitor.listen()  # read to the end
    messages = visitor.listen("unread")
    assert answer.count("process_generating") > 15
    assert messages.count("process_generating") <= 4
    for read in (answer, messages):
        assert json.loads(last_message(read))["output"]["data"][0]["text"].split()[-1] == "word1499"


def test_streams_do_not_fill_log(start_app: StartApp, visitors: Callable[..., HttpVisitor]) -> None:
    app = start_app()
    stranger, visitor = visitors(app, cookie=None), visitors(app)
    becomes(True, lambda: "Using the server" in app.log)  # the last line of a start
    before = len(app.log)
    for number in range(20):
        query = {"session_hash": f"s{number}"}
        assert stranger.http.get(API + "queue/data", params=query).status_code == 404
    assert len(app.log) == before
    assert visitor.begin("!tokens 600 @20").status == 200
    query = {"session_hash": visitor.session}
    with ExitStack() as stack:
        for _ in range(15):
            stack.enter_context(visitor.http.stream("GET", API + "queue/data", params=query))
    becomes(404, lambda: visitor.http.get(API + "queue/data", params=query).status_code)
    assert is_served(visitors(app))
    assert app.log.count("Traceback") <= 1
