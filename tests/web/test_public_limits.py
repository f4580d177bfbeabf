"""Limits of a page open to everybody: every action with every limit, every way to free a slot, attacks over HTTP."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from starlette.requests import Request
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from agent import Agent, Limits
from agent.errors import AgentError, ConfigError, InputError, Limited
from agent.models.catalog import ModelSpec
from agent.models.catalog import load_catalog as catalog
from agent.providers.connection import Endpoint, ServedModel
from agent.rendering.bubbles import Turn
from agent.settings import LocalSettings, PublicSettings, Settings
from agent.tools.function_tools import ask_user
from agent.web.chat.attachments import MAX_TEXT, plan_attachments
from agent.web.chat.choices import MAX_OWNERS, MAX_PROMPT_CHARACTERS, Choices, RememberedSettings
from agent.web.chat.conversations import Conversations
from agent.web.chat.model_menu import ModelMenu
from agent.web.chat.questions import QuestionId
from agent.web.chat.rate_limit import RateLimiter
from agent.web.chat.visitor import Visitor as Asker
from agent.web.client_address import ClientAddressMiddleware, client_address
from agent.web.middleware.isolation import IsolationMiddleware
from agent.web.middleware.visitor_cookie import VisitorCookies
from agent.web.sending import send_message
from agent.web.ui.api import ChatApi
from bench.attack.client import Client
from tests.conftest import App
from tests.support.models import FakeLocalModels
from tests.support.scripted_server import Config, Running
from tests.support.views import chats_of, view_of

HERE = "5.6.7.8"
REFUSED = (gr.Error, AgentError)
LARGE = ModelSpec(id="local:large", name="large", label="Large", provider="llama.cpp")
ASK = '!tool ask_user {"question": "Which?", "choices": ["one", "two"]} !text Done.'
PUBLIC = PublicSettings(messages=1000, messages_in_all=1000, messages_per_address=1000, models=("huggingface:a/lent",))


SERVER = Config(rate=0, models=("large", "a/lent", "a/dear"))


class Page:
    """What an open page and a program ask for, with the real conversations behind it."""

    def __init__(self, conversations: Conversations, visitor: str | None = "ann", address: str | None = None) -> None:
        self.conversations, self.api = conversations, ChatApi(conversations)
        self.asker = Asker(owner=visitor or "guest-1", guest=visitor is None, address=address)
        self.conversation: str | None = None
        isolation = IsolationMiddleware(Request({"type": "http"}), VisitorCookies("key"))
        state = {"visitor": visitor, "address": address, "isolation": isolation}
        self.model, self.system = LARGE.id, ""
        self.request = gr.Request(Request({"type": "http", "headers": [], "state": state}), session_hash="page")

    @property
    def choices(self) -> Choices:
        """The settings that the page shows."""
        return Choices(
            model=self.model, system_message=self.system, reasoning=False, temperature=0.5, max_tokens=100, tools=True
        )

    async def send(self, text: str = "!text Hi.") -> None:
        """Type a message and press Enter."""
        value, scope = {"text": text, "files": []}, self.request.request.scope
        self.conversation, _ = await send_message(
            self.conversations, self.asker, self.conversation, value, self.choices, scope
        )

    async def edit(self, text: str) -> None:
        await self.conversations.edit(*self.who, (await self.shown())[0]["id"], text, self.choices)

    async def shown(self) -> Sequence[Turn]:
        """Return the turns that the page shows."""
        return (await view_of(self.conversations, self.asker.owner, self.conversation)).turns

    async def press(self) -> None:
        """Press the first button under the last answer."""
        await self.choose((await self.shown())[-1].get("buttons", [])[0]["value"])

    async def choose(self, value: dict[str, Any]) -> None:
        """Do what a button says, as live.js does it."""
        if value["do"] == "answer":
            question = QuestionId(value["run"], value["call"])
            await self.conversations.answer(*self.who, value["text"], self.choices, question)
        else:
            await self.conversations.continue_answer(*self.who, value["entry"], "Go on.", self.choices)

    @property
    def who(self) -> tuple[Asker, str | None]:
        """The visitor, and the conversation that the page shows."""
        return self.asker, self.conversation

    async def done(self) -> None:
        """Wait until no answer is being written."""
        while self.conversations.live_runs.count:  # noqa: ASYNC110 - there is no event for all of them
            await asyncio.sleep(0.01)


@pytest.fixture
async def conversations(server: Running, tmp_path: Path) -> AsyncIterator[Conversations]:
    """Yield all conversations of a public page with a model."""
    made = chats_of(server.base_url, tmp_path, LARGE, tools=[ask_user], public=PUBLIC)
    yield made
    await made.aclose()


async def send(page: Page) -> None:
    """Send a message with the composer."""
    await page.send("!text Sent.")


async def option(page: Page) -> None:
    """Press a button under a question."""
    await page.press()


async def words(page: Page) -> None:
    """Answer a question with the composer."""
    await page.send("two")


async def retry(page: Page) -> None:
    await page.conversations.retry(*page.who, (await page.shown())[0]["id"], page.choices)


async def go_on(page: Page) -> None:
    """Press "Continue"."""
    await page.press()


async def edit(page: Page) -> None:
    await page.edit("!text Edited.")


async def chat(page: Page) -> None:
    """Call the endpoint for programs."""
    async for _ in page.api.chat({"text": "!text Called."}, page.model, {"system_message": page.system}, page.request):
        pass


VERBS: dict[str, tuple[str, Callable[[Page], Awaitable[None]]]] = {
    "send": ("!text Hi.", send),
    "option": (ASK, option),
    "words": (ASK, words),
    "retry": ("!text Hi.", retry),
    "edit": ("!text Hi.", edit),
    "continue": ("!length 3", go_on),
    "chat": ("", chat),
}
"""Every action that begins an answer, with the message that must come before it."""

ANN, GUEST, OTHER = Asker(owner="ann"), Asker(owner="x", guest=True), Asker(owner="other")
LIMITS: dict[str, tuple[PublicSettings, Asker, bool, str]] = {
    "minute-each": (PublicSettings(messages=1), ANN, False, "Limit: 1 message a minute"),
    "minute-guests": (PublicSettings(messages=1), GUEST, False, "no cookies share this limit"),
    "minute-address": (
        PublicSettings(messages_per_address=1),
        Asker(owner="other", address=HERE),
        False,
        "your network address: 1 message a minute",
    ),
    "minute-all": (PublicSettings(messages_in_all=1), OTHER, False, "all visitors together: 1 message a minute"),
    "once-each": (PublicSettings(answers_each=1), ANN, True, "1 of your answers is being written"),
    "once-guests": (PublicSettings(answers_each=1), GUEST, True, "no cookies share this limit"),
    "once-address": (
        PublicSettings(answers_per_address=1),
        Asker(owner="other", address=HERE),
        True,
        "for your network address",
    ),
    "once-all": (PublicSettings(answers=1), OTHER, True, "1 answer is being written here"),
}
"""Limits: the settings, the visitor at the limit, if a running answer counts, and the refusal."""


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("verb", VERBS)
async def test_every_action_meets_every_limit(
    conversations: Conversations, server: Running, verb: str, limit: str
) -> None:
    first, act = VERBS[verb]
    settings, holder, held, sentence = LIMITS[limit]
    page = Page(conversations, visitor=None if holder.guest else "ann", address=HERE)
    if first:
        await page.send(first)
        await page.done()
    before = len(server.journal())
    conversations.runs.rate_limiter = RateLimiter(settings)
    place = conversations.runs.rate_limiter.reserve_answer(holder)
    if not held:
        place.release()
    with pytest.raises(REFUSED, match=sentence):
        await act(page)
    assert conversations.live_runs.count == 0
    assert len(server.journal()) == before
    place.release()
    conversations.runs.rate_limiter = RateLimiter(PUBLIC)
    await act(page)
    await page.done()
    assert len(server.journal()) == before + 1


async def test_unread_refusal_spends_no_shared_limit(conversations: Conversations, tmp_path: Path) -> None:
    conversations.runs.rate_limiter = RateLimiter(PublicSettings(messages_in_all=1))
    for text in (" ", "x" * (MAX_TEXT + 1)):
        with pytest.raises(InputError):
            await conversations.send(OTHER, None, {"text": text}, Choices())
    conversations.runs.rate_limiter.reserve_answer(ANN).release()
    conversations.runs.rate_limiter = RateLimiter(PublicSettings(messages_in_all=1))
    with pytest.raises(InputError):
        await conversations.send(OTHER, None, {"text": "", "files": [str(tmp_path / "gone.txt")]}, Choices())
    with pytest.raises(Limited, match="all visitors together"):
        conversations.runs.rate_limiter.reserve_answer(ANN)


@pytest.mark.parametrize("verb", VERBS)
async def test_every_action_holds_slot_until_answer_ends(conversations: Conversations, verb: str) -> None:
    first, act = VERBS[verb]
    page = Page(conversations)
    if first:
        await page.send(first)
        await page.done()
    conversations.runs.rate_limiter = RateLimiter(PublicSettings(answers_each=1))
    began = conversations.live_runs.start
    held = list[bool]()

    def begin(*given: Any, **more: Any) -> Any:
        with suppress(Limited):
            conversations.runs.rate_limiter.reserve_answer(ANN).release()
            held.append(False)
        return began(*given, **more)

    conversations.live_runs.start = begin
    await act(page)
    await page.done()
    assert held == []
    conversations.runs.rate_limiter.reserve_answer(ANN)


@pytest.mark.parametrize("verb", VERBS)
async def test_owner_key_serves_lent_models_only(
    conversations: Conversations, server: Running, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "of-the-owner")
    monkeypatch.setenv("HUGGINGFACE_BASE_URL", server.base_url)
    first, act = VERBS[verb]
    page = Page(conversations)

    async def try_with(model: str) -> None:
        page.conversation = None
        page.model = LARGE.id
        if first:
            await page.send(first)
            await page.done()
        page.model = model
        await act(page)
        await page.done()

    await try_with("huggingface:a/lent")
    assert server.journal()[-1]["authorization"] == "Bearer of-the-owner"
    with pytest.raises(REFUSED, match=r"dear needs an API key from Hugging Face"):
        await try_with("huggingface:a/dear")
    assert server.journal()[-1]["body"]["model"] != "a/dear"
    conversations.models.keys.put("ann", "huggingface", "of-ann")
    await try_with("huggingface:a/dear")
    assert server.journal()[-1]["authorization"] == "Bearer of-ann"
    conversations.models.keys.forget("ann")


@pytest.mark.parametrize("verb", VERBS)
async def test_every_action_refuses_long_system_prompt(
    conversations: Conversations, server: Running, verb: str
) -> None:
    first, act = VERBS[verb]
    page = Page(conversations)
    if first:
        await page.send(first)
        await page.done()
    before, page.system = len(server.journal()), "x" * (MAX_PROMPT_CHARACTERS + 1)
    with pytest.raises(REFUSED, match=r"system prompt has 20,001 characters; 20,000 is the most"):
        await act(page)
    assert len(server.journal()) == before


async def press(page: Page, text: str) -> None:
    """Press a button that the page does not show."""
    await page.choose((await page.shown())[-1].get("buttons", [])[0]["value"] | {"text": text})


async def call(page: Page, text: str) -> None:
    """Send this text to the endpoint for programs."""
    async for _ in page.api.chat({"text": text}, page.model, {}, page.request):
        pass


TYPED: dict[str, Callable[[Page, str], Awaitable[None]]] = {
    "send": Page.send,
    "words": Page.send,
    "option": press,
    "edit": Page.edit,
    "chat": call,
}
"""Every way to submit a text."""

TEXTS: dict[str, tuple[int, str]] = {
    "characters": (MAX_TEXT + 1, "message has 200,001 characters; 200,000 is the most"),
    "tokens": (160_000, r"has about 40,0\d\d tokens, and Large reads at most \d\d,\d\d\d\."),
}


@pytest.mark.parametrize(("size", "sentence"), TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("verb", TYPED)
async def test_text_is_bounded_at_every_entry(
    conversations: Conversations, server: Running, verb: str, size: int, sentence: str
) -> None:
    first, page, text = VERBS[verb][0], Page(conversations), "x" * size
    if first:
        await page.send(first)
        await page.done()
    before = len(server.journal())
    with pytest.raises(REFUSED, match=sentence):
        await TYPED[verb](page, text)
    assert len(server.journal()) == before
    conversations.runs.rate_limiter.reserve_answer(ANN)


async def test_texts_of_files_count_too(conversations: Conversations, server: Running, tmp_path: Path) -> None:
    """Ten files of 5,000 tokens do not fit into the model: it gets passages of them that suit the question."""
    for number in range(10):
        (tmp_path / f"{number}.txt").write_text(f"file{number} " + "word " * 4000)
    files = [str(tmp_path / f"{number}.txt") for number in range(10)]
    await conversations.send(ANN, None, {"text": "!text Hi. file7", "files": files}, Choices(model=LARGE.id))
    await Page(conversations).done()
    sent = str(server.journal()[-1]["body"]["messages"])
    assert "only passages" in sent
    assert "file7 word" in sent
    assert len(sent) < 4 * LARGE.context_tokens


async def test_history_makes_room_for_a_long_message(conversations: Conversations, server: Running) -> None:
    page = Page(conversations)
    await page.send("!text Hi. " + "x" * 80_000)
    await page.done()
    await page.send("!text Hi. " + "y" * 80_000)
    await page.done()
    sent = str(server.journal()[-1]["body"]["messages"])
    assert "yyyy" in sent
    assert "xxxx" not in sent
    view = await view_of(conversations, "ann", (await conversations.list.page("ann")).rows[0].id)
    assert "xxxx" in view.texts[0]


def test_guest_choices_are_not_remembered(conversations: Conversations) -> None:
    conversations.remembered.put(Asker(owner="page", guest=True), Choices(system_message="Be brief."))
    assert conversations.choices("page").system_message is None
    conversations.remembered.put(ANN, Choices(system_message="Be brief."))
    assert conversations.choices("ann").system_message == "Be brief."


def test_remembered_choices_are_bounded() -> None:
    remembered = RememberedSettings(max_bytes=100_000)
    for number in range(100):
        remembered.put(Asker(owner=str(number)), Choices(system_message="x" * 20_000))
    kept = [str(number) for number in range(100) if remembered.get(str(number))]
    assert kept == ["96", "97", "98", "99"]
    remembered.put(Asker(owner="99"), Choices(system_message="short"))
    remembered.put(Asker(owner="large"), Choices(system_message="x" * 3_900_000))
    remembered.put(Asker(owner="named"), Choices(model="x" * 3_900_000))
    assert [owner for owner in [*kept, "large", "named"] if remembered.get(owner)] == kept
    for number in range(MAX_OWNERS + 10):
        remembered.put(Asker(owner=f"small {number}"), Choices())
    assert not remembered.get("small 9")
    assert remembered.get(f"small {MAX_OWNERS + 9}")


FILES: dict[str, tuple[list[str], str]] = {
    "twice": (["a.txt", "b.txt", "a.txt"], "a.txt is attached twice"),
    "many": ([f"{number}.txt" for number in range(17)], "The message has 17 files; 16 is the most"),
    "large": (["c.bin", "d.bin", "e.bin"], "The files have 0.0 MB together; 0 MB is the most"),
}


@pytest.mark.parametrize(("names", "sentence"), FILES.values(), ids=FILES)
async def test_files_are_refused_before_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], sentence: str
) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"x" * 5000)
    monkeypatch.setattr(Path, "read_bytes", lambda _: pytest.fail("a file was read"))
    (plan,) = await plan_attachments([tmp_path / name for name in names], LARGE, max_bytes=7000)
    assert plan.outcome == "refused"
    assert sentence in plan.text


async def test_allowed_number_of_files_is_accepted(tmp_path: Path) -> None:
    for number in range(16):
        (tmp_path / f"{number}.txt").write_bytes(b"x" * 100)
    planned = await plan_attachments([tmp_path / f"{number}.txt" for number in range(16)], LARGE, max_bytes=800)
    assert [plan.outcome for plan in planned] == ["as it is"] * 16


def model_menu(*lent: str, keys: bool = True) -> ModelMenu:
    served = FakeLocalModels(served=(ServedModel(LARGE, Endpoint("http://127.0.0.1:1/v1")),))
    return ModelMenu(served, catalog(), key_seconds=60, keys_taken=keys, lent=lent)


def test_menu_marks_models_that_need_own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of-the-owner")
    shown = {one.id: one.full_label for one in model_menu("openai:gpt-6-luna").listed("ann", None)}
    assert shown["openai:gpt-6-luna"] == "GPT-6 Luna"
    assert shown[LARGE.id] == "Large (on this CPU)"
    others = set(shown) - {"openai:gpt-6-luna", LARGE.id}
    assert others
    assert all(shown[id_].endswith(" · needs your own key") for id_ in others)


@pytest.mark.parametrize(("tools", "has_badge"), [("native", True), ("none", False)])
def test_menu_marks_models_that_call_tools(tools: Any, has_badge: bool) -> None:
    assert model_menu().listed("ann", replace(LARGE, id="vllm:typed", tools=tools))[-1].tools is has_badge


async def test_connection_to_a_typed_name_serves_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any name can be typed, so connections that are kept would pile up."""
    monkeypatch.setenv("OPENAI_API_KEY", "of-the-owner")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    menu = model_menu("openai:typed", "openai:gpt-6-luna")
    for name, is_shared in (("openai:gpt-6-luna", True), ("openai:typed", False)):
        (one, closes), (other, _) = [await menu.connect("ann", name) for _ in range(2)]
        assert (one is other, closes) == (is_shared, not is_shared)
        if closes:
            for connection in (one, other):
                await menu.close(connection, "ann")
    await menu.aclose()


