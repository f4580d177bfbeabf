"""Every setting has an effect: each key of app.toml and each documented variable changes something visible.

The whole server, page or model manager is built from the settings, in this process. `shows` conversations which
settings a test is about. The last tests compare that table with the settings and with the documentation.
"""

import asyncio
import gc
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, fields
from datetime import timedelta
from glob import glob
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from pydantic_ai.messages import BinaryContent, ModelRequest, UserPromptPart

from agent import Agent, Chat, Limits, Seals, Telemetry
from agent.errors import ConfigError, Limited, LocalModelError, NotFound, SuspensionError
from agent.history import Conversation, Entry, now
from agent.history.sql.sqlite import SqliteStore
from agent.local.manager import LocalModels
from agent.models.catalog import load_catalog, use_table_in
from agent.providers.connection import base_url_variable, default_endpoint
from agent.providers.speech import speech_server
from agent.result import RunResult
from agent.settings import ROOT, LocalSettings, PublicSettings, Settings, UploadSettings, load_settings
from agent.suspension.ledger import SqliteLedger
from agent.suspension.suspended_run import Suspension
from agent.web.app import _build_services, create_app
from agent.web.chat.choices import Choices
from agent.web.chat.conversations import Conversations
from agent.web.chat.links import ChatLinks, LinkChoices
from agent.web.chat.model_menu import ModelMenu
from agent.web.chat.ratings import MOST_BYTES
from agent.web.chat.visitor import Visitor
from agent.web.middleware.visitor_cookie import VisitorCookies
from agent.web.server import LogLimit, serve
from bench.attack.client import Client
from tests.peers.install import MODULES
from tests.support import launched_servers
from tests.support.dialect_server import playing
from tests.support.embeddings import hashed_vectors
from tests.support.http_client import forged
from tests.support.hub_server import serving
from tests.support.media_files import picture
from tests.support.models import FakeLocalModels
from tests.support.scripted_server import Config, Running, running
from tests.support.toy_weights import from_hub
from tests.support.waiting import until

MODEL, LARGE = "Qwen/Qwen3-8B", "Qwen/Qwen3-235B-A22B"
ANN, BOB = Visitor(owner="ann", address="5.6.7.8"), Visitor(owner="bob", address="5.6.7.8")
ZOE, GUEST = Visitor(owner="zoe", address="9.9.9.9"), Visitor(owner="guest-1", guest=True)
LIMITED = "[public]\non = true\n"
PYODIDE = MODULES / "pyodide"
CALCULATE = "agent.tools.builtin:calculate"
HOSTED = [provider for provider in load_catalog().providers.values() if provider.base_url]
TOUCHED = set[str]()
"""The settings that the tests below cover."""

Test = TypeVar("Test", bound=Callable[..., object])
Write = Callable[..., Settings]


def shows(*names: str) -> Callable[[Test], Test]:
    """Record that a test shows the effect of these settings."""
    TOUCHED.update(names)
    return lambda test: test


SERVER = Config(models=(MODEL,), rate=0)


@pytest.fixture(autouse=True)
def _no_other_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove the variables of the user who runs the tests. Nothing is downloaded unless a test allows it."""
    for name in documented():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "unsent"))  # the app sets it, and pytest restores it


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Running) -> Write:
    """Write app.toml, set variables, and load the settings. Each call starts from the defaults."""

    def write(text: str = "", **env: str) -> Settings:
        (tmp_path / "app.toml").write_text(text)
        given = {"VLLM_BASE_URL": server.base_url, "SWITCHBOARD_DATA": str(tmp_path / "data"), **env}
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        return load_settings(tmp_path / "app.toml")

    return write


@dataclass
class Chats:
    """The services that answer messages, in this process."""

    conversations: Conversations
    said: list[str]

    async def ask(
        self, text: str = "!text Hi.", who: Visitor = ANN, files: Sequence[str] = (), **choices: Any
    ) -> RunResult:
        """Send a message in a new conversation, and wait for the end of the answer."""
        live = await self.conversations.send(who, None, {"text": text, "files": [*files]}, Choices(**choices))
        assert live is not None
        async with asyncio.timeout(30):
            return await live.run


@dataclass
class Page(Chats):
    """A running page in this process, without a socket."""

    http: httpx.AsyncClient

    async def upload(self, *sizes: int, guest: bool = False) -> httpx.Response:
        """Upload files of these sizes, as a visitor with a cookie or as a guest."""
        await self.http.get("/")
        if guest:
            self.http.cookies.clear()
        files = [("files", (f"{number}.txt", b"x" * size)) for number, size in enumerate(sizes)]
        return await self.http.post("/gradio_api/upload", files=files)


@asynccontextmanager
async def chats(settings: Settings) -> AsyncIterator[Chats]:
    """Build the services of the app without its page and routes, which take most of the time of its start."""
    said = list[str]()
    services = await _build_services(settings, said.append)
    try:
        await services.models.ready()
        yield Chats(services.conversations, said)
    finally:
        await services.aclose()


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Page]:
    """Build the app and start its background tasks."""
    said, before = list[str](), gc.get_threshold()
    app = await create_app(settings, say=said.append)
    transport = httpx.ASGITransport(app=app)
    try:
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:7860") as http,
        ):
            await app.state.conversations.models.local.ready()
            yield Page(app.state.conversations, said, http)
    finally:
        gc.set_threshold(*before)  # the app changes it


def sent(server: Running) -> dict[str, Any]:
    """Return the last request to the model."""
    return server.journal()[-1]["body"]


@pytest.fixture(autouse=True)
def unlimited_log() -> Iterator[None]:
    """Undo the limit that a served page sets on this process's log handlers, which belong to pytest."""
    yield
    for handler in logging.getLogger().handlers + logging.getLogger("uvicorn").handlers:
        for limit in [one for one in handler.filters if isinstance(one, LogLimit)]:
            handler.removeFilter(limit)


# --- [server] and its variables ---------------------------------------------------------------------------------------


@contextmanager
def taken(host: str) -> Iterator[int]:
    """Listen on a port of this host."""
    with socket.create_server((host, 0)) as other:
        yield int(other.getsockname()[1])


