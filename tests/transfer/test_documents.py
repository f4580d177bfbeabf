"""Markdown and HTML: what they show, that nothing in a message becomes markup, and that the page needs nothing else."""

import asyncio
import io
import json
import os
import zipfile
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import finalize

import pytest
from playwright.sync_api import Browser
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from agent.errors import NotFound
from agent.files.parts import extracted_text
from agent.files.references import references_in
from agent.files.store import MediaStore
from agent.history import Conversation, Entry, HistoryStore, Note, Timings
from agent.history.memory import MemoryStore
from agent.i18n.translator import ENGLISH, negotiate
from agent.messages.repair import count_bytes
from agent.rendering.html import html_mark
from agent.settings import LocalSettings, Settings
from agent.tools.function_tools import ask_user
from agent.transfer import document, portable
from agent.transfer.document import LONGEST_TURN, blocks_of
from agent.transfer.export import FORMATS, Download, Exporter, Format, safe_name, to_markdown
from agent.transfer.html import data_urls, to_html
from agent.transfer.shared import shared_entries
from agent.web.chat.links import ChatLinks, LinkChoices
from agent.web.link_routes import Site, to_link_page
from tests.support.history_stores import chain, prompt
from tests.support.media_files import picture, sound
from tests.support.transfers import OWNER, stored

TABLE = "| flour | water |\n|---|---|\n| 500 g | 350 g |"
LONG = "\n\n".join(f"Paragraph {number} tells how the dough rests and what to look for." * 3 for number in range(12))


def everything() -> list[ModelMessage]:
    """Return a conversation with every kind of block."""
    files = [BinaryContent(picture("PNG"), media_type="image/png"), BinaryContent(sound("wav"), media_type="audio/wav")]
    read = extracted_text("500 g flour", "scan.png", "image")
    return [
        ModelRequest([UserPromptPart(["How do I bake **bread**?\nAnd when?", files[0], read])]),
        ModelResponse(
            [
                ThinkingPart("The scan has the *amounts*."),
                TextPart(f"# Bread\n\nYou need:\n\n{TABLE}\n\n```python\nbake(minutes=45)\n```\n\n- first\n- second"),
                ToolCallPart("set_timer", {"minutes": 45}, "c1"),
            ],
            model_name="small-model",
        ),
        ModelRequest([ToolReturnPart("set_timer", ["ringing", files[1]], "c1")]),
        ModelResponse([TextPart(f"Done. See [the mill](https://mill.example/).\n\n{LONG}")], model_name="small-model"),
        prompt("Thanks"),
        ModelResponse([TextPart("You are welc")], model_name="large-model"),
    ]


async def exporter_of(folder: Path, messages: Sequence[ModelMessage], **fields: Any) -> tuple[Exporter, Conversation]:
    """Store a conversation and return what exports it."""
    store, media = MemoryStore(), MediaStore(folder / "media")
    entries = chain(*messages)
    entries[-1] = Entry(
        id=entries[-1].id,
        parent_id=entries[-1].parent_id,
        message=entries[-1].message,
        note=Note(ended="error", detail="The server <went> away.", model="large-model"),
    )
    conversation = Conversation(owner=OWNER, title="Bread & water", head_id=entries[-1].id, **fields)
    return Exporter(store, media, OWNER, ENGLISH), await stored(store, media, conversation, entries)


async def text_of(download: Download) -> str:
    return (await bytes_of(download)).decode()


async def bytes_of(download: Download) -> bytes:
    return b"".join([piece async for piece in download.pieces])


async def test_markdown_has_each_block_in_order(tmp_path: Path) -> None:
    exporter, conversation = await exporter_of(tmp_path, everything())
    download = await exporter.one(conversation.id, "markdown")
    assert download.name == "Bread _ water.zip"
    with zipfile.ZipFile(io.BytesIO(await bytes_of(download))) as archive:
        text = archive.read("Bread _ water.md").decode()
        names = [name for name in archive.namelist() if name.startswith("files/")]
        assert {archive.read(name)[:4] for name in names} == {b"\x89PNG", b"RIFF"}
    expected = [
        "# Bread & water",
        "## You",
        "How do I bake **bread**?",
        "![",
        "> Text extracted from scan.png",
        "> 500 g flour",
        "## small-model",
        "> **Reasoning**",
        TABLE,
        "**Set timer**",
        '"minutes": 45',
        "**Result: Set timer**",
        "ringing",
        "[the mill](https://mill.example/)",
        "Thanks",
        "## large-model",
        "You are welc",
        "_The server \\<went\\> away._",
    ]
    places = [text.find(part) for part in expected]
    assert -1 not in places, expected[places.index(-1)]
    assert places == sorted(places)
    assert all(f"]({name})" in text for name in names)