@pytest.mark.parametrize("is_public", [True, False], ids=["public", "own"])
async def test_public_page_does_not_name_address_of_model_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_public: bool
) -> None:
    settings = Settings(local=LocalSettings(cache_dir=tmp_path), public=PublicSettings() if is_public else None)
    served = FakeLocalModels(served=(ServedModel(LARGE, Endpoint("http://127.0.0.1:1/v1")),))
    connection, _ = await ModelMenu.of(settings, served).connect("ann", LARGE.id)
    async with Agent(connection, limits=Limits(retries=0)) as agent:
        result = await agent.ask("Hello")
    assert result.why.startswith("The model server cannot be reached")
    assert ("127.0.0.1" in result.why) != is_public
    assert "http://127.0.0.1:1" in caplog.text


def test_menu_without_keys_has_only_lent_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of-the-owner")
    shared = model_menu("openai:gpt-6-luna", keys=False)
    assert [one.id for one in shared.listed("ann", None)] == [LARGE.id, "openai:gpt-6-luna"]
    assert [spec.id for spec in shared.choosable("ann")] == [LARGE.id, "openai:gpt-6-luna"]


async def test_shared_page_refuses_other_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of-the-owner")
    with pytest.raises(AgentError, match="does not offer GPT-6 Luna, a model of OpenAI"):
        await model_menu(keys=False).connect("ann", "gpt-6-luna")


