"""Limits of a page open to everybody: every verb against every limit, every way out of a place, attacks over HTTP."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from starlette.requests import Request
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from agent.catalog import ModelSpec
from agent.errors import AgentError, Limited
from agent.history.memory import MemoryStore
from agent.media import MediaStore
from agent.serving.address import Addresses, address_of
from agent.serving.visitor import Visitors
from agent.serving.walls import Walls
from agent.settings import LocalSettings, PublicSettings, Settings
from agent.tools import ask_user
from agent.ui.api import Api
from agent.ui.gate import Gate
from agent.ui.handlers import Handlers
from agent.ui.start import Choices
from agent.ui.turn import Conversations
from agent.ui.visitor import Visitor as Asker
from bench.attack.attacks import refusals, rush
from bench.attack.client import Client, bystander
from tests.conftest import App
from tests.scripted_server import Config, Running, running
from tests.test_handlers import Endpoint, Models, Served

HERE = "5.6.7.8"
LARGE = ModelSpec(id="local:large", name="large", label="Large", provider="llama.cpp")
ASK = '!tool ask_user {"question": "Which?", "choices": ["one", "two"]} !text Done.'
PUBLIC = PublicSettings(messages=1000, messages_in_all=1000, messages_per_address=1000)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """A fast model."""
    with running(Config(rate=0, models=("large",))) as started:
        yield started


@dataclass(frozen=True)
class Widget:
    """What a handler sees of a widget."""

    elem_id: str


class Page:
    """One open page, with the real handlers behind it."""

    def __init__(self, conversations: Conversations, visitor: str | None = "ann", address: str | None = None) -> None:
        self.conversations, self.handlers, self.api = conversations, Handlers(conversations), Api(conversations)
        walls = Walls(Request({"type": "http"}), Visitors("key"))
        state = {"visitor": visitor, "address": address, "walls": walls}
        self.request = gr.Request(Request({"type": "http", "headers": [], "state": state}), session_hash="page")

    def given(self, text: str = "", *files: str, **more: str) -> dict[Any, Any]:
        """The values of the widgets."""
        values = {
            "composer": {"text": text, "files": list(files)},
            "model": LARGE.id,
            "system": "",
            "reasoning": False,
            "temperature": 0.5,
            "max-tokens": 100,
            "tools": True,
            "read-here": False,
            **more,
        }
        return {Widget(name): value for name, value in values.items()}

    async def send(self, text: str = "!text Hi.") -> None:
        """Type a message and press Enter."""
        async for _ in self.handlers.accept(self.given(text), self.request):
            pass

    async def last(self) -> dict[str, Any]:
        """What names the last message, as the page's script fills it in."""
        id_ = next(one["metadata"]["id"] for one in await self.shown() if one["role"] == "user")
        return {"addressed": id_, "edited": "!text Edited."}

    async def shown(self) -> list[dict[str, Any]]:
        """What the chatbot shows."""
        seat = self.handlers._seats.of(self.request)
        return (await self.conversations.view(seat.owner, seat.conversation)).messages

    async def press(self) -> None:
        """Press the first button under the last answer."""
        value = (await self.shown())[-1]["options"][0]["value"]
        await self.handlers.option(gr.SelectData(None, {"index": 0, "value": value}), self.given(), self.request)

    async def done(self) -> None:
        """Wait until nothing is being written."""
        while self.conversations.live.count:  # noqa: ASYNC110 - there is no event for all of them
            await asyncio.sleep(0.01)


@pytest.fixture
async def conversations(server: Running, tmp_path: Path) -> AsyncIterator[Conversations]:
    """All conversations of a public page with a model."""
    models = Models(served=(Served(LARGE, Endpoint(server.base_url)),))
    settings = Settings(local=LocalSettings(cache_dir=tmp_path), public=PUBLIC)
    made = Conversations(settings, MemoryStore(), MediaStore(tmp_path), models, tools=[ask_user])
    yield made
    await made.aclose()


