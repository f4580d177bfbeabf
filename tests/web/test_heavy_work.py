"""Heavy work has places, which are counted in one step and given back when the work has ended, and is made in steps."""

import asyncio
import gc
import json
import sys
import threading
import tracemalloc
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from html import unescape
from pathlib import Path
from time import monotonic
from typing import Any, cast

import pytest
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from starlette.requests import Request

from agent.files.parts import quoted_file
from agent.files.store import MediaStore
from agent.history import Entry, now
from agent.history.codec import dumped
from agent.history.memory import MemoryStore
from agent.i18n.translator import Translator
from agent.rendering.html import LONGEST_WRITTEN, REST, REST_OF_LINK, pretty_json
from agent.settings import LocalSettings, Settings
from agent.system.threads import Threads
from agent.transfer.document import Block, blocks_of, title_of
from agent.transfer.html import EXPORTED, Frame, to_html
from agent.web import server as web_server
from agent.web.chat.conversation_list import ListRow
from agent.web.chat.links import ChatLinks, LinkChoices
from agent.web.chat.transcript import to_turns
from agent.web.chat.turns import LONGEST_MARKDOWN, MOST_HTML, newest_turns, render_turn
from agent.web.chat.views import ChatView
from agent.web.conversation_routes import ConversationRoutes, answering
from agent.web.health import LOOP_LATE_SECONDS, Watchdog
from agent.web.heavy_work import HeavyResponse, HeavyWork, RequestLimit, RequestSlot, TooManyRequests
from agent.web.link_routes import PAGES, LinkPageRoutes
from agent.web.middleware.visitor_cookie import CookieJar, VisitorCookies
from agent.web.run_event_routes import STREAMS_PER_OWNER, RunEventRoutes
from agent.web.transfer_routes import EXPORTS_A_MINUTE, EXPORTS_PER_OWNER, TransferRoutes
from tests.support.asgi_requests import asked, longest_step, never, running_app
from tests.support.gate_rows import gate_rows
from tests.support.history_laws import chain, prompt
from tests.support.history_stores import started
from tests.support.scripted_server import Running
from tests.support.waiting import until

ENGLISH = Translator("en")


class SlowStore(MemoryStore):
    """A store in which other requests can come between any two steps."""

    async def history(self, *arguments: Any, **named: Any) -> Any:
        await asyncio.sleep(0.01)
        return await super().history(*arguments, **named)

    async def entries(self, *arguments: Any, **named: Any) -> Any:
        await asyncio.sleep(0.01)
        return await super().entries(*arguments, **named)


def request(path: str, address: str | None = None, method: str = "GET", **params: str) -> Request:
    """Return a request as the middleware hands it on."""
    fixed = {"type": "http", "method": method, "path": path, "query_string": b"format=html", "root_path": ""}
    headers = [(b"host", b"chat.example")]
    return Request({**fixed, "headers": headers, "path_params": params, "state": {"address": address}}, never)


def export_routes(store: MemoryStore, folder: Path, limit: RequestLimit | None = None) -> TransferRoutes:
    nobody = cast(Any, None)
    return TransferRoutes(store, MediaStore(folder), nobody, nobody, lambda _: "ann", lambda name: name, limit)