@shows("server.host", "server.port", "GRADIO_SERVER_NAME", "GRADIO_SERVER_PORT")
@pytest.mark.parametrize("where", ["file", "environment"])
def test_host_and_port_are_listened_on(write: Write, where: str) -> None:
    with taken("127.0.0.2") as port:
        if where == "file":
            settings = write(f'[server]\nhost = "127.0.0.2"\nport = {port}')
        else:
            settings = write(GRADIO_SERVER_NAME="127.0.0.2", GRADIO_SERVER_PORT=str(port))
        said = list[str]()

        def say(line: str) -> None:
            said.append(line)
            assert "cannot be used" in line

        assert serve(settings, say=say) == 1
    assert said[0].startswith(f"127.0.0.2:{port} cannot be used: Address already in use")


@contextmanager
def undone() -> Iterator[None]:
    """Undo at the end the settings that a server makes for its whole process."""
    signals, before = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP), gc.get_threshold()
    handlers = [signal.getsignal(one) for one in signals]
    try:
        yield
    finally:
        for one, handler in zip(signals, handlers, strict=True):
            signal.signal(one, handler)
        gc.set_threshold(*before)


@pytest.mark.slow
@shows("server.drain_seconds", "SHARE", "GRADIO_SHARE", "FORWARDED_ALLOW_IPS")
def test_share_proxies_and_drain_of_a_served_page(
    write: Write, server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "none"))
    monkeypatch.setenv("GRADIO_SHARE_SERVER_ADDRESS", "127.0.0.1:9")
    settings = write("[server]\ndrain_seconds = 3", GRADIO_SERVER_PORT="0", SHARE="1", FORWARDED_ALLOW_IPS="10.9.9.9")
    assert all(load_settings(env=env).public for env in ({"SHARE": "1"}, {"GRADIO_SHARE": "True"}))
    monkeypatch.setenv("GRADIO_MCP_SERVER", "True")
    monkeypatch.setenv("GRADIO_SSR_MODE", "False")
    said, up = list[str](), threading.Event()

    def say(line: str) -> None:
        said.append(line)
        if line.startswith("The page is at "):
            up.set()

    def visit() -> None:
        try:
            assert up.wait(30)
            url = next(line for line in said if line.startswith("The page is at ")).split()[-1]
            with Client(url, x_forwarded_for="5.6.7.8") as client:
                before = len(server.journal())
                client.begin("!tokens 9000 @20")
                server.wait_for(lambda journal: len(journal) > before and journal[-1]["sent"])
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    with undone():
        visitor = threading.Thread(target=visit)
        visitor.start()
        assert serve(settings, say=say) == 0
        visitor.join()
    assert "Going down: one answer may go on for 2 s. Press Ctrl-C again to end at once." in said
    assert [line for line in said if "no effect" in line] == [
        "GRADIO_MCP_SERVER has no effect: programs call /chat, or /v1 with their own tools."
    ]
    assert "Opening a share link; everybody who has it can use this page." in said
    assert any(line.startswith("Open to everybody: ") for line in said)
    assert "127.0.0.1 sends X-Forwarded-For but is not a trusted proxy" in caplog.text


@shows("server.title", "server.framed_by", "GRADIO_ROOT_PATH")
async def test_title_frames_and_path_are_those_of_the_page(write: Write) -> None:
    frames = 'framed_by = ["https://frames.example"]'
    async with opened(write(f'[server]\ntitle = "Mine alone"\n{frames}', GRADIO_ROOT_PATH="/chat")) as page:
        home = await page.http.get("/chat/")
    assert "<title>Mine alone</title>" in home.text
    assert home.headers["content-security-policy"].endswith(" https://frames.example")
    assert "; Path=/chat;" in home.headers["set-cookie"]


@shows("server.hosts", "SWITCHBOARD_HOSTS")
@pytest.mark.parametrize(
    ("text", "env"),
    [('[server]\nhosts = ["chat.example"]', {}), ("", {"SWITCHBOARD_HOSTS": "chat.example"}), ("", {})],
    ids=["file", "environment", "neither"],
)
async def test_only_named_hosts_are_served(write: Write, text: str, env: dict[str, str]) -> None:
    async with opened(write(text, **env)) as page:
        home = await page.http.get("/", headers={"host": "chat.example"})
    assert home.status_code == (200 if text or env else 421)


@shows("server.max_upload_bytes")
async def test_larger_file_is_refused(write: Write) -> None:
    async with opened(write("[server]\nmax_upload_bytes = 1_000_000")) as page:
        assert (await page.upload(900_000)).status_code == 200
        refused = await page.upload(1_100_000)
    assert (refused.status_code, "larger than 1 MB" in refused.text) == (413, True)


@shows("server.fetch_from")
@pytest.mark.parametrize("allowed", [True, False])
async def test_picture_comes_from_a_named_private_host(write: Write, allowed: bool) -> None:
    with serving(files={"/red.png": picture("PNG")}) as site:
        host = site.url.removeprefix("http://")
        async with opened(write(f'[server]\nfetch_from = ["{host}"]' if allowed else "")) as page:
            await page.http.get("/")  # which sets the visitor's cookie
            got = await page.http.post("/pictures", json={"url": f"{site.url}/red.png"})
    assert got.status_code == (200 if allowed else 400)


@shows("server.grace_seconds")
async def test_unwatched_public_answer_ends_after_grace(write: Write) -> None:
    async with chats(write(f"[server]\ngrace_seconds = 0.3\n{LIMITED}")) as page:
        live = await page.conversations.send(ANN, None, {"text": "!tokens 9000 @20"}, Choices())
        assert live is not None
        async with asyncio.timeout(30):
            result = await live.run
    assert (result.finish_reason, live.run.cancel_reason) == ("cancelled", "client_disconnect")


@shows("server.key_seconds")
async def test_typed_key_is_forgotten(write: Write) -> None:
    async with chats(write("[server]\nkey_seconds = 0.3")) as page:
        keys = page.conversations.models.keys
        keys.put("ann", "openai", "sk-of-ann")
        assert keys.get("ann", "openai") == "sk-of-ann"
        await until(lambda: keys.get("ann", "openai") is None)