async def send(page: Page) -> None:
    """Send a message with the composer."""
    await page.send("!text Sent.")


async def example(page: Page) -> None:
    """Press a starter example."""
    event = gr.SelectData(None, {"index": 0, "value": {"text": "!text Example."}})
    async for _ in page.handlers.example(event, page.given(), page.request):
        pass


async def option(page: Page) -> None:
    """Press a button under a question."""
    await page.press()


async def words(page: Page) -> None:
    """Answer a question with the composer."""
    await page.send("two")


async def retry(page: Page) -> None:
    """Press "retry"."""
    await page.handlers.retry(page.given(**await page.last()), page.request)


async def go_on(page: Page) -> None:
    """Press "Continue"."""
    await page.press()


async def edit(page: Page) -> None:
    """Edit the message."""
    await page.handlers.edit(page.given(**await page.last()), page.request)


async def chat(page: Page) -> None:
    """Call the endpoint for programs."""
    async for _ in page.api.chat({"text": "!text Called."}, LARGE.id, {}, page.request):
        pass


VERBS: dict[str, tuple[str, Callable[[Page], Awaitable[None]]]] = {
    "send": ("!text Hi.", send),
    "example": ("", example),
    "option": (ASK, option),
    "words": (ASK, words),
    "retry": ("!text Hi.", retry),
    "edit": ("!text Hi.", edit),
    "continue": ("!length 3", go_on),
    "chat": ("", chat),
}
"""Every verb that begins an answer, behind the message that the conversation has by then."""

ANN, GUEST, OTHER = Asker(owner="ann"), Asker(owner="x", guest=True), Asker(owner="other")
LIMITS: dict[str, tuple[PublicSettings, Asker, bool, str]] = {
    "minute-each": (PublicSettings(messages=1), ANN, False, "each visitor 1 messages a minute"),
    "minute-guests": (PublicSettings(messages=1), GUEST, False, "no cookies share this limit"),
    "minute-address": (
        PublicSettings(messages_per_address=1),
        Asker(owner="other", address=HERE),
        False,
        "each network address 1 messages a minute",
    ),
    "minute-all": (PublicSettings(messages_in_all=1), OTHER, False, "all visitors together 1 messages a minute"),
    "once-each": (PublicSettings(answers_each=1), ANN, True, "1 of your answers are being written"),
    "once-guests": (PublicSettings(answers_each=1), GUEST, True, "no cookies share this limit"),
    "once-address": (
        PublicSettings(answers_per_address=1),
        Asker(owner="other", address=HERE),
        True,
        "for your network address",
    ),
    "once-all": (PublicSettings(answers=1), OTHER, True, "1 answers are being written here"),
}
"""Limits, each with who has used it up, whether by an answer that is being written, and what is said."""


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("verb", VERBS)
async def test_every_verb_meets_every_limit(
    conversations: Conversations, server: Running, verb: str, limit: str
) -> None:
    first, act = VERBS[verb]
    settings, holder, held, sentence = LIMITS[limit]
    page = Page(conversations, visitor=None if holder.guest else "ann", address=HERE)
    if first:
        await page.send(first)
        await page.done()
    before = len(server.journal())
    conversations.gate = Gate(settings)
    place = conversations.gate.enter(holder)
    if not held:
        place.release()
    with pytest.raises(gr.Error, match=sentence):
        await act(page)
    assert conversations.live.count == 0
    assert len(server.journal()) == before
    place.release()
    conversations.gate = Gate(PUBLIC)
    await act(page)
    await page.done()
    assert len(server.journal()) == before + 1


@pytest.mark.parametrize("verb", VERBS)
async def test_every_verb_holds_a_place_until_its_answer_ends(conversations: Conversations, verb: str) -> None:
    first, act = VERBS[verb]
    page = Page(conversations)
    if first:
        await page.send(first)
        await page.done()
    conversations.gate = Gate(PublicSettings(answers_each=1))
    began = conversations.live.begin
    held = list[bool]()

    def begin(*given: Any, **more: Any) -> Any:
        with suppress(Limited):
            conversations.gate.enter(ANN).release()
            held.append(False)
        return began(*given, **more)

    conversations.live.begin = begin
    await act(page)
    await page.done()
    assert held == []
    conversations.gate.enter(ANN)