async def hang_up(response: Any) -> None:
    """Run a response whose client has gone before the first byte."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(_: Any) -> None:
        pass

    await response(request("/").scope, receive, send)


async def read(response: Any) -> bytes:
    """Run a response whose client stays to the end."""
    body = bytearray()

    async def send(message: Any) -> None:
        body.extend(message.get("body", b""))

    await response(request("/").scope, never, send)
    return bytes(body)


async def test_two_exports_of_a_visitor_run_at_once_whatever_begins_together(tmp_path: Path) -> None:
    store = SlowStore()
    conversation, _ = await started(store, "Yes", owner="ann")
    routes = export_routes(store, tmp_path)
    asked = [routes.export_one(request("/export", conversation=conversation.id)) for _ in range(40)]
    answers = await asyncio.gather(*asked)
    taken = [answer for answer in answers if answer.status_code == 200]
    assert len(taken) == EXPORTS_PER_OWNER
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.headers["retry-after"] in bytes(refused.body).decode()
    await hang_up(taken[0])
    again = await asyncio.gather(
        *(routes.export_one(request("/export", conversation=conversation.id)) for _ in range(5))
    )
    assert [answer.status_code for answer in again].count(200) == 1


async def test_pages_of_links_are_counted_before_the_chat_is_read(tmp_path: Path) -> None:
    store, settings = SlowStore(), Settings(local=LocalSettings())
    links = ChatLinks(store, settings)
    conversation, _ = await started(store, "Yes", owner="ann")
    token, _ = await links.create("ann", conversation.id, LinkChoices(days=None))
    routes = LinkPageRoutes(links, cast(Any, None), MediaStore(tmp_path), settings)

    async def ask(count: int, address: str) -> list[Any]:
        return await asyncio.gather(*(routes.page(request("/s", address, token=token)) for _ in range(count)))

    answers = await ask(PAGES, "192.0.2.1")
    assert [answer.status_code for answer in answers].count(200) == PAGES // 2
    await asyncio.gather(*(hang_up(answer) for answer in answers if answer.status_code == 200))
    answers = await ask(PAGES // 2, "192.0.2.1")
    assert {answer.status_code for answer in answers} == {200}
    answers.clear()  # nobody ever read them
    assert {answer.status_code for answer in await ask(PAGES // 2, "192.0.2.1")} == {200}


async def test_streams_are_counted_before_the_events_are_read() -> None:
    class Runs:
        async def events(self, *_: Any, **__: Any) -> list[Any]:
            await asyncio.sleep(0.01)
            return []

    class Running:
        async def find(self, *_: Any) -> None:
            return None

    store = cast(Any, type("Store", (), {"runs": Runs()})())
    routes = RunEventRoutes(cast(Any, Running()), store, lambda _: "ann", cast(Any, None))
    answers = await asyncio.gather(*(routes.events(request("/", run_id="r")) for _ in range(STREAMS_PER_OWNER + 8)))
    assert [answer.status_code for answer in answers] == [200] * STREAMS_PER_OWNER + [429] * 8
    for answer in answers[:STREAMS_PER_OWNER]:
        await hang_up(answer)
    assert (await routes.events(request("/", run_id="r"))).status_code == 200


async def test_work_ends_with_its_reader_and_only_then_gives_its_place_back() -> None:
    places, threads = HeavyWork(1, each=1, always=1), Threads("test", 1)
    begun, may_end, made = threading.Event(), threading.Event(), list[int]()

    def items() -> Iterator[str]:
        for number in range(100):
            begun.set()
            may_end.wait(30)
            made.append(number)
            yield "x" * 30

    async def pieces() -> AsyncGenerator[str]:
        async for batch in threads.steps(items()):
            yield "".join(batch)
            may_end.clear()

    response = HeavyResponse(pieces(), places.place("ann", None), {}, "text/plain")
    reading = asyncio.create_task(read(response))
    await until(begun.is_set)
    reading.cancel()
    for _ in range(20):
        await asyncio.sleep(0)
    with pytest.raises(TooManyRequests):
        places.place("bob", None)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await reading
    ended = len(made)
    places.place("bob", None)
    await asyncio.sleep(0)
    assert len(made) == ended, "the next step does not begin"


async def test_thread_keeps_nothing_of_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it gets no turn after it has told its result."""
    tell, may_go_on = Future[Any].set_result, threading.Event()

    class Text:
        """What a weak reference can name."""

    def tell_and_wait(self: Future[Any], result: Any) -> None:
        tell(self, result)
        if threading.current_thread().name.startswith("kept"):
            may_go_on.wait(60)

    monkeypatch.setattr(Future, "set_result", tell_and_wait)
    try:
        given, threads = Text(), Threads("kept", 1)
        kept = [weakref.ref(given), weakref.ref(await threads.run(lambda _: Text(), given))]
        del given
        gc.collect()
        assert [one() for one in kept] == [None, None]
    finally:
        may_go_on.set()


async def test_export_that_hung_up_writes_no_further_block() -> None:
    written = list[int]()

    def blocks() -> Iterator[Block]:
        for number in range(2000):
            written.append(number)
            yield Block(type="text", text="A *word* of it. " * 100)

    page = to_html("T", "", blocks(), cast(Any, None), ENGLISH)
    await hang_up(HeavyResponse(page, RequestSlot(lambda: None), {}, "text/html"))
    count = len(written)
    assert count < 2000
    await asyncio.sleep(0.1)
    assert len(written) == count