# --- [history] and [uploads] ------------------------------------------------------------------------------------------


@shows("history.store", "history.data_dir", "SWITCHBOARD_STORE", "SWITCHBOARD_DATA")
@pytest.mark.parametrize(
    ("text", "env", "stored"),
    [
        ("", {}, True),
        ('[history]\nstore = "memory"', {}, False),
        ("", {"SWITCHBOARD_STORE": "memory"}, False),
        ('[history]\ndata_dir = "FOLDER/other"', {"SWITCHBOARD_DATA": ""}, True),
        ("", {"SWITCHBOARD_DATA": "FOLDER/other"}, True),
    ],
    ids=["usual", "memory", "memory by environment", "folder", "folder by environment"],
)
async def test_history_is_stored_where_it_should_be(
    write: Write, tmp_path: Path, text: str, env: dict[str, str], stored: bool
) -> None:
    given = {name: value.replace("FOLDER", str(tmp_path)) for name, value in env.items()}
    async with chats(write(text.replace("FOLDER", str(tmp_path)), **given)) as page:
        await page.ask()
        assert (await page.conversations.list.page("ann")).rows
    data, unused = tmp_path / "data", tmp_path / "other"
    if "other" in text + str(env):
        data, unused = unused, data
    assert ((data / "history.sqlite").exists(), data.exists(), unused.exists()) == (stored, True, False)


@shows("history.media", "SWITCHBOARD_MEDIA")
@pytest.mark.parametrize(
    ("text", "env", "folder"),
    [
        ("", {}, "data/media"),
        ('[history]\nmedia = "file:FOLDER/other"', {}, "other"),
        ('[history]\nmedia = "file:FOLDER/other"', {"SWITCHBOARD_MEDIA": "memory:"}, None),
    ],
    ids=["usual", "folder", "memory by environment"],
)
async def test_files_are_stored_where_they_should_be(
    write: Write, tmp_path: Path, text: str, env: dict[str, str], folder: str | None
) -> None:
    picture = BinaryContent(b"data", media_type="image/png")
    async with chats(write(text.replace("FOLDER", str(tmp_path)), **env)) as page:
        id_ = await page.conversations.media.add("ann", picture, "message")
        assert (await page.conversations.media.read("ann", id_)).data == picture.data
    found = glob(f"{tmp_path}/**/{id_}", recursive=True)
    assert found == ([f"{tmp_path}/{folder}/ann/{id_}"] if folder else [])


@shows("history.keep_days", "history.guest_hours", "public.keep_days")
@pytest.mark.parametrize(
    ("text", "who", "kept"),
    [
        ("[history]\nkeep_days = 3", ANN, timedelta(days=3)),
        ("[history]\nguest_hours = 5", GUEST, timedelta(hours=5)),
        (f"[history]\nkeep_days = 3\n{LIMITED}keep_days = 9", ANN, timedelta(days=9)),
    ],
    ids=["visitor", "guest", "public"],
)
async def test_conversation_expires(write: Write, text: str, who: Visitor, kept: timedelta) -> None:
    settings = write(text)
    async with chats(settings) as page:
        await page.ask(who=who)
    async with aclosing(await SqliteStore.open(settings.data_dir / "history.sqlite")) as store:
        [conversation] = await store.list(who.owner)
    assert conversation.expires_at is not None
    assert abs(conversation.expires_at - now() - kept) < timedelta(minutes=1)


@shows("history.link_days", "public.links")
@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("", timedelta(days=30)),
        ("[history]\nlink_days = 3", timedelta(days=3)),
        ("[history]\nlink_days = 0", None),
        (f"{LIMITED}links = true", timedelta(days=30)),
        (LIMITED, NotFound),
    ],
    ids=["usual", "days", "always", "public", "off"],
)
async def test_links_are_allowed_and_expire(write: Write, text: str, kept: timedelta | type[NotFound] | None) -> None:
    settings = write(text)
    async with aclosing(await SqliteStore.open(settings.data_dir / "history.sqlite")) as store:
        entry = Entry(parent_id=None, message=ModelRequest([UserPromptPart("Hello")]))
        conversation = await store.save(Conversation(owner="ann", head_id=entry.id), [entry])
        links = ChatLinks(store, settings)
        if kept is NotFound:
            with pytest.raises(NotFound):
                await links.list("ann", conversation.id)
            return
        _, link = await links.create("ann", conversation.id, LinkChoices(days=links.default_days))
        assert link.expires_at == (link.created_at + kept if isinstance(kept, timedelta) else None)


@shows("history.housekeeping_minutes", "uploads.minutes", "GRADIO_TEMP_DIR")
async def test_unsent_file_is_removed_again_and_again(write: Write, tmp_path: Path) -> None:
    text = "[history]\nhousekeeping_minutes = 0.002\n[uploads]\nminutes = 0"
    async with opened(write(text, GRADIO_TEMP_DIR=str(tmp_path / "unsent"))) as page:
        for _ in range(2):  # the first round comes at the start, for any interval
            [path] = (await page.upload(100)).json()
            assert Path(path).is_relative_to(tmp_path / "unsent")
            await until(lambda path=path: not Path(path).exists())


UPLOADS: dict[str, tuple[str, list[tuple[int, ...]], bool, str]] = {
    "files_per_request": ("2", [(1, 1), (1, 1, 1)], False, "At most 2 files can be attached at once."),
    "mb_per_request": ("0.5", [(200_000,), (300_000, 300_000)], False, "At most 0.5 MB can be attached at once."),
    "mb_per_visitor": ("0.5", [(300_000,), (300_000,)], False, "0.5 MB of these is the most"),
    "mb_of_guests": ("0.5", [(300_000,), (300_000,)], True, "may attach 0.5 MB together"),
    "mb_in_all": ("0.5", [(300_000,), (300_000,)], False, "There is no room for more files at the moment."),
    "disk_percent": ("0", [(1,)], False, "There is no room for more files at the moment."),
}
"""The settings of [uploads]: a value, file sizes for each request, if a guest sends them, and the last answer."""