async def refused_file(page: Page) -> None:
    """A file that is not there."""
    with pytest.raises(AgentError):
        await page.conversations.send(ANN, None, {"text": "x", "files": ["/nowhere"]}, Choices(model=LARGE.id))


async def unknown_model(page: Page) -> None:
    """A model that nobody serves."""
    with pytest.raises(AgentError):
        await page.conversations.send(ANN, None, {"text": "x"}, Choices(model="nobody"))


async def empty(page: Page) -> None:
    """A message without anything."""
    with pytest.raises(AgentError):
        await page.conversations.send(ANN, None, {"text": " "}, Choices(model=LARGE.id))


async def given_up(page: Page) -> None:
    """A visitor who goes while a file is read."""
    folder = Path(os.environ["GRADIO_TEMP_DIR"])
    os.mkfifo(folder / "slow.txt")
    sending = page.conversations.send(
        ANN, None, {"text": "x", "files": [str(folder / "slow.txt")]}, Choices(model=LARGE.id)
    )
    task = asyncio.ensure_future(sending)
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    os.close(os.open(folder / "slow.txt", os.O_RDWR | os.O_NONBLOCK))


async def failing(page: Page) -> None:
    """A model server that fails."""
    await page.send("!status 400")
    await page.done()


async def stopped(page: Page) -> None:
    """An answer that is stopped."""
    await page.send("!tokens 4000 @20")
    page.handlers.stop(page.request)
    await page.done()


async def going_down(page: Page) -> None:
    """A server that goes down."""
    page.conversations.live.closing = True
    with pytest.raises(AgentError):
        await page.conversations.send(ANN, None, {"text": "x"}, Choices(model=LARGE.id))


WAYS_OUT = (refused_file, unknown_model, empty, given_up, failing, stopped, going_down)