async def test_document_names_messages_of_other_branches(tmp_path: Path) -> None:
    store, media = MemoryStore(), MediaStore(tmp_path / "media")
    entries = chain(prompt("1"), prompt("2"))
    other = Entry(parent_id=entries[0].id, message=prompt("3"))
    conversation = Conversation(owner=OWNER, head_id=other.id, branches=(entries[1].id,))
    await store.save(conversation, [*entries, other])
    text = await text_of(await Exporter(store, media, OWNER, ENGLISH).one(conversation.id, "markdown"))
    assert "1 message of another version is only in the JSON export" in text
    assert "\n2\n" not in text


class AliveStore(MemoryStore):
    """A store that counts the messages that it has returned and that are still in memory, and the longest page."""

    def __init__(self) -> None:
        super().__init__()
        self._alive, self.most, self.longest = set[int](), 0, 0

    async def history(self, conversation: Conversation, **wanted: Any) -> list[Entry]:
        return self._count(await super().history(conversation, **wanted))

    async def entries(self, conversation: Conversation) -> Sequence[Entry]:
        return self._count([*await super().entries(conversation)])

    async def find(self, conversation: Conversation, **wanted: Any) -> Sequence[Entry]:
        return self._count([*await super().find(conversation, **wanted)])

    def _count(self, entries: list[Entry]) -> list[Entry]:
        for entry in entries:
            self._alive.add(id(entry.message))
            finalize(entry.message, self._alive.discard, id(entry.message))
        self.most = max(self.most, len(self._alive))
        self.longest = max(self.longest, sum(count_bytes(entry.message) for entry in entries))
        return entries


def read_link(store: HistoryStore, conversation: Conversation, _media: MediaStore) -> AsyncIterator[str | bytes]:
    async def pieces() -> AsyncIterator[str | bytes]:
        links = ChatLinks(store, Settings(local=LocalSettings(cache_dir=Path(os.devnull))))
        token, _ = await links.create(OWNER, conversation.id, LinkChoices(days=None))
        chat, site = await links.open(token), Site(title="Chat", root="http://x")
        async for piece in to_link_page(chat, "http://x/s/1", site, data_urls(nothing), ENGLISH):
            yield piece

    return pieces()


async def nothing(_id: str) -> bytes | None:
    return None


def read_export(form: Format) -> Callable[[HistoryStore, Conversation, MediaStore], AsyncIterator[str | bytes]]:
    async def pieces(store: HistoryStore, conversation: Conversation, media: MediaStore) -> AsyncIterator[str | bytes]:
        async for piece in (await Exporter(store, media, OWNER, ENGLISH).one(conversation.id, form)).pieces:
            yield piece

    return pieces


READINGS = {**{form: read_export(form) for form in FORMATS}, "link": read_link}


@pytest.mark.parametrize("turns", [400, 1], ids=["many answers", "one answer"])
@pytest.mark.parametrize("name", READINGS)
async def test_long_chat_is_read_by_page(tmp_path: Path, name: str, turns: int) -> None:
    """Memory does not grow with the chat: most of its 800 messages are not in memory at any time."""
    store, media = AliveStore(), MediaStore(tmp_path / "media")
    answers = [ModelResponse([TextPart(f"answer {number}.")], model_name="m") for number in range(800 - turns)]
    asked = [prompt(f"question {number}.") for number in range(turns)]
    messages = [one for pair in zip(asked, answers, strict=False) for one in pair] + answers[turns:]
    entries = chain(*messages)
    conversation = await store.save(Conversation(owner=OWNER, head_id=entries[-1].id), entries)
    del entries, messages, answers, asked
    out = b"".join(
        [one if isinstance(one, bytes) else one.encode() async for one in READINGS[name](store, conversation, media)]
    )
    places = [out.find(b"answer %d." % number) for number in range(800 - turns)]
    assert -1 not in places
    assert places == sorted(places)
    assert store.most <= 3 * LONGEST_TURN