@shows(*(f"uploads.{name}" for name in UPLOADS))
@pytest.mark.parametrize("name", UPLOADS)
async def test_upload_meets_its_limit(write: Write, name: str) -> None:
    value, requests, guest, sentence = UPLOADS[name]
    async with opened(write(f"[uploads]\n{name} = {value}")) as page:
        answers = [await page.upload(*sizes, guest=guest) for sizes in requests]
    assert [answer.status_code for answer in answers] == [200] * (len(requests) - 1) + [413]
    assert sentence in answers[-1].text


@shows("history.ratings_dataset")
async def test_ratings_go_to_a_dataset(write: Write) -> None:
    """`test_ratings_dataset` shows what the dataset gets."""
    async with opened(write('[history]\nratings_dataset = "ada/ratings"')) as page:
        assert "export const rates = true" in await texts_of(page)
    async with opened(write()) as page:
        assert "export const rates = false" in await texts_of(page)
    with pytest.raises(ConfigError, match="owner/name"):
        write('[history]\nratings_dataset = "ratings"')


async def texts_of(page: Page) -> str:
    """Return the module with the texts and facts of the page."""
    [address] = re.findall(r"/assets/texts-en-\w+\.js", (await page.http.get("/")).text)[:1]
    return (await page.http.get(address)).text


@shows("history.ratings")
async def test_rating_names_nobody_and_has_a_text_only_if_it_may(write: Write, tmp_path: Path) -> None:
    async with opened(write('[history]\nratings = "ratings.jsonl"')) as page:
        assert (await page.http.get("/")).status_code == 200
        begun = (await page.http.post("/conversations", json={"text": "!text A secret."})).json()
        async with asyncio.timeout(30):
            await page.conversations.live_runs.close(30)
        chat = f"/conversations/{begun['conversation']}"
        [turn] = (await page.http.get(f"{chat}?format=blocks")).json()["turns"]
        path = f"{chat}/messages/{turn['id']}/rating"
        for body in ({"good": True, "reason": " Short. "}, {"good": False, "text": True}):
            assert (await page.http.post(path, json=body)).status_code == 204
        assert (await page.http.post(path, json={"good": 1})).status_code == 400
        assert (await page.http.post(path, json={"good": True, "reason": "x" * 1001})).status_code == 400
        file = tmp_path / "data" / "ratings.jsonl"
        assert file.stat().st_mode & 0o077 == 0
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        day, model = lines[0]["day"], f"vllm:{MODEL}"
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", day)
        assert lines == [
            {"day": day, "model": model, "rating": "good", "reason": "Short."},
            {
                **{"day": day, "model": model, "rating": "bad", "reason": ""},
                **{"message": "!text A secret.", "answer": "A secret."},
            },
        ]
        with file.open("r+b") as full:
            full.truncate(MOST_BYTES)
        assert (await page.http.post(path, json={"good": True})).status_code == 429
        assert file.stat().st_size == MOST_BYTES
    async with opened(write()) as page:
        assert (await page.http.get("/")).status_code == 200
        assert (await page.http.post(path, json={"good": True})).status_code == 404


# --- [agent] ----------------------------------------------------------------------------------------------------------


@shows("agent.system_prompt")
async def test_system_prompt_reaches_the_model(write: Write, server: Running) -> None:
    async with chats(write('[agent]\nsystem_prompt = "You are {model}, and brief."')) as page:
        await page.ask()
    assert sent(server)["messages"][0] == {"role": "system", "content": "You are Qwen3-8B, and brief."}


@shows("agent.tools", "public.public_tools")
@pytest.mark.parametrize(
    "text",
    [
        f'[agent]\ntools = ["{CALCULATE}"]',
        f'[agent]\ntools = ["{CALCULATE}", "tests.support.slow_tools:nap"]\n{LIMITED}public_tools = ["{CALCULATE}"]',
    ],
    ids=["private", "public"],
)
async def test_named_tools_are_offered(write: Write, server: Running, text: str) -> None:
    async with chats(write(text)) as page:
        await page.ask(tools=True)
    assert [tool["function"]["name"] for tool in sent(server)["tools"]] == ["calculate"]


@shows("agent.titles")
@pytest.mark.parametrize(("titles", "requests"), [("true", 2), ("false", 1)])
async def test_title_is_one_more_request(write: Write, server: Running, titles: str, requests: int) -> None:
    before = len(server.journal())
    async with chats(write(f"[agent]\ntitles = {titles}")) as page:
        await page.ask()
        await asyncio.to_thread(server.wait_for, lambda journal: len(journal) - before >= requests)
    assert len(server.journal()) - before == requests


@shows("agent.artifacts")
@pytest.mark.parametrize(
    ("artifacts", "model", "is_told"), [("true", LARGE, True), ("false", LARGE, False), ("true", MODEL, False)]
)
async def test_large_models_are_told_of_artifacts(write: Write, artifacts: str, model: str, is_told: bool) -> None:
    with running(Config(models=(model,), rate=0)) as large:
        async with chats(write(f"[agent]\nartifacts = {artifacts}", VLLM_BASE_URL=large.base_url)) as page:
            await page.ask()
        said = sent(large)["messages"][0]["content"]
    assert ("```html title=" in said) is is_told


@shows("agent.summaries")
@pytest.mark.parametrize(("summaries", "is_made"), [("auto", True), ("offer", False), ("off", False)])
async def test_full_chat_is_summarized_only_by_itself(write: Write, summaries: str, is_made: bool) -> None:
    with running(Config(models=(MODEL,), rate=0, max_model_len=4096)) as small:
        async with chats(write(f'[agent]\nsummaries = "{summaries}"', VLLM_BASE_URL=small.base_url)) as page:
            chat = ""
            for name in ("apple", "pear", "plum"):
                text = {"text": f"{name} {'x y ' * 700}"}
                live = await page.conversations.send(ANN, chat or None, text, Choices(max_tokens=512))
                assert live is not None
                await live.wait_for_end()
                chat = live.conversation_id
            use = await page.conversations.window(ANN.owner, chat, Choices(max_tokens=512))
        assert use is not None
        assert (use.summary is not None) is is_made
        assert use.can_summarize is (summaries != "off")