@pytest.mark.parametrize("way", WAYS_OUT, ids=lambda way: way.__name__)
async def test_every_way_out_gives_the_place_back(
    conversations: Conversations,
    way: Callable[[Page], Awaitable[None]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    conversations.gate = Gate(PublicSettings(answers_each=1, messages=1000))
    await way(Page(conversations))
    conversations.gate.enter(ANN)


# Addresses: (what the proxies forwarded, who connects, trusted proxies, the address that counts)

ADDRESSES: dict[str, tuple[list[str], str, str, str | None]] = {
    "direct": ([], "5.6.7.8", "127.0.0.1", "5.6.7.8"),
    "direct-forged": (["1.1.1.1"], "5.6.7.8", "127.0.0.1", "5.6.7.8"),
    "direct-private": (["1.1.1.1"], "192.168.1.9", "127.0.0.1", "192.168.1.9"),
    "direct-loopback": ([], "127.0.0.1", "127.0.0.1", None),
    "proxy": (["5.6.7.8"], "127.0.0.1", "127.0.0.1", "5.6.7.8"),
    "proxy-forged": (["1.1.1.1, 5.6.7.8"], "127.0.0.1", "127.0.0.1", "5.6.7.8"),
    "proxy-forged-line": (["1.1.1.1", "5.6.7.8"], "127.0.0.1", "127.0.0.1", "5.6.7.8"),
    "proxy-chain": (["1.1.1.1, 5.6.7.8, 10.0.0.2"], "127.0.0.1", "127.0.0.1,10.0.0.0/8", "5.6.7.8"),
    "proxy-nonsense": (["5.6.7.8, unknown"], "127.0.0.1", "127.0.0.1", None),
    "space": (["5.6.7.8"], "10.9.9.9", "*", "5.6.7.8"),
    "space-forged": (["1.1.1.1, 5.6.7.8"], "10.9.9.9", "*", "5.6.7.8"),
    "space-forged-line": (["1.1.1.1", "5.6.7.8"], "10.9.9.9", "*", "5.6.7.8"),
    "space-inner-proxy": (["1.1.1.1, 10.0.0.2"], "10.9.9.9", "*", None),
    "space-none": ([], "10.9.9.9", "*", None),
    "port": (["5.6.7.8:4242"], "10.9.9.9", "*", "5.6.7.8"),
    "ipv6": ([], "2a01:db9:1:2:3:4:5:6", "127.0.0.1", "2a01:db9:1:2::/64"),
    "ipv6-neighbour": ([], "2a01:db9:1:2:ffff::1", "127.0.0.1", "2a01:db9:1:2::/64"),
    "ipv6-port": (["[2a01:db9:1:2::1]:443"], "10.9.9.9", "*", "2a01:db9:1:2::/64"),
    "ipv6-mapped": ([], "::ffff:5.6.7.8", "127.0.0.1", "5.6.7.8"),
}


@pytest.mark.parametrize(("forwarded", "peer", "trusted", "counted"), ADDRESSES.values(), ids=ADDRESSES)
async def test_only_a_certain_address_counts(
    forwarded: list[str], peer: str, trusted: str, counted: str | None
) -> None:
    seen = list[str | None]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(address_of(scope))

    headers = [(b"x-forwarded-for", one.encode()) for one in forwarded]
    scope: Any = {"type": "http", "headers": headers, "client": (peer, 5), "scheme": "http"}
    await ProxyHeadersMiddleware(Addresses(app, any_proxy=trusted == "*"), trusted)(scope, None, None)  # type: ignore[arg-type]
    assert seen == [counted]


# Attacks over HTTP

CONFIG = "[public]\non = true\nmessages = 200\nmessages_per_address = 200\nmessages_in_all = 1000\n"


@pytest.fixture(scope="module")
def seeing() -> Iterator[Running]:
    """A model that sees pictures."""
    with running(Config(models=("Qwen/Qwen3-VL-8B-Instruct",), rate=200.0)) as started:
        yield started


@pytest.fixture(scope="module")
def public(start_app: Callable[..., App], seeing: Running) -> App:
    """A public page whose limits a minute are wide, so that those at once are met."""
    return start_app(CONFIG, VLLM_BASE_URL=seeing.base_url)


@pytest.mark.parametrize(
    ("cookies", "count", "answered", "sentence"),
    [
        ("one", 36, 2, "2 of your answers are being written"),
        ("none", 30, 2, "no cookies share this limit"),
        ("each", 36, 8, "8 answers are being written here"),
    ],
)
def test_rush_gets_no_more_places_than_there_are(
    public: App, seeing: Running, cookies: str, count: int, answered: int, sentence: str
) -> None:
    before = len(seeing.journal())
    with bystander(public.url, pause=0.3) as other:
        told = refusals(rush(public.url, count, cookies=cookies))
    assert told.pop("", 0) == answered
    assert len(seeing.journal()) - before - len(other.seconds) == answered
    assert sum(told.values()) == count - answered
    assert all(sentence in said or "8 answers" in said for said in told)
    if answered < 8:
        assert not other.failures
        assert other.seconds


def test_forged_address_brings_no_more_places(start_app: Callable[..., App]) -> None:
    app = start_app(CONFIG + "answers_per_address = 1\n", SPACE_ID="me/it")
    with (
        Client(app.url, x_forwarded_for="1.1.1.1, 5.6.7.8") as first,
        Client(app.url, x_forwarded_for="1.1.1.2, 5.6.7.8") as same,
        Client(app.url, x_forwarded_for="1.1.1.1, 5.6.7.9") as other,
    ):
        first.begin("!tokens 60 @20")
        assert "for your network address" in same.chat("!text Hi.").error
        assert other.chat("!text Hi.").value["text"] == "Hi."
        assert first.wait()[-1].success
        assert same.chat("!text Hi.").value["text"] == "Hi."