def test_unknown_lent_model_is_named_at_start() -> None:
    with pytest.raises(ConfigError, match=r"public\.models: No model named 'gpt-of-nobody'"):
        model_menu("gpt-of-nobody")


async def refused_file(page: Page) -> None:
    """Send a missing file."""
    with pytest.raises(AgentError):
        await page.conversations.send(ANN, None, {"text": "x", "files": ["/nowhere"]}, Choices(model=LARGE.id))


async def unknown_model(page: Page) -> None:
    """Choose a model that no server has."""
    with pytest.raises(AgentError):
        await page.conversations.send(ANN, None, {"text": "x"}, Choices(model="nobody"))


async def empty(page: Page) -> None:
    """Send an empty message."""
    with pytest.raises(AgentError):
        await page.conversations.send(ANN, None, {"text": " "}, Choices(model=LARGE.id))


async def given_up(page: Page) -> None:
    """Leave while a file is being read."""
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
    """Let the model server fail."""
    await page.send("!status 400")
    await page.done()


async def stopped(page: Page) -> None:
    """Stop an answer."""
    await page.send("!tokens 4000 @20")
    await page.conversations.running.stop([page.conversation], page.asker.owner)
    await page.done()


async def going_down(page: Page) -> None:
    """Shut the server down."""
    page.conversations.live_runs.is_closing = True
    with pytest.raises(AgentError):
        await page.conversations.send(ANN, None, {"text": "x"}, Choices(model=LARGE.id))


