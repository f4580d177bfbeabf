"""One visitor cannot block the server for others: floods of events, sessions, unread streams and connections.

Each test makes a bounded attack on the real app over raw HTTP, and shows that another visitor is served meanwhile.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.conftest import App, becomes

API = "/gradio_api/"
StartApp = Callable[..., App]


class Client:
    """A visitor over raw HTTP. With `cookie=False` it is a guest. A proxy on this machine forwards its `address`."""

    def __init__(self, url: str, *, cookie: bool = True, address: str = "") -> None:
        limits = httpx.Limits(max_keepalive_connections=16)
        headers = {"x-forwarded-for": address} if address else None
        self.http = httpx.Client(base_url=url, timeout=60, trust_env=False, limits=limits, headers=headers)
        self.session = uuid4().hex[:11]
        events = self.http.get("/config").json()["dependencies"]
        self.events = {event["api_name"]: event for event in events}
        if not cookie:
            self.http.cookies.clear()

    def join(self, event: str, data: list[Any] | None = None, session: str = "") -> httpx.Response:
        """Start an event of the page."""
        found = self.events[event]
        body = {"data": data or [], "fn_index": found["id"], "session_hash": session or self.session}
        return self.http.post(API + "queue/join", json=body)

    def read(self, session: str = "") -> str:
        """Return all messages of a session until its events have ended."""
        return self.http.get(API + "queue/data", params={"session_hash": session or self.session}).text

    def begin(self, text: str, session: str = "") -> httpx.Response:
        """Send a message through the public endpoint."""
        return self.join("chat", [{"text": text, "files": []}, "", {}, None], session)

    def say(self, text: str) -> str:
        """Send a message and return the last update of its answer."""
        assert self.begin(text).status_code == 200
        return self.last(self.read())

    @staticmethod
    def last(messages: str) -> str:
        """Return the message that ended the last event."""
        return re.findall(r"^data: (.*process_completed.*)$", messages, re.M)[-1]

    def open(self, session: str) -> httpx.Response:
        """Load the page as a session, which then shows the last conversation."""
        answer = self.join("page_loaded", session=session)
        self.read(session)
        return answer


@pytest.fixture
def clients() -> Iterator[Callable[..., Client]]:
    """Make clients. They are closed at the end."""
    made: list[Client] = []

    def make(app: App, *, cookie: bool = True, address: str = "") -> Client:
        made.append(Client(app.url, cookie=cookie, address=address))
        return made[-1]

    yield make
    for client in made:
        client.http.close()


def is_served(client: Client) -> bool:
    """Return True if a short message is answered, and the app reports that it is ready."""
    answered = json.loads(client.say("!text here"))["output"]["data"][0]
    return "here" in json.dumps(answered) and client.http.get("/readyz").status_code == 200


@pytest.mark.full
def test_watch_flood_leaves_slots_for_others(start_app: StartApp, clients: Callable[..., Client]) -> None:
    app = start_app()
    attacker, other = clients(app), clients(app)
    attacker.say("!text one")
    assert attacker.begin("!tokens 600 @20").status_code == 200
    attacker.open("flood")
    of_one_page = Counter(attacker.join("watch", session="flood").status_code for _ in range(40))
    assert of_one_page[200] <= 8
    statuses = Counter(attacker.join("watch", session=f"flood{number % 80}").status_code for number in range(320))
    assert statuses[200] <= 32
    assert is_served(other)


@pytest.mark.full
def test_many_cookies_of_one_address_leave_slots(start_app: StartApp, clients: Callable[..., Client]) -> None:
    app = start_app()
    other = clients(app, address="5.6.7.9")
    accepted = Counter[int]()
    for _ in range(12):
        attacker = clients(app, address="1.1.1.1, 5.6.7.8")
        if attacker.begin("!text one").status_code != 200:
            continue
        attacker.read()
        attacker.begin("!tokens 900 @20")
        for number in range(8):
            if attacker.join("page_loaded", session=f"s{number}").status_code == 200:
                attacker.read(f"s{number}")
            accepted.update(attacker.join("watch", session=f"s{number}").status_code for _ in range(4))
    assert 100 <= accepted[200] <= 170  # half of the 300 slots, plus those freed meanwhile
    assert is_served(other)
    people = [clients(app, address="5.6.7.10") for _ in range(50)]  # many people behind one address
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda client: client.say("!text here"), people))
    assert all("here" in answer for answer in answers)
    assert is_served(other)


@pytest.mark.parametrize(
    "cookie", [pytest.param(True, id="visitor"), pytest.param(False, id="guest", marks=pytest.mark.full)]
)
def test_new_sessions_do_not_stop_the_queue(start_app: StartApp, clients: Callable[..., Client], cookie: bool) -> None:
    app = start_app()
    attacker, other = clients(app, cookie=cookie), clients(app)
    assert other.begin("!tokens 400 @50").status_code == 200  # this stream must survive too
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: attacker.join("watch", session=f"s{number}"), range(2200)))
    assert "finish_reason" in other.read()
    assert is_served(other)
    assert "KeyError" not in app.log


def test_unread_stream_is_bounded_and_complete(app: App, clients: Callable[..., Client]) -> None:
    visitor = clients(app)
    visitor.say("!text one")  # store the conversation before the page loads
    assert visitor.begin("!tokens 1500 @500").status_code == 200
    visitor.open("unread")
    assert visitor.join("watch", session="unread").status_code == 200
    answer = visitor.read()  # read to the end
    messages = visitor.read("unread")
    assert answer.count("process_generating") > 15
    assert messages.count("process_generating") <= 4
    last = re.search(r"(\S+)\s*$", json.loads(visitor.last(answer))["output"]["data"][0]["text"])
    assert last is not None
    assert last[1] in messages


def test_streams_do_not_fill_log(start_app: StartApp, clients: Callable[..., Client]) -> None:
    app = start_app()
    stranger, visitor = clients(app, cookie=False), clients(app)
    before = len(app.log)
    for number in range(20):
        query = {"session_hash": f"s{number}"}
        assert stranger.http.get(API + "queue/data", params=query).status_code == 404
    assert len(app.log) == before
    assert visitor.begin("!tokens 600 @20").status_code == 200
    query = {"session_hash": visitor.session}
    with ExitStack() as stack:
        for _ in range(15):
            stack.enter_context(visitor.http.stream("GET", API + "queue/data", params=query))
    becomes(404, lambda: visitor.http.get(API + "queue/data", params=query).status_code)
    assert is_served(clients(app))
    assert app.log.count("Traceback") <= 1