def texts() -> dict[str, str]:
    """Return texts of 100,000 characters that need much memory when they are read at once."""
    patterns = {
        "words": "A **word** and `code` and [a](https://b.example) text.\n\n",
        "lines": "a *b*\n",
        "items": "- a\n",
        "marks": "*a ",
        "one word": "a",
        "code": "```\n" + "x = 1\n" * 8_000 + "```\n\n",
        "wide table": f"|{'a|' * 200}\n|{'-|' * 200}\n" + "|\n" * 300 + "\n",
    }
    return {name: (pattern * (100_000 // len(pattern) + 1))[:100_000] for name, pattern in patterns.items()}


@pytest.mark.slow
@pytest.mark.parametrize("text", gate_rows(texts(), ("words", "wide table")))
async def test_page_of_long_markdown_needs_little_memory(text: str) -> None:
    tracemalloc.start()
    try:
        async for _ in to_html("T", "", [Block(type="text", text=text)], cast(Any, None), ENGLISH):
            pass
        assert tracemalloc.get_traced_memory()[1] < 45_000_000
    finally:
        tracemalloc.stop()


async def test_long_text_is_read_as_markdown_between_its_paragraphs_and_code() -> None:
    text = "A **word**.\n\n" + "```python\nx = 1\n\ny = **2**\n```\n\n" * 1500 + "The **end**."
    page = "".join([piece async for piece in to_html("T", "", [Block(type="text", text=text)], none(), ENGLISH)])
    assert page.count("<pre><code") == 1500
    assert "<strong>2" not in page
    assert "<strong>word</strong>" in page
    assert "<strong>end</strong>" in page


def none() -> Callable[[str], AsyncIterator[str]]:
    return cast(Any, None)


async def test_public_page_limits_exports_a_minute_and_says_when_it_works_again(tmp_path: Path) -> None:
    store = MemoryStore()
    conversation, _ = await started(store, "Yes", owner="ann")
    routes = export_routes(store, tmp_path, RequestLimit())
    for _ in range(EXPORTS_A_MINUTE):
        assert b"</html>" in await read(await routes.export_one(request("/export", conversation=conversation.id)))
    refused = await routes.export_one(request("/export", conversation=conversation.id))
    assert refused.status_code == 429
    assert 0 < int(refused.headers["retry-after"]) <= 60


async def test_head_of_a_link_writes_no_page(tmp_path: Path) -> None:
    store, settings = MemoryStore(), Settings(local=LocalSettings())
    links = ChatLinks(store, settings)
    conversation, _ = await started(store, "Yes", owner="ann")
    token, _ = await links.create("ann", conversation.id, LinkChoices(days=None))
    routes = LinkPageRoutes(links, cast(Any, None), MediaStore(tmp_path), settings)
    asked = request("/s", None, "HEAD", token=token)
    response, sent = await routes.page(asked), list[Any]()

    async def send(message: Any) -> None:
        sent.append(message)

    await response(asked.scope, cast(Any, None), send)
    assert [message.get("body") for message in sent] == [None, b""]


async def test_watchdog_names_the_place_that_holds_the_loop_up(caplog: pytest.LogCaptureFixture) -> None:
    watchdog = Watchdog()
    beating = asyncio.create_task(watchdog.run())
    await asyncio.sleep(0)

    def hold_the_loop_up() -> None:
        ended = monotonic() + 30
        while not caplog.records and monotonic() < ended:
            sum(range(1000))

    hold_the_loop_up()
    await until(lambda: watchdog.longest_lag > LOOP_LATE_SECONDS)
    beating.cancel()
    [line] = [record.getMessage() for record in caplog.records]
    assert "test_heavy_work.py" in line
    assert "hold_the_loop_up" in line


def test_event_loop_soon_gets_python_from_threads_that_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request takes a hundred steps of the loop. Each waits that long for a thread that renders."""

    async def seen(*_: object) -> int:
        return sys.getswitchinterval() <= 0.001

    before = sys.getswitchinterval()
    for name, value in (("_serve", seen), ("make_memory_private", int), ("return_free_memory", int)):
        monkeypatch.setattr(web_server, name, value)
    try:
        assert web_server.serve(Settings(local=LocalSettings()))
    finally:
        sys.setswitchinterval(before)


async def test_request_that_only_reads_ends_with_its_client() -> None:
    begun, ended = asyncio.Event(), list[str]()

    async def handler(_request: Request, owner: str) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(owner)

    async def receive() -> dict[str, Any]:
        await begun.wait()
        return {"type": "http.disconnect"}

    answer = await answering(handler, lambda _: "ann")(Request(request("/").scope, receive))
    assert answer.status_code == 499
    assert ended == ["ann"]


@pytest.mark.slow
async def test_changes_and_exports_end_with_their_clients(tmp_path: Path, server: Running) -> None:
    """Each request hangs up while it reads the chat, and its answer comes when the read has ended."""
    owner, value = VisitorCookies.in_folder(tmp_path).mint()
    cookie = f"{CookieJar(secure=False).name}={value}".encode()
    statuses, ended = dict[str, int](), list[str]()
    async with running_app(tmp_path, server.base_url) as app:
        chats = app.state.conversations
        await until(lambda: chats.models.find(""))
        conversation, entries = await started(chats.store, "Yes", owner=owner)
        message = f"/conversations/{conversation.id}/messages/{entries[0].id}"
        for method, path, body in (
            ("PATCH", message, b'{"text": "No"}'),
            ("POST", f"{message}/retry", b""),
            ("POST", f"{message}/copy", b""),
            ("GET", f"/export/{conversation.id}", b""),
        ):
            gone, path_ = asyncio.Event(), path

            async def reading(*_: Any, gone: asyncio.Event = gone, path: str = path_, **__: Any) -> None:
                gone.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    await asyncio.sleep(0)
                    ended.append(path)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(chats.store, "find", reading)
                patch.setattr(chats.store, "history", reading)
                statuses[path] = (await asked(app, method, path, body=body, gone=gone, cookie=cookie)).status
            assert ended == [*statuses]
    assert {*statuses.values()} == {499}


async def test_looks_of_one_visitor_take_turns_and_leave_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look reads and renders up to a million characters."""
    looking, may_end = list[str](), asyncio.Event()

    class Views:
        async def with_turn(self, owner: str, *_: object) -> ChatView:
            looking.append(owner)
            await may_end.wait()
            looking.remove(owner)
            return ChatView()

    class Rows:
        async def row(self, owner: str, id_: str) -> ListRow:
            return ListRow(id=id_, title="", pinned=False, updated_at=now())

    routes = ConversationRoutes(cast(Any, Rows()), cast(Any, None), cast(Any, Views()), lambda _: "")

    async def look(owner: str) -> Any:
        fields = {**request("/", id_="chat").scope, "query_string": b"format=blocks"}
        return await routes._row_of(Request(fields), owner)  # pyright: ignore[reportPrivateUsage]

    looks = [asyncio.create_task(look(owner)) for owner in ("ann", "ann", "ann", "bob")]
    await until(lambda: "bob" in looking)
    assert looking == ["ann", "bob"]
    looks[1].cancel()
    may_end.set()
    await asyncio.gather(*looks, return_exceptions=True)
    assert [one.cancelled() for one in looks] == [False, True, False, False]


@pytest.mark.slow
async def test_text_of_a_long_message_holds_no_loop() -> None:
    [turn] = to_turns(chain(prompt('Say "it".\n'), ModelResponse([TextPart("\ufdfa word\n" * 3_000_000)])))

    class Views:
        async def turn(self, *_: object) -> Any:
            return turn

    routes = ConversationRoutes(cast(Any, None), cast(Any, None), cast(Any, Views()), lambda _: "")
    asked, steps, body = request("/", id_="chat", entry="message"), list[float](), b""
    for _ in range(3):  # a busy machine can be slow
        with longest_step() as longest:
            answer = await routes._text(asked, "ann")  # pyright: ignore[reportPrivateUsage]
            body = await asyncio.create_task(read(answer))
        steps.append(longest[0][0])
    assert json.loads(body) == {"message": 'Say "it".\n', "answer": "\ufdfa word\n" * 3_000_000}
    assert min(steps) < 0.05, steps


def test_title_is_found_in_the_first_messages() -> None:
    def entries() -> Iterator[Entry]:
        for number in range(100_000):
            assert number < 1_000
            yield from chain(ModelResponse([ToolCallPart("look", {}, f"{number}")]))

    assert title_of("", entries(), ENGLISH) == "Conversation"


@pytest.mark.parametrize("wrote", ["model", "person"])
def test_text_too_long_for_markdown_is_cut_as_written(wrote: str) -> None:
    text = "*a* <b>\n\n" * 60_000
    asked, said = ("Hi", text) if wrote == "model" else (text, "Hi")
    entries = chain(prompt(asked), ModelResponse([TextPart(said), ThinkingPart(said)]))
    shown = render_turn(to_turns(entries)[0])["bubbles"]
    blocks = [block for bubble in shown for block in bubble["blocks"] if len(block) > 1000]
    assert len(blocks) == (2 if wrote == "model" else 1)
    assert all(block.startswith("<pre>*a* &lt;b&gt;") and block.endswith(" …</pre>") for block in blocks)
    assert sum(map(len, blocks)) < 4 * LONGEST_MARKDOWN


@pytest.mark.slow
def test_parts_of_a_message_share_the_room_for_markdown() -> None:
    text = "*a* <b>\n\n" * 40_000
    message = ModelRequest([UserPromptPart([text, text, "*c*"])])
    [turn] = to_turns(chain(message))
    first, second, third = "<p>*a*", "<pre>*a*", "<p>*c*"
    blocks = [block for bubble in render_turn(turn)["bubbles"] for block in bubble["blocks"]]
    assert blocks[0].startswith(first)
    assert [block[: len(second)] for block in blocks if block.endswith(" …</pre>")] == [second]
    assert [block for block in blocks if block.startswith(third)]


LONG = "a < b\n" * 110_000
WRITTEN: dict[str, list[ModelMessage]] = {
    "arguments": [prompt("Hi"), ModelResponse([ToolCallPart("look", {"at": LONG}, "1")])],
    "many arguments": [prompt("Hi"), ModelResponse([ToolCallPart("look", {"at": [1] * 250_000}, "1")])],
    "a result": [prompt("Hi"), ModelRequest([ToolReturnPart("look", LONG, "1")])],
    "many results": [prompt("Hi"), *[ModelRequest([ToolReturnPart("look", LONG, f"{n}")]) for n in range(3)]],
    "a text file": [ModelRequest([UserPromptPart([quoted_file("a.txt", LONG)])])],
    "text of a picture": [
        ModelRequest([UserPromptPart([TextContent(LONG, metadata={"kind": "image", "name": "a.png", "read": LONG})])])
    ],
}
"""Messages with one of the texts that are shown as they are, and that an import or a tool can make long."""


@pytest.mark.parametrize("name", WRITTEN)
async def test_long_result_or_file_is_cut_and_says_where_the_rest_is(name: str) -> None:
    entries = chain(*WRITTEN[name])
    shown = render_turn(to_turns(entries)[0])["bubbles"]
    page = "".join(block for bubble in shown for block in bubble["blocks"])
    frame = Frame(head="", rest=REST_OF_LINK)
    blocks = [*blocks_of(entries, ENGLISH)]
    exported, linked = [
        "".join([piece async for piece in to_html("T", "", blocks, none(), ENGLISH, one)]) for one in (EXPORTED, frame)
    ]
    for html, sentence in ((page, REST), (exported, REST), (linked, REST_OF_LINK)):
        assert f'<p class="caption">{ENGLISH(sentence)}</p>' in html
        assert len(unescape(html)) < 1.2 * LONGEST_WRITTEN


@pytest.mark.slow
def test_arguments_of_many_values_take_little_memory() -> None:
    tracemalloc.start()
    try:
        pretty_json([1] * 4_000_000)
        assert tracemalloc.get_traced_memory()[1] < 60_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.slow
async def test_turns_that_are_shown_at_once_are_bounded_in_bytes() -> None:
    turn = [prompt("Hi"), ModelResponse([TextPart("a" * 400_000)])]
    view = ChatView(turns=to_turns(chain(*turn * 20)))
    shown, has_earlier = await newest_turns(view, window=1000)
    assert 1 <= len(shown) <= MOST_HTML // 400_000
    assert has_earlier


@pytest.mark.slow
async def test_one_long_message_is_encoded_off_the_loop() -> None:
    message = ModelResponse([TextPart("\ufdfa word " * 400_000)])
    with longest_step() as longest:
        [text], _folded = await asyncio.create_task(dumped([Entry(parent_id=None, message=message)]))
    assert len(text) > 2_000_000
    assert longest[0][0] < 0.01