WEB = 'search = "http://127.0.0.1:9"'


@shows("agent.search", "public.search", "SWITCHBOARD_SEARCH")
@pytest.mark.parametrize(
    ("text", "env", "is_offered"),
    [
        (f"[agent]\n{WEB}", {}, True),
        ("", {"SWITCHBOARD_SEARCH": "http://127.0.0.1:9"}, True),
        ("", {}, False),
        ('[agent]\nsearch = "own"', {}, False),
        (f"[agent]\n{WEB}\n{LIMITED}", {}, False),
        (f"[agent]\n{WEB}\n{LIMITED}search = true", {}, True),
    ],
    ids=["a server", "by a variable", "none", "the model's own", "public", "public, allowed"],
)
async def test_model_searches_the_web_only_where_it_may(
    write: Write, server: Running, text: str, env: dict[str, str], is_offered: bool
) -> None:
    async with chats(write(text, **env)) as page:
        await page.ask(web=True)
        offered = [tool["function"]["name"] for tool in sent(server).get("tools", ())]
        await page.ask()
    assert offered == (["web_search", "read_page"] if is_offered else [])
    assert "tools" not in sent(server), "the visitor's switch is off"


@shows("server.python")
@pytest.mark.parametrize("place", [str(PYODIDE), "https://cdn.example/py/", ""], ids=["folder", "site", "none"])
async def test_python_runs_with_the_owners_files(write: Write, place: str) -> None:
    async with opened(write(f'[server]\npython = "{place}"')) as page:
        home = await page.http.get("/")
        texts = re.search(r"/assets/texts-en-\w+\.js", home.text)
        assert texts
        address = re.search(r'export const python = "(.*)";', (await page.http.get(texts[0])).text)
        assert address
        own = await page.http.get(f"/{address[1]}pyodide.mjs") if address[1].startswith("pyodide/") else None
    assert bool(address[1]) is bool(place)
    assert (own is not None and "loadPyodide" in own.text) is (place == str(PYODIDE))
    assert ("https://cdn.example/py/" in home.headers["content-security-policy"]) is ("cdn" in place)