@pytest.mark.parametrize("name", READINGS)
async def test_page_is_bounded_by_its_own_bytes(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it comes after a page of short messages, from either end."""
    store, media = AliveStore(), MediaStore(tmp_path / "media")
    for module in (document, portable):
        monkeypatch.setattr(module, "PAGE_BYTES", 20_000)
    short, long = ([ModelResponse([TextPart("word " * words)])] * 45 for words in (1, 1_000))
    entries = chain(prompt(), *short, *long, *short)
    conversation = await store.save(Conversation(owner=OWNER, head_id=entries[-1].id), entries)
    out = [piece async for piece in READINGS[name](store, conversation, media)]
    assert sum(map(len, out)) > 200_000
    assert 15_000 <= store.longest < 26_000


async def test_continued_answer_is_one_text(tmp_path: Path) -> None:
    halves = [ModelResponse([TextPart(text)], model_name="large-model") for text in ("One sen", "tence.")]
    exporter, conversation = await exporter_of(tmp_path, [prompt(), *halves])
    assert "One sentence." in await text_of(await exporter.one(conversation.id, "markdown"))


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("../../etc/passwd", "etc_passwd"),
        ("a\nb\x00c", "a_b_c"),
        ("...", "conversation"),
        ("빵 🥖", "빵"),
        ("x" * 300, "x" * 80),
    ],
)
def test_name_of_download_is_safe(title: str, name: str) -> None:
    assert safe_name(title) == name


HOSTILE = """<script>document.title = "run"</script>
<img src="https://evil.example/a.png" onerror="document.title = 'run'">
![remote](https://evil.example/b.png) ![x](javascript:run) [link](javascript:document.title='run')
<iframe src="https://evil.example"></iframe> <style>body{display:none}</style>
[data](data:text/html;base64,PHNjcmlwdD4=) "><svg onload=alert(1)> <!-- </main>
| <b>x</b> |
|---|

$x<img src=x>$ \\(\\text{<script>run()</script>}\\) $$\\href{javascript:run()}{<svg onload=run()>}$$

```html
<script>run()</script><!-- -->
```
"""


async def test_nothing_in_a_message_becomes_markup(tmp_path: Path) -> None:
    messages = [
        prompt(HOSTILE),
        ModelResponse([ThinkingPart(HOSTILE), TextPart(HOSTILE), ToolCallPart(HOSTILE, {HOSTILE: HOSTILE}, "c")]),
        ModelRequest([ToolReturnPart(HOSTILE, HOSTILE, "c")]),
        ModelResponse([TextPart("x")], model_name=HOSTILE),
    ]
    exporter, conversation = await exporter_of(tmp_path, messages)
    page = await text_of(await exporter.one(conversation.id, "html"))
    body = page[page.index("<body>") :]
    for mark in ("<script", "<img", "<iframe", "<style", "<svg", "<!--", "<b>", 'href="javascript', 'href="data'):
        assert mark not in body, mark
    assert body.count("</main>") == 1


class DeletingStore(MemoryStore):
    """A store in which the chat `doomed` is deleted after so many reads of its messages."""

    doomed, reads = "", 0

    async def _count(self, conversation: Conversation) -> None:
        if conversation.id == self.doomed:
            self.reads -= 1
            if self.reads < 0:
                self.doomed = ""
                await self.delete(conversation.id, owner=conversation.owner)

    async def history(self, conversation: Conversation, **wanted: Any) -> list[Entry]:
        await self._count(conversation)
        return await super().history(conversation, **wanted)

    async def find(self, conversation: Conversation, **wanted: Any) -> Sequence[Entry]:
        await self._count(conversation)
        return await super().find(conversation, **wanted)

    async def following(self, conversation: Conversation, entry_id: str | None) -> Sequence[str]:
        await self._count(conversation)
        return await super().following(conversation, entry_id)


def chats_in(data: bytes, form: Format) -> set[str]:
    """Return the titles of the chats in an export of all. Each of them is whole."""
    if form == "json":
        chats = [one for one in json.loads(data) if "conversation" in one]
        assert {len(one["entries"]) for one in chats} == {5}
        return {one["conversation"]["title"] for one in chats}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        names = {name for name in archive.namelist() if name != "index.html"}
        assert all("message 4" in archive.read(name).decode() for name in names)
        assert form != "html" or all(name in archive.read("index.html").decode().replace("%20", " ") for name in names)
    return {name[4:].partition(".")[0] for name in names}


@pytest.mark.parametrize("is_one", [True, False], ids=["one", "all"])
@pytest.mark.parametrize("form", FORMATS)
async def test_chat_that_is_deleted_during_its_export_never_looks_complete(
    tmp_path: Path, form: Format, monkeypatch: pytest.MonkeyPatch, *, is_one: bool
) -> None:
    """The download breaks off, or has the other chats and not this one. Here it is deleted before each of the reads."""
    monkeypatch.setattr(document, "PAGE", 2)
    monkeypatch.setattr(portable, "PAGE", 2)
    reads = 0
    for reads in range(100):
        store = DeletingStore()
        exporter = Exporter(store, MediaStore(tmp_path), OWNER, ENGLISH)
        for title in ("first", "doomed", "last"):
            entries = chain(*(prompt(f"message {number}") for number in range(5)))
            conversation = await store.save(Conversation(owner=OWNER, title=title, head_id=entries[-1].id), entries)
            store.doomed = conversation.id if title == "doomed" else store.doomed
        store.reads = reads
        try:
            data = await bytes_of(await (exporter.one(store.doomed, form) if is_one else exporter.all(form)))
        except NotFound:
            assert is_one or form == "json"
        else:
            if is_one:
                assert store.doomed
            else:
                assert chats_in(data, form) == {"first", "last", *(["doomed"] if store.doomed else [])}
        if store.doomed:
            break
    assert 3 < reads < 99


async def test_deleted_attachment_is_said(tmp_path: Path) -> None:
    store, media = MemoryStore(), MediaStore(tmp_path / "media")
    entries = chain(ModelRequest([UserPromptPart([BinaryContent(picture("PNG"), media_type="image/png")])]))
    conversation = await stored(store, media, Conversation(owner=OWNER, head_id=entries[0].id), entries)
    await media.remove_references(OWNER, references_in(conversation.id, await store.entries(conversation)))
    exporter = Exporter(store, media, OWNER, ENGLISH)
    for form in ("html", "markdown"):
        download = await exporter.one(conversation.id, form)
        data = await bytes_of(download)
        if download.media_type == "application/zip":
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                data = archive.read(archive.namelist()[-1])
        assert "An attachment that was deleted." in data.decode()


async def test_steps_are_one_fold_and_failures_are_seen(tmp_path: Path) -> None:
    calls = [ToolCallPart("set_timer", {"minutes": minutes}, str(minutes)) for minutes in (45, -1)]
    results = [
        ToolReturnPart("set_timer", "ringing", "45"),
        ToolReturnPart("set_timer", "ValueError: <b>no</b> such time.", "-1", outcome="failed"),
    ]
    steps = [ModelResponse([ThinkingPart("Hm."), *calls]), ModelRequest(results)]
    answers = [
        *steps,
        ModelResponse([TextPart("Between."), ThinkingPart("Alone.")]),
        ModelResponse([TextPart("Done.")]),
    ]
    exporter, conversation = await exporter_of(tmp_path, [prompt("Go"), *answers])
    page = await text_of(await exporter.one(conversation.id, "html"))
    first, _, rest = page.partition("Between.")
    assert first.count("<summary>") == 6
    assert "<details><summary>Thought · 2 tools · 1 failed</summary><details>" in first
    failed = (
        '</details>\n</details>\n<details class="problem"><summary>Set timer · failed: &lt;b&gt;no&lt;/b&gt; such time'
    )
    assert failed in first, "the failure is beside the fold"
    assert rest.count("<summary>") == 1, "a single step is no series"


async def test_refused_call_is_no_failure(tmp_path: Path) -> None:
    refused = ToolReturnPart("send", "The user refused this call.", "1", outcome="denied")
    answers = [
        ModelResponse([ThinkingPart("Hm."), ToolCallPart("send", {}, "1")]),
        ModelRequest([refused]),
        ModelResponse([TextPart("Then not.")]),
    ]
    exporter, conversation = await exporter_of(tmp_path, [prompt("Go"), *answers])
    page = await text_of(await exporter.one(conversation.id, "html"))
    assert "The user refused this call." in page
    assert "failed" not in page


async def test_question_and_answer_are_read_without_a_click(tmp_path: Path) -> None:
    question, lost = (
        ToolCallPart(ask_user.name, {"question": f"Which <{one}>?", "choices": ["a"]}, one) for one in ("one", "lost")
    )
    failed = ToolReturnPart("ask_user", "Nobody can be asked here.", "lost", outcome="failed")
    answers = [
        ModelResponse([question], model_name="small-model"),
        ModelRequest([ToolReturnPart("ask_user", "*mine*", "one")]),
        ModelResponse([lost], model_name="small-model"),
        ModelRequest([failed]),
        ModelResponse([TextPart("Done.")], model_name="small-model"),
    ]
    exporter, conversation = await exporter_of(tmp_path, [prompt("Go"), *answers])
    page = await text_of(await exporter.one(conversation.id, "html"))
    first, _, rest = page.partition('<p class="question">Which &lt;one&gt;?</p>\n</section>\n<section class="user">')
    assert "<details" not in first
    yours, _, rest = rest.partition('<section class="model">\n<h2>small-model</h2>')
    assert "*mine*" in yours
    assert "<details" not in yours
    assert "Question · failed: Nobody can be asked here" in rest
    written = await text_of(await exporter.one(conversation.id, "md"))
    assert "> Which \\<one\\>?\n\n## You\n\n*mine*\n\n## small-model" in written


async def test_steps_say_how_long_was_thought(tmp_path: Path) -> None:
    """As on the page, and in a read-only link, too, which has no other figures. Tools have the titles of the page."""
    call, result = ToolCallPart("current_time", {}, "1"), ToolReturnPart("current_time", "noon", "1")
    first = ModelResponse([ThinkingPart("First."), call], model_name="small-model")
    last = ModelResponse([ThinkingPart("Then."), TextPart("Done."), ThinkingPart("Alone.")], model_name="small-model")
    entries = chain(prompt("Go"), first, ModelRequest([result]), last)
    timings = Timings(total=9.5, output_tokens=77, reasoning=(2.5, 1250.0, 0.5))
    entries[-1] = replace(entries[-1], note=Note(run_id="r", ended="stop", timings=timings))
    german = negotiate("de")
    shared = [*shared_entries(entries, ENGLISH, with_files=False)]
    assert shared[-1].note.timings == Timings(reasoning=timings.reasoning)
    for kept in (entries, shared):
        for language, row, alone, tool in (
            (ENGLISH, "Thought 1,252.5 s", "0.5 s", "Current time"),
            (german, "1.252,5 s nachgedacht", "0,5 s", "Aktuelle Zeit"),
        ):
            blocks = [*blocks_of(kept, language, html_mark, lambda name: f"{name} (named)")]
            page = "".join([piece async for piece in to_html("T", "", blocks, data_urls(no_file), language)])
            assert f"<summary>{row} · 1 " in page
            assert f" · {alone}</summary>" in page
            assert f"<summary>{tool}</summary>" in page
            assert f": {tool}</summary>" in page
            assert f"**{tool}**" in "".join(to_markdown("T", "", blocks, {}, language))
            assert "<h2>small-model (named)</h2>" in page
            assert f" · {alone}**" in "".join(to_markdown("T", "", blocks, {}, language))


async def no_file(_: str) -> bytes | None:
    return None


async def page_of(folder: Path) -> Path:
    """Write the page of a conversation with every kind of block and hostile texts."""
    exporter, conversation = await exporter_of(folder, [*everything(), prompt(HOSTILE), *everything()[-1:]])
    file = folder / "page.html"
    file.write_bytes(await bytes_of(await exporter.one(conversation.id, "html")))
    return file


LENGTH = "(one) => new Promise((done) => { one.onloadedmetadata = () => done(one.duration); one.load() })"


@pytest.mark.full
def test_page_makes_no_request_and_prints(tmp_path: Path, browser: Browser) -> None:
    """Chromium opens the page from the disk."""
    with ThreadPoolExecutor(1) as pool:  # Playwright runs an event loop in this thread
        file = pool.submit(asyncio.run, page_of(tmp_path)).result()
    context = browser.new_context(viewport={"width": 900, "height": 900})
    try:
        page = context.new_page()
        asked, failed = list[str](), list[str]()
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: failed.append(str(error)))
        page.goto(file.as_uri())
        assert page.title() == "Bread & water"
        assert page.evaluate("[...document.images].every((one) => one.complete && one.naturalWidth > 0)")
        assert page.locator("audio").evaluate(LENGTH) > 0
        assert [url for url in asked if not url.startswith(("data:", file.as_uri()))] == []
        assert failed == []
        ground = "getComputedStyle(document.body).backgroundColor"
        page.emulate_media(color_scheme="dark")
        assert page.evaluate(ground) == "rgb(16, 18, 23)"
        page.emulate_media(color_scheme="dark", media="print")
        assert page.evaluate(ground) == "rgb(255, 255, 255)"
        assert page.pdf().count(b"/Type /Page\n") >= 2
    finally:
        context.close()