WAYS_OUT = (refused_file, unknown_model, empty, given_up, failing, stopped, going_down)


@pytest.mark.parametrize("way", WAYS_OUT, ids=lambda way: way.__name__)
async def test_every_exit_frees_the_slot(
    conversations: Conversations,
    way: Callable[[Page], Awaitable[None]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    conversations.runs.rate_limiter = RateLimiter(PublicSettings(answers_each=1, messages=1000))
    await way(Page(conversations))
    conversations.runs.rate_limiter.reserve_answer(ANN)


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
async def test_only_trusted_address_counts(forwarded: list[str], peer: str, trusted: str, counted: str | None) -> None:
    seen = list[str | None]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(client_address(scope))

    headers = [(b"x-forwarded-for", one.encode()) for one in forwarded]
    scope: Any = {"type": "http", "headers": headers, "client": (peer, 5), "scheme": "http"}
    await ProxyHeadersMiddleware(ClientAddressMiddleware(app, any_proxy=trusted == "*"), trusted)(scope, None, None)  # type: ignore[arg-type]
    assert seen == [counted]


@pytest.mark.parametrize(
    ("forwarded", "peer", "trusted", "named"),
    [
        ("5.6.7.8", "10.0.0.2", "127.0.0.1", "10.0.0.2"),
        ("5.6.7.8, 10.0.0.2", "127.0.0.1", "127.0.0.1", "10.0.0.2"),
        ("5.6.7.8, 10.0.0.2", "127.0.0.1", "127.0.0.1,10.0.0.2", ""),
        ("5.6.7.8", "127.0.0.1", "127.0.0.1", ""),
        ("1.1.1.1, 5.6.7.8", "127.0.0.1", "127.0.0.1", ""),
        ("1.1.1.1, 5.6.7.8, 10.0.0.2", "127.0.0.1", "127.0.0.1,10.0.0.2", ""),
        ("1.1.1.1, 5.6.7.8", "5.6.7.9", "127.0.0.1", "5.6.7.9"),
        ("5.6.7.8", "10.0.0.2", "*", ""),
        ("", "10.0.0.2", "127.0.0.1", ""),
    ],
)
async def test_unknown_proxy_is_logged_once(
    forwarded: str, peer: str, trusted: str, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        pass

    server = ProxyHeadersMiddleware(ClientAddressMiddleware(app, any_proxy=trusted == "*"), trusted)  # type: ignore[arg-type]
    for _ in range(3):
        headers = [(b"x-forwarded-for", forwarded.encode())] if forwarded else []
        scope: Any = {"type": "http", "headers": headers, "client": (peer, 5), "scheme": "http"}
        await server(scope, None, None)  # type: ignore[arg-type]
    told = [record.getMessage() for record in caplog.records]
    assert [line.partition(" ")[0] for line in told] == ([named] if named else [])
    assert all("FORWARDED_ALLOW_IPS" in line for line in told)


# Attacks over HTTP

CONFIG = """
[public]
on = true
models = ["huggingface:a/lent"]
messages = 200
messages_per_address = 200
messages_in_all = 1000
"""


def test_forged_address_gets_no_extra_slots(start_app: Callable[..., App], model_server: Running) -> None:
    app = start_app(CONFIG + "answers_per_address = 1\n", SPACE_ID="me/it")
    with (
        Client(app.url, x_forwarded_for="1.1.1.1, 5.6.7.8") as first,
        Client(app.url, x_forwarded_for="1.1.1.2, 5.6.7.8") as same,
        Client(app.url, x_forwarded_for="1.1.1.1, 5.6.7.9") as other,
    ):
        before = len(model_server.journal())
        first.begin("!tokens 80 hold 20 forged-address")
        model_server.wait_for(lambda journal: len(journal) > before)
        assert "for your network address" in same.chat("!text Hi.").error
        assert other.chat("!text Hi.").value["text"] == "Hi."
        model_server.release("forged-address")
        assert first.wait()[-1].success
        assert same.chat("!text Hi.").value["text"] == "Hi."


def test_start_prints_public_limits(start_app: Callable[..., App]) -> None:
    public = start_app(CONFIG)
    assert "Open to everybody: 200 messages a minute for each visitor, 1000 for all;" in public.log
    assert "with your keys they may use huggingface:a/lent" in public.log