@shows("agent.embeddings")
@pytest.mark.slow
async def test_long_documents_of_the_page_are_searched_by_vectors(
    write: Write, server: Running, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text(f"{'The committee met. ' * 36}\n" * 1_000 + "A sublease is allowed.\n")
    ask = '!tool search_files {"query": "leasing"} !text Found.'
    with running(Config(models=(MODEL,), embed=hashed_vectors)) as vectors:
        for embeddings, way in ((vectors.base_url, "about something"), ("", "with certain words")):
            before = len(vectors.server.embedded)
            async with chats(write(f'[agent]\nembeddings = "{embeddings}"')) as page:
                result = await page.ask(ask, files=[str(tmp_path / "notes.txt")], tools=True)
            assert ("sublease" in str(result.context.messages[-2])) == bool(embeddings)
            assert (len(vectors.server.embedded) > before) == bool(embeddings)
            assert way in str(sent(server)["tools"])


@shows("agent.speech", "agent.speech_voice", "SPEECH", "SPEECH_API_KEY")
async def test_answers_are_spoken_by_the_named_server(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEECH_API_KEY", "sk-voice")
    with running(Config(models=(MODEL,), speak=lambda _text: b"")) as server:
        for named, env in ((f'speech = "{server.base_url}#tts"\n', {}), ("", {"SPEECH": f"{server.base_url}#tts"})):
            async with opened(write(f'[agent]\n{named}speech_voice = "alloy"', **env)) as page:
                cookie = (await page.http.get("/")).headers["set-cookie"].partition(";")[0]
                answer = await page.http.post("/speech", json={"text": "Hi."}, headers={"cookie": cookie})
            assert answer.status_code == 502, "it is asked"
    expected = {"model": "tts", "voice": "alloy", "input": "Hi.", "response_format": "mp3"}
    assert server.server.spoken == [expected | {"authorization": "Bearer sk-voice"}] * 2


async def test_owner_of_a_public_page_is_told_of_speech(write: Write) -> None:
    for speech in ("http://127.0.0.1:9/v1", ""):
        async with opened(write(f'[agent]\nspeech = "{speech}"\n[public]\non = true')) as page:
            told = [
                line for line in page.said if line.endswith("The server of SPEECH reads answers aloud for everybody.")
            ]
        assert len(told) == bool(speech)


@pytest.mark.parametrize("name", ["nobody:tts", "anthropic:tts", "openai:tts", "http://", "tts"])
def test_wrong_name_of_speech_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="SPEECH"):
        speech_server(name, "", {})


@shows("agent.max_steps")
async def test_steps_are_limited(write: Write, server: Running) -> None:
    async with chats(write(f'[agent]\nmax_steps = 2\ntools = ["{CALCULATE}"]')) as page:
        before = len(server.journal())
        result = await page.ask('!loop calculate {"expression": "1 + 1"}', tools=True)
    assert (result.finish_reason, len(server.journal()) - before) == ("limit", 2)


@shows("agent.retries")
@pytest.mark.parametrize(("retries", "ended"), [(0, "error"), (1, "stop")])
async def test_retries_are_counted(write: Write, retries: int, ended: str) -> None:
    async with chats(write(f"[agent]\nretries = {retries}")) as page:
        result = await page.ask(f"!fail 1 503 0 !text After {retries}.")
    assert result.finish_reason == ended


@shows("agent.run_seconds")
async def test_time_of_a_run_is_limited(write: Write) -> None:
    async with chats(write("[agent]\nrun_seconds = 0.5")) as page:
        result = await page.ask("!wait 60 !text Late.")
    assert (result.finish_reason, "0.5 s" in result.note.detail) == ("limit", True), result.note.detail


@shows("agent.tool_seconds")
async def test_time_of_a_tool_is_limited(write: Write) -> None:
    async with chats(write('[agent]\ntool_seconds = 0.3\ntools = ["tests.support.slow_tools:nap"]')) as page:
        result = await page.ask('!tool nap {"seconds": 60} !text Done.', tools=True)
    assert result.finish_reason == "stop"
    assert "0.3 s" in str(result.context.messages), result.context.messages


# --- [public] ---------------------------------------------------------------------------------------------------------


@shows("public.on", "public.messages", "public.messages_in_all", "public.answers_each", "public.answers")
async def test_owner_is_told_what_strangers_may_spend(write: Write) -> None:
    async with opened(write(f"{LIMITED}messages = 3\nmessages_in_all = 5\nanswers_each = 6\nanswers = 7")) as page:
        [line] = [line for line in page.said if line.startswith("Open to everybody")]
    assert "3 messages a minute for each visitor, 5 for all; 6 answers at once for each, 7 for all" in line


RATES: dict[str, tuple[tuple[Visitor, ...], bool]] = {
    "messages": ((ANN, ANN), False),
    "messages_per_address": ((ANN, BOB), False),
    "messages_in_all": ((ANN, ZOE), False),
    "answers_each": ((ANN, ANN), True),
    "answers_per_address": ((ANN, BOB), True),
    "answers": ((ANN, ZOE), True),
}
"""The rates of [public]: two visitors (the second is refused at limit 1), and if the first answer still runs."""


@shows(*(f"public.{name}" for name in RATES))
@pytest.mark.parametrize("name", RATES)
async def test_rate_is_limited(write: Write, name: str) -> None:
    (first, second), at_once = RATES[name]
    async with chats(write(f"{LIMITED}{name} = 1")) as page:
        reserve = page.conversations.runs.rate_limiter.reserve_answer
        place = reserve(first)
        if not at_once:
            place.release()
        with pytest.raises(Limited):
            reserve(second)
        if at_once:
            place.release()
            reserve(second).release()


STORED: dict[str, tuple[int, Visitor]] = {
    "stored_mb_per_visitor": (0, ANN),
    "stored_mb_of_guests": (0, GUEST),
    "stored_mb_in_all": (0, ANN),
    "stored_disk_percent": (0, ANN),
}
"""The storage limits of [public]: a value, and the visitor it refuses."""


@shows(*(f"public.{name}" for name in STORED))
@pytest.mark.parametrize("name", STORED)
async def test_storage_is_limited(write: Write, server: Running, name: str) -> None:
    value, who = STORED[name]
    before = len(server.journal())
    async with chats(write(f"{LIMITED}{name} = {value}")) as page:
        with pytest.raises(Limited):
            await page.ask(who=who)
    assert len(server.journal()) == before


@shows("public.models")
async def test_owner_lends_keys_for_named_models(write: Write) -> None:
    async with chats(write(f'{LIMITED}models = ["openai:gpt-6-luna"]', OPENAI_API_KEY="of-the-owner")) as page:
        menu = page.conversations.models
        lent = {spec.id for spec in menu.specs() if spec.provider == "openai" and not menu.key_missing("ann", spec)}
    assert lent == {"openai:gpt-6-luna"}


@shows("public.api", "SWITCHBOARD_API_KEY")
@pytest.mark.parametrize(
    ("text", "env", "statuses"),
    [
        ("", {}, [200, 200]),
        (LIMITED, {}, [404, 404]),
        (f"{LIMITED}api = true\nmessages = 1", {}, [200, 429]),
        ("", {"SWITCHBOARD_API_KEY": "mine"}, [200, 200]),
        ("", {"SWITCHBOARD_API_KEY": "another"}, [401, 401]),
        (LIMITED, {"SWITCHBOARD_API_KEY": "mine"}, [404, 404]),
    ],
    ids=["private", "public", "allowed", "key", "wrong key", "public with key"],
)
async def test_programs_are_answered_if_allowed(
    write: Write, text: str, env: dict[str, str], statuses: list[int]
) -> None:
    async with opened(write(text, **env)) as page:
        page.http.headers["authorization"] = "Bearer mine"
        body = {"messages": [{"role": "user", "content": "!text Hi."}]}
        answers = [await page.http.post("/v1/chat/completions", json=body) for _ in statuses]
        assert [answer.status_code for answer in answers] == statuses
        assert all(answer.json()["error"]["message"] for answer in answers if answer.status_code != 200)
        assert (await page.http.get("/v1/models")).status_code == statuses[0]


# --- [local] and its variables ----------------------------------------------------------------------------------------


@asynccontextmanager
async def local(settings: Settings, *better: Any) -> AsyncIterator[tuple[LocalModels, list[str]]]:
    said = list[str]()
    models = LocalModels(settings.local, say=said.append, better=better)
    models.start()
    try:
        yield models, said
    finally:
        await models.aclose()


@shows("VLLM_BASE_URL", "VLLM_API_KEY")
async def test_named_server_gets_its_key(write: Write) -> None:
    with running(Config(api_key="right")) as server:
        for key, refused in (("right", False), ("wrong", True)):
            async with local(write(VLLM_BASE_URL=server.url, VLLM_API_KEY=key)) as (models, _):
                if refused:
                    with pytest.raises(LocalModelError, match="was rejected"):
                        await models.ready()
                else:
                    assert (await models.ready())[0].endpoint.base_url == server.base_url


@shows("MODEL", "LOCAL_MODEL")
async def test_named_models_are_looked_for(write: Write, tmp_path: Path) -> None:
    file = tmp_path / "mine.gguf"
    async with local(write(VLLM_BASE_URL="", MODEL="org/model", LOCAL_MODEL=str(file))) as (models, said):
        with pytest.raises(LocalModelError, match=re.escape(str(file))):
            await models.ready()
    assert any("org/model" in line for line in said), said


@pytest.mark.weights
@pytest.mark.slow
@shows("local.cache_dir", "SWITCHBOARD_CACHE", "HF_ENDPOINT")
@pytest.mark.parametrize("where", ["file", "environment"])
async def test_weights_come_from_the_hub_into_the_cache(write: Write, tmp_path: Path, where: str) -> None:
    cache, data = tmp_path / "weights-cache", b"no model" * 1000
    with serving(files={"/org/toy/resolve/rev/toy.gguf": data}) as hub:
        text = f'[local]\ncache_dir = "{cache}"' if where == "file" else ""
        env = {} if where == "file" else {"SWITCHBOARD_CACHE": str(cache)}
        async with local(write(text, VLLM_BASE_URL="", HF_ENDPOINT=hub.url, **env), from_hub(data)) as _:
            await until(lambda: list(cache.rglob("toy.gguf")))
    assert hub.asked


@pytest.mark.weights
@pytest.mark.slow
@shows("local.downloads", "SWITCHBOARD_OFFLINE")
@pytest.mark.parametrize(("text", "env"), [("[local]\ndownloads = false", {}), ("", {"SWITCHBOARD_OFFLINE": "1"})])
async def test_nothing_is_downloaded(write: Write, text: str, env: dict[str, str], tmp_path: Path) -> None:
    with serving(files={"/org/toy/resolve/rev/toy.gguf": b"x"}) as hub:
        given = {"VLLM_BASE_URL": "", "HF_ENDPOINT": hub.url, "SWITCHBOARD_CACHE": str(tmp_path / "cache"), **env}
        async with local(write(text, **given), from_hub(b"x")) as (_, said):
            await until(lambda: any("Connect once to fetch a better model" in line for line in said))
    assert hub.asked == []


@pytest.mark.weights
@pytest.mark.slow
@shows("local.wait_seconds")
async def test_small_model_stands_in_after_a_wait(write: Write, tmp_path: Path) -> None:
    data = b"x" * 1000
    with serving(files={"/org/toy/resolve/rev/toy.gguf": data}) as hub:
        hub.gate.clear()
        env = {"VLLM_BASE_URL": "", "HF_ENDPOINT": hub.url, "SWITCHBOARD_CACHE": str(tmp_path / "cache")}
        async with local(write("[local]\nwait_seconds = 1", **env), from_hub(data)) as (_, said):
            await until(lambda: "This takes longer than 1 s: SmolLM2 answers meanwhile." in said)


@pytest.mark.slow
@shows("local.answers")
async def test_answers_at_once_are_those_of_llama_cpp(write: Write, tmp_path: Path) -> None:
    (tmp_path / "toy.gguf").write_bytes(b"GGUF")
    with launched_servers.llama_cpp(tmp_path) as started:
        settings = write("[local]\nanswers = 2", VLLM_BASE_URL="", LOCAL_MODEL=str(tmp_path / "toy.gguf"))
        async with local(settings) as (models, _):
            assert (await models.ready())[0].endpoint.slots == 2
    assert started.how["parameters"]["n_parallel"] == 2


# --- variables that are read elsewhere --------------------------------------------------------------------------------


@pytest.mark.slow
@shows(*(name for provider in HOSTED for name in (*provider.key_names, base_url_variable(provider.id))))
@pytest.mark.parametrize("provider", [provider.id for provider in HOSTED])
async def test_provider_gets_key_at_its_address(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = load_catalog().providers[provider]
    for name in found.key_names:
        with playing() as server, monkeypatch.context() as patch:
            address = server.url + ("/v1" if found.base_url.endswith("/v1") else "")
            patch.setenv(base_url_variable(provider), address)
            patch.setenv(name, f"key-in-{name}")
            async with Agent("some-model", provider=provider, limits=Limits(retries=0)) as agent:
                await agent.ask("Hi.")
            assert any(f"key-in-{name}" in value for value in server.requests[0].headers.values())


@shows("SWITCHBOARD_SECRET")
def test_processes_share_the_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHBOARD_SECRET", "shared by all processes")
    visitor, cookie = VisitorCookies.in_folder(tmp_path / "one").mint()
    assert VisitorCookies.in_folder(tmp_path / "two").read(cookie) == visitor
    assert VisitorCookies.in_folder(tmp_path / "two").read(forged(cookie)) is None
    monkeypatch.setenv("SWITCHBOARD_SECRET", "another secret of them")
    assert VisitorCookies.in_folder(tmp_path / "one").read(cookie) is None


@shows("SUSPENSION_KEYS", "SWITCHBOARD_TELEMETRY")
async def test_agent_takes_seal_keys_and_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUSPENSION_KEYS", f"first:{'a' * 32},second:{'b' * 32}")
    monkeypatch.setenv("SWITCHBOARD_TELEMETRY", "content")
    async with Agent(MODEL, provider="vllm", base_url="http://127.0.0.1:9/v1") as agent:
        assert list(agent.seals.keys) == ["first", "second"]
        assert agent.telemetry == Telemetry(content=True)
    assert list(Seals().keys) == ["first", "second"]


@shows("SUSPENSION_LEDGER")
async def test_used_runs_are_remembered_in_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUSPENSION_LEDGER", f"sqlite:///{tmp_path}/used.db")
    suspension = Suspension(session_id="s", messages=(), pending=())
    await Seals().use(suspension)
    with pytest.raises(SuspensionError, match="resumed already"):
        await Seals(ledger=SqliteLedger(tmp_path / "used.db")).use(suspension)


@shows("EMBEDDINGS", "EMBEDDINGS_API_KEY")
def test_chat_is_searched_by_vectors_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes.md").write_text("A sublease is allowed.")
    with running(Config(models=(MODEL,), api_key="sk-vectors", embed=hashed_vectors)) as server:
        agent = Agent(MODEL, base_url=server.base_url, api_key="sk-vectors")
        monkeypatch.setenv("EMBEDDINGS", server.base_url)
        for key, way in (("sk-vectors", "by vectors of"), ("sk-wrong", "because there are no vectors")):
            monkeypatch.setenv("EMBEDDINGS_API_KEY", key)
            with Chat(agent) as chat:
                chat.say(["!text Done.", tmp_path / "notes.md"])
                assert way in chat.search("leasing").note


OWN_TABLE = """
[providers.box]
label = "The box"
dialect = "chat"
base_url = "http://box.invalid:8000/v1"
open_weights = true
image_types = ["image/png", "image/jpeg"]

[[models]]
provider = "box"
names = ["acme-1"]
tools = "none"
menu = true

[[models]]
provider = "openai"
names = ["acme-2"]
"""


@shows("SWITCHBOARD_MODELS")
def test_own_table_adds_providers_and_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "models.toml"
    file.write_text(OWN_TABLE)
    load_catalog.cache_clear()
    assert load_catalog().unlisted == ()  # no server of the shipped table is asked unless it is chosen
    load_catalog.cache_clear()
    try:
        with monkeypatch.context() as patched:
            patched.setenv("SWITCHBOARD_MODELS", str(file))
            catalog = load_catalog()
            assert catalog.find("acme-1").tools == "none"
            assert catalog.find("acme-1") in catalog.menu()
            assert catalog.find("acme-2").provider == "openai"
            assert catalog.find("box:Qwen/Qwen3-8B").reasoning
            assert default_endpoint(catalog.providers["box"]).base_url == "http://box.invalid:8000/v1"
            assert catalog.unlisted == ()
            menu = ModelMenu(FakeLocalModels(), catalog, key_seconds=60, keys_taken=True)
            assert menu.missing("ann", catalog.find("acme-1")) == ""
            for wrong, words in (
                (
                    OWN_TABLE.replace("[providers.box]", "[providers.openai]"),
                    f"^{tmp_path.name}/models.toml, line 2: there is a provider 'openai'",
                ),
                (OWN_TABLE.replace('"acme-2"', '"gpt-6-luna"'), "two entries of this name"),
                (OWN_TABLE.replace("menu =", "menue ="), "unknown key 'menue'; perhaps 'menu'"),
            ):
                file.write_text(wrong)
                load_catalog.cache_clear()
                with pytest.raises(ConfigError, match=words):
                    load_catalog()
    finally:
        load_catalog.cache_clear()


def test_table_in_a_folder_leaves_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWITCHBOARD_MODELS", raising=False)
    (tmp_path / "models.toml").write_text(OWN_TABLE)
    try:
        use_table_in(tmp_path)
        assert load_catalog().find("acme-2").provider == "openai"
        assert "SWITCHBOARD_MODELS" not in os.environ
    finally:
        use_table_in(tmp_path / "none")
    assert "box" not in load_catalog().providers


async def test_servers_of_the_table_in_the_data_folder_are_asked(
    write: Write, tmp_path: Path, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWITCHBOARD_MODELS", "")
    (tmp_path / "data").mkdir()
    with running(Config(models=("other/model-7b",))) as second:
        tables = [
            f'[providers.{name}]\nlabel = "{name}"\ndialect = "chat"\nbase_url = "{url}"\nopen_weights = true\n'
            for name, url in (("one", second.base_url), ("two", second.base_url), ("none", "http://127.0.0.1:9/v1"))
        ]
        (tmp_path / "data" / "models.toml").write_text("\n".join(tables))
        try:
            async with opened(write()) as page:
                menu = page.conversations.models
                wanted = {f"vllm:{MODEL}", "one:other/model-7b", "two:other/model-7b"}
                await until(lambda: wanted <= {spec.id for spec in menu.specs()})
                assert (await page.ask(model="two:other/model-7b")).text == "Hi."
                await until(lambda: any("127.0.0.1:9" in line for line in page.said))
        finally:
            use_table_in(tmp_path / "none")


@pytest.mark.slow
@shows("SWITCHBOARD_CONFIG", "LOG_LEVEL")
def test_program_takes_config_and_log_level(tmp_path: Path) -> None:
    with taken("127.0.0.2") as port:
        (tmp_path / "other.toml").write_text(f'[server]\nhost = "127.0.0.2"\nport = {port}')
        # A file .env in the working folder adds to the environment.
        (tmp_path / ".env").write_text(
            f"export SWITCHBOARD_CONFIG='{tmp_path}/other.toml'\nLOG_LEVEL=ERROR # or INFO\n"
        )
        env, program = {**os.environ, "LOG_LEVEL": "DEBUG"}, [sys.executable, str(ROOT / "app.py")]
        done = subprocess.run(program, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split(" cannot")[0]) == (1, f"127.0.0.2:{port}")
    assert "DEBUG agent.web.server" in done.stderr


# --- the table is complete --------------------------------------------------------------------------------------------


def documented() -> set[str]:
    """Return the variables in the tables of the README and of docs/configuration.md, and the providers' variables."""
    pages = [(ROOT / name).read_text() for name in ("README.md", "docs/configuration.md")]
    cells = [row.split("|")[1] for page in pages for row in re.findall(r"^\| `[A-Z].*\|$", page, re.MULTILINE)]
    return {name for cell in cells for name in re.findall(r"`([A-Z][A-Z_]+)(?:=[01])?`", cell)} | {
        name for provider in HOSTED for name in (*provider.key_names, base_url_variable(provider.id))
    }


def keys(file: Path) -> set[str]:
    """Return the keys that the settings accept, by trying each name in each section."""
    sections = tomllib.loads((ROOT / "configs" / "app.toml").read_text())
    names = {field.name for kind in (Settings, LocalSettings, UploadSettings, PublicSettings) for field in fields(kind)}
    names |= {key for section in sections.values() for key in section}
    found = set[str]()
    for section in sections:
        for name in names:
            file.write_text(f"[{section}]\n{name} = 1")
            try:
                load_settings(file, {})
            except ConfigError as error:
                if "unknown key" in str(error):
                    continue
            found.add(f"{section}.{name}")
    return found


@pytest.mark.slow
def test_every_key_has_a_test_and_is_in_the_file(tmp_path: Path) -> None:
    accepted = keys(tmp_path / "app.toml")
    text = (ROOT / "configs" / "app.toml").read_text()
    assert accepted | documented() == TOUCHED
    assert {name.partition(".")[2] for name in accepted} == {*re.findall(r"^(?:# )?(\w+) = ", text, re.MULTILINE)}


class Asked(dict[str, str]):
    """An environment that conversations which names are read."""

    def __init__(self) -> None:
        self.names = set[str]()

    def get(self, key: str, default: Any = None) -> Any:
        self.names.add(key)
        return default


def test_every_variable_of_the_settings_is_documented(tmp_path: Path) -> None:
    env = Asked()
    load_settings(tmp_path / "none.toml", env)
    assert env.names - documented() == {"SPACE_ID"}  # the hub sets it
