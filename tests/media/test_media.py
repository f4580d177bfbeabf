"""Pictures, sounds and files: the bytes that reach each vendor, what is stored, and what people are told."""

import asyncio
import base64
import io
import json
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from pydantic_ai.messages import BinaryContent, FilePart, ModelMessage, ModelRequest, ModelResponse, ToolReturnPart
from pydantic_ai.messages import UserPromptPart as Prompt

from agent import Agent, Endpoint, InputError, ModelSpec, connect, display, tool
from agent.errors import NotFound
from agent.files.convert import convert_messages, image_limits, sound_limits
from agent.files.parts import text_file_of
from agent.files.references import with_data, with_references
from agent.files.store import MediaStore
from agent.history.memory import MemoryStore
from agent.models.catalog import load_catalog
from agent.providers.connection import ServedModel
from agent.settings import LocalSettings, Settings
from agent.system.media_types import detect_mime
from agent.web.app import build_conversations
from agent.web.chat.attachments import message_parts, plan_attachments
from agent.web.chat.choices import Choices
from agent.web.chat.conversations import Conversations
from agent.web.chat.visitor import Visitor
from agent.web.media_route import headers_of
from tests.support import dialects
from tests.support.dialect_server import Playing, Reply
from tests.support.gate_rows import gate_rows
from tests.support.media_files import (
    MP3,
    PNG,
    SECRET,
    WAV,
    drawn,
    encoded,
    exif,
    heard,
    picture,
    red_corner,
    sound,
    tone,
)
from tests.support.models import FakeLocalModels
from tests.support.replies import anthropic_messages, chat_completions, google_generate_content, openai_responses
from tests.support.scripted_server import Config, Running, running
from tests.support.views import view_of, watch

pytestmark = pytest.mark.slow

running_server, server = dialects.running_server, dialects.server

JPEG_SIDEWAYS = encoded(drawn((1500, 2000)).transpose(Image.Transpose.ROTATE_90), "JPEG", exif=exif(6))
GIVEN = {
    "jpeg, sideways, large": (JPEG_SIDEWAYS, (1176, 1568)),
    "heic": (picture("HEIF", (640, 480)), (640, 480)),
    "webp": (picture("WEBP", (640, 480)), (640, 480)),
    "png, 16 bits": (picture("PNG", (64, 48), "I;16"), (64, 48)),
}


# --- the bytes that reach a server ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dialect:
    """A model of the dialect, its path, its answer, and the key of its messages in a body."""

    spec: ModelSpec
    path: str
    reply: Reply
    items: str


DIALECTS = {
    "responses": Dialect(load_catalog().find("openai:gpt-6-luna"), "/v1", openai_responses.ANSWER, "input"),
    "responses, xai": Dialect(load_catalog().find("xai:grok-4.6"), "/v1", openai_responses.ANSWER, "input"),
    "messages": Dialect(load_catalog().find("anthropic:claude-sonnet-5-5"), "", anthropic_messages.HI, "messages"),
    "generate": Dialect(load_catalog().find("google:gemini-3.8-flash"), "", google_generate_content.HI, "contents"),
    "chat": Dialect(
        load_catalog().find("vllm:Qwen/Qwen3-Omni-30B-A3B-Instruct"), "/v1", chat_completions.ANSWER, "messages"
    ),
    "chat, openai": Dialect(load_catalog().find("openai:gpt-audio-1.5"), "/v1", chat_completions.ANSWER, "messages"),
}
SEEING = [name for name, dialect in DIALECTS.items() if dialect.spec.image]
HEARING = [name for name, dialect in DIALECTS.items() if dialect.spec.audio]


def decoded(data: str) -> bytes:
    """Decode Base64. Google's library writes the URL alphabet, which JSON for protocol buffers also accepts."""
    return base64.b64decode(data.replace("-", "+").replace("_", "/"), validate=True)


def arrived(body: Any) -> Iterator[tuple[str, bytes]]:
    """Yield type and bytes of every file in a request, in any dialect."""
    match body:
        case str() if body.startswith("data:"):
            head, _, data = body.partition(";base64,")
            yield head.removeprefix("data:"), decoded(data)
        case {"data": str(data), "media_type": str(kind_)} | {"data": str(data), "mime_type": str(kind_)}:
            yield kind_, decoded(data)
        case {"data": str(data), "format": str(format_)}:
            yield {"wav": "audio/wav", "mp3": "audio/mpeg"}[format_], decoded(data)
        case dict():
            for value in body.values():
                yield from arrived(value)
        case list():
            for value in body:
                yield from arrived(value)
        case _:
            return


def asked(dialect: Dialect, server: Playing, **more: Any) -> Agent:
    return Agent(connect(dialect.spec, Endpoint(server.url + dialect.path, "key")), **more)


@pytest.mark.parametrize("name", SEEING)
@pytest.mark.parametrize("given", GIVEN)
async def test_model_sees_upright_picture_in_size(server: Playing, name: str, given: str) -> None:
    dialect, (data, size) = DIALECTS[name], GIVEN[given]
    server.play(dialect.reply, dialect.reply)
    async with asked(dialect, server) as agent:
        first = await agent.ask(["What is this?", BinaryContent(data, media_type=detect_mime(data))])
        second = await agent.ask("And now?", context=first.context)
    assert (first.finish_reason, second.finish_reason) == ("stop", "stop")
    [(kind_, sent)] = arrived(server.requests[0].json)
    image = Image.open(io.BytesIO(sent))
    assert kind_ == detect_mime(sent)
    assert kind_ in image_limits(dialect.spec).types
    assert image.size == size
    assert red_corner(image) == ("upper left" if image.mode != "L" else "")
    assert SECRET.encode() not in sent
    assert list(arrived(server.requests[1].json)) == [(kind_, sent)]
    dialects.assert_prefixes([request.raw for request in server.requests], dialect.items, 2)
    kept = first.context.messages[0].parts[0].content
    assert kept[1].data == data, "the history has other bytes"


FORMATS = ("webm", "m4a", "opus", "flac", "wav", "mp3")
"""Formats of sounds that people attach."""


@pytest.mark.parametrize("name", HEARING)
@pytest.mark.parametrize("format_", gate_rows({name: name for name in FORMATS}, ["webm", "wav"]))
async def test_model_hears_same_length_and_pitch(server: Playing, name: str, format_: str) -> None:
    dialect, data = DIALECTS[name], sound(format_, tone(1.2, hertz=660))
    server.play(dialect.reply)
    async with asked(dialect, server) as agent:
        result = await agent.ask(["What is this?", BinaryContent(data, media_type=detect_mime(data))])
    assert result.finish_reason == "stop"
    [(kind_, sent)] = arrived(server.requests[0].json)
    assert (kind_, detect_mime(sent)) == (("audio/mpeg",) * 2 if format_ == "mp3" else ("audio/wav",) * 2)
    assert kind_ in sound_limits(dialect.spec).types
    assert heard(sent) == pytest.approx((1.2, 660), abs=4)
    assert abs(heard(sent)[0] - 1.2) < 0.1


@pytest.mark.parametrize("name", SEEING)
async def test_tool_picture_reaches_model_converted(server: Playing, name: str) -> None:
    @tool
    def draw() -> list[Any]:
        """Draw."""
        return ["Drawn:", BinaryContent(picture("WEBP", (3000, 1500)), media_type="image/webp")]

    calls = {
        "responses": openai_responses.reply(
            openai_responses.created(), openai_responses.call("{}", name="draw"), openai_responses.completed()
        ),
        "messages": anthropic_messages.reply(
            anthropic_messages.begin(),
            anthropic_messages.call(0, "toolu_1", "{}", name="draw"),
            anthropic_messages.CALLS,
        ),
        "generate": google_generate_content.reply(
            google_generate_content.chunk({"functionCall": {"name": "draw", "args": {}, "id": "c1"}}),
            google_generate_content.end(),
        ),
        "chat": chat_completions.reply(
            chat_completions.calls(chat_completions.piece("{}", id="c1", name="draw")),
            *chat_completions.ending("tool_calls"),
        ),
    }
    dialect = DIALECTS[name]
    server.play(calls[name.split(",")[0]], dialect.reply, dialect.reply)
    async with asked(dialect, server, tools=[draw]) as agent:
        result = await agent.ask("Draw.")
        await agent.ask("Again?", context=result.context)
    assert [(file.media_type, file.data) for file in result.files] == [("image/webp", picture("WEBP", (3000, 1500)))]
    [(kind_, sent)] = arrived(server.requests[1].json)
    assert kind_ in image_limits(dialect.spec).types
    assert Image.open(io.BytesIO(sent)).size == (1568, 784)
    before, after = (json.dumps(request.json[dialect.items])[:-1] for request in server.requests[1:])
    assert after.startswith(before)


# --- what cannot be sent ----------------------------------------------------------------------------------------------

BROKEN = BinaryContent(PNG[:40], media_type="image/png")
CLAUDE, QWEN = DIALECTS["messages"].spec, DIALECTS["chat"].spec


async def test_broken_file_is_refused_then_replaced_by_text(server: Playing) -> None:
    dialect = DIALECTS["messages"]
    server.play(dialect.reply)
    async with asked(dialect, server) as agent:
        first = await agent.ask(["See:", BROKEN])
        assert first.finish_reason == "error"
        assert first.note.detail == "The picture (PNG) in the message is a PNG that is broken or cut off."
        assert server.requests == []
        second = await agent.ask("Hello", context=first.context)
    assert second.finish_reason == "stop"
    [body] = [json.dumps(request.json) for request in server.requests]
    assert "[A file was here that cannot be read: it is a PNG that is broken or cut off.]" in body
    assert list(arrived(json.loads(body))) == []


async def test_latest_of_too_many_pictures_are_sent() -> None:
    pictures = [BinaryContent(picture("PNG", (8, number)), media_type="image/png") for number in range(8, 20)]
    messages: list[ModelMessage] = [ModelRequest([Prompt(["See:", one])]) for one in pictures]
    sent = [message.parts[0].content for message in await convert_messages(messages, QWEN)]  # type: ignore[union-attr]
    assert [one[1] for one in sent[4:]] == pictures[4:]  # type: ignore[index]
    assert {one[1] for one in sent[:4]} == {"[A picture was here; this model takes no more than the later ones.]"}  # type: ignore[index]
    with pytest.raises(InputError, match="does not take so many pictures"):
        await convert_messages([ModelRequest([Prompt(["See:", *pictures])])], QWEN)


@pytest.mark.parametrize(
    ("data", "media_type", "goes"),
    [
        (b"%PDF-1.7", "application/pdf", {"messages": None, "chat": "[A file was here (application/pdf), which "}),
        (b"a,b", "text/csv", {"messages": "a,b", "chat": "a,b"}),
        (b"PK", "application/zip", {name: "[A file was here (application/zip), which " for name in SEEING}),
    ],
)
async def test_other_file_from_tool_does_not_end_run(data: bytes, media_type: str, goes: dict[str, str | None]) -> None:
    content = BinaryContent(data, media_type=media_type)
    for name, text in goes.items():
        spec = DIALECTS[name].spec
        [sent] = await convert_messages([ModelRequest([ToolReturnPart("get", content, "c1")])], spec)
        was: Any = sent.parts[0].content  # type: ignore[union-attr]
        assert was is content if text is None else was.startswith(text)
        if text and text.startswith("["):
            with pytest.raises(InputError, match=f"cannot read a file of the kind {media_type}"):
                await convert_messages([ModelRequest([Prompt(["Read:", content])])], spec)


async def test_unconverted_messages_are_the_same_objects() -> None:
    plain = ModelRequest([Prompt(["See:", BinaryContent(PNG, media_type="image/png")])])
    webp = BinaryContent(picture("WEBP"), media_type="image/webp", identifier="drawing")
    drawn_ = ModelRequest([ToolReturnPart("draw", webp, "c1")])
    sent = await convert_messages([plain, ModelResponse([]), drawn_], DIALECTS["responses, xai"].spec)
    assert sent[0] is plain
    content: Any = sent[2].parts[0].content  # type: ignore[union-attr]
    assert (content.identifier, content.media_type) == ("drawing", "image/jpeg")


# --- what is stored ---------------------------------------------------------------------------------------------------

OWNER, OTHER = "somebody", "else"
FILES = [
    (PNG, "image/png", "png"),
    (WAV, "audio/wav", "wav"),
    (MP3, "audio/mpeg", "mp3"),
    (b"%PDF-1.7", "application/pdf", "pdf"),
    (b"<script>", "text/html", "bin"),
    (b"<svg onload=x>", "image/svg+xml", "bin"),
]


@pytest.mark.parametrize(("data", "media_type", "suffix"), FILES, ids=[case[2] for case in FILES])
async def test_files_are_stored_once_and_restored(tmp_path: Path, data: bytes, media_type: str, suffix: str) -> None:
    store = MediaStore(tmp_path)
    content = BinaryContent(data, media_type=media_type)
    named = BinaryContent(data, media_type=media_type, identifier="drawing")
    messages: list[ModelMessage] = [
        ModelRequest([Prompt(["See:", content])]),
        ModelResponse([FilePart(BinaryContent.narrow_type(content))]),
        ModelRequest([ToolReturnPart("one", named, "a"), ToolReturnPart("two", ["Two:", named], "b")]),
    ]
    kept = [await with_references(store, OWNER, message, "entry") for message in messages]
    assert data not in repr(kept).encode()
    [file] = (tmp_path / OWNER).glob("[!.]*")
    assert (file.suffix, file.read_bytes()) == (f".{suffix}", data)
    assert file.stat().st_mode & 0o077 == 0
    assert [await with_references(store, OWNER, message, "entry") for message in kept] == kept
    back = await with_data(store, OWNER, kept)
    assert back[1] == messages[1]
    assert back[2] == messages[2]
    assert back[0].parts[0].content[1].data == data  # type: ignore[union-attr, index]
    results: Any = [part for message in (messages[2], back[2]) for part in message.parts]
    assert {item.identifier for part in results for item in part.files} == {"drawing"}, "the model was told that name"
    for part in (part for message in await with_data(store, OTHER, kept) for part in message.parts):
        assert "(An attachment that was deleted.)" in str(part.content)  # type: ignore[union-attr]
    with pytest.raises(NotFound):
        await store.read(OTHER, file.name)
    served = await store.find(OWNER, file.name)
    inline = suffix in ("png", "wav", "mp3")
    assert headers_of(served)["content-disposition"].startswith("inline" if inline else "attachment")
    if suffix == "bin":
        assert served.media_type == "application/octet-stream"


@tool
def drawing() -> BinaryContent:
    """Draw."""
    return BinaryContent(PNG, media_type="image/png")


@tool
def report() -> list[Any]:
    """Say and write."""
    return ["Here:", BinaryContent(WAV, media_type="audio/wav"), BinaryContent(b"PK", media_type="application/zip")]


@pytest.fixture(scope="module")
def scripted() -> Iterator[Running]:
    with running(Config(rate=0)) as server:
        yield server


def conversations(spec: ModelSpec, endpoint: Endpoint, folder: Path) -> Conversations:
    """Return a page's conversations with one model that has tools."""
    models: Any = FakeLocalModels(served=(ServedModel(spec, endpoint),))
    settings = Settings(local=LocalSettings(cache_dir=folder))
    return build_conversations(settings, MemoryStore(), MediaStore(folder / "media"), models, [drawing, report])


@pytest.fixture
async def page(scripted: Running, tmp_path: Path) -> AsyncIterator[Conversations]:
    name = "Qwen/Qwen3-8B"
    spec = ModelSpec(id=f"vllm:{name}", name=name, label="One", provider="vllm", image=True, audio=True)
    made = conversations(spec, Endpoint(scripted.base_url), tmp_path)
    yield made
    await made.aclose()


async def test_generated_media_match_reload_and_return(server: Playing, tmp_path: Path) -> None:
    dialect, inline = DIALECTS["generate"], {"mimeType": "image/png", "data": base64.b64encode(PNG).decode()}
    drawn_ = google_generate_content.reply(
        google_generate_content.chunk(google_generate_content.text("Look: "), {"inlineData": inline}),
        google_generate_content.end(),
    )
    server.play(drawn_, dialect.reply)
    page = conversations(dialect.spec, Endpoint(server.url, "key"), tmp_path)
    live = await page.send(Visitor(owner=OWNER), None, {"text": "Draw."}, Choices())
    assert live is not None
    views = [view async for view in watch(page, OWNER, live.conversation_id)]
    await live.run
    await asyncio.sleep(0)
    assert (await view_of(page, OWNER, live.conversation_id)).turns == views[-1].turns
    [id_] = _ids(str(views[-1].texts))
    assert (await page.media.read(OWNER, id_)).data == PNG
    again = await page.send(Visitor(owner=OWNER), live.conversation_id, {"text": "And now?"}, Choices())
    assert again is not None
    assert (await again.run).finish_reason == "stop"
    assert list(arrived(server.requests[1].json)) == [("image/png", PNG)]
    await page.aclose()


async def test_files_of_tools_are_in_the_result_and_displayed(
    scripted: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    connection = connect(load_catalog().find("vllm:Qwen/Qwen3-8B"), Endpoint(scripted.base_url))
    async with Agent(connection, tools=[drawing, report]) as agent:
        run = agent.run("!tools drawing {} report {} !text Done.")
        async for response in run:
            display(response)
    assert run.result is not None
    files = [(file.media_type, file.data) for file in run.result.files]
    assert sorted(files) == sorted([("image/png", PNG), ("audio/wav", WAV), ("application/zip", b"PK")])
    shown = capsys.readouterr().out
    assert "(image/png)" in shown
    assert "Here: (audio/wav) (application/zip)" in shown


def _ids(text: str) -> list[str]:
    return re.findall(r"media/([0-9a-f]{64}\.\w+)", text)


# --- what people are told ---------------------------------------------------------------------------------------------

MENU = [load_catalog().find(name) for name in ("openai:gpt-6-luna", "google:gemini-3.8-flash")]
BLIND = replace(QWEN, label="Qwen3", image=False, audio=False)
PLANS = [
    ("photo.heic", encoded(drawn((2000, 1500)), "HEIF"), CLAUDE, "converted", "converted to JPEG, 2000 to 1568 px", []),
    ("a.png", PNG, CLAUDE, "as it is", "", []),
    ("voice.webm", sound("webm", tone(2)), QWEN, "converted", "converted to WAV, 2 s", []),
    ("audio.wav", sound("wav", tone(2, loud=0), rate=44_100), QWEN, "converted",
     "to 16 kHz, mono, 2 s. It is silent", []),
    ("notes.md", b"# Hello", CLAUDE, "as it is", "will be sent as text", []),
    ("empty.txt", b" \n", CLAUDE, "as it is", "will be sent as text, but it is empty", []),
    ("ID3.txt", b"ID3 is a kind of tag", CLAUDE, "as it is", "will be sent as text", []),
    ("a picture.txt", PNG, CLAUDE, "as it is", "", []),
    ("a.png", PNG, BLIND, "refused", 'Qwen3 cannot see pictures. Remove "a.png", choose a model that can, '
     'or turn on "Extract text from images and audio" in the settings.',
     ["gpt-6-luna", "gemini-3.8-flash"]),
    ("a.wav", WAV, CLAUDE, "refused",
     f'{CLAUDE.label} cannot hear sound. Remove "a.wav", choose a model that can, '
     'or turn on "Extract text from images and audio" in the settings.', ["gemini-3.8-flash"]),
    ("cut.png", PNG[:50], CLAUDE, "refused", "cut.png is a PNG that is broken or cut off.", []),
    ("Makefile", b"all:\n\techo", BLIND, "as it is", "will be sent as text", []),
    (".gitignore", b"*.pyc", BLIND, "as it is", "will be sent as text", []),
    ("ID3 tags", b"ID3 is a kind of tag", BLIND, "as it is", "will be sent as text", []),
    ("main.zig", "// größer".encode(), BLIND, "as it is", "will be sent as text", []),
    ("photo", PNG, CLAUDE, "as it is", "", []),
    ("page.png", b"<html>", CLAUDE, "refused", "page.png can't be opened. It may be damaged, or not supported.", []),
    ("tool", b"\x7fELF\2\1\0", CLAUDE, "refused", "tool can't be opened. It may be damaged, or not supported.", []),
    ("a.exe", b"MZ\x90\0", CLAUDE, "refused", "a.exe can't be opened. It may be damaged, or not supported.", []),
    ("large.txt", b"x" * 300_000, CLAUDE, "refused", "large.txt has 0.3 MB; 0 MB is the most.", []),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "data", "spec", "outcome", "said", "others"), PLANS, ids=[f"{case[0]}, {case[3]}" for case in PLANS]
)
async def test_attachment_plan_tells_the_outcome(
    tmp_path: Path, name: str, data: bytes, spec: ModelSpec, outcome: str, said: str, others: list[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    [plan] = await plan_attachments([path], spec, max_bytes=250_000, menu=MENU)
    assert (plan.outcome, plan.text, [one.name for one in plan.others]) == (outcome, said, others)
    assert (plan.sent is None) == (outcome == "refused")


@pytest.mark.parametrize(("name", "sent"), [("Makefile", "Makefile"), ("notes", "notes.txt"), ("a.zig", "a.zig")])
async def test_text_of_any_name_is_known_as_a_file(tmp_path: Path, name: str, sent: str) -> None:
    """A model and a reload see that it is a file, even in a message without words."""
    (tmp_path / name).write_text("all: it")
    [part] = await message_parts({"files": [str(tmp_path / name)]}, spec=BLIND, owner=OWNER, max_bytes=10**7)
    assert text_file_of(part) == (sent, "all: it")


async def test_files_are_judged_alone_and_together(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.png" for number in range(10)]
    for path in files:
        path.write_bytes(PNG)
    files[3].write_bytes(PNG[:50])
    planned = await plan_attachments(files, QWEN, max_bytes=1000)
    assert [plan.outcome == "refused" for plan in planned] == [number in (3, 9) for number in range(10)]
    assert planned[9].text == f"{QWEN.label} takes 8 pictures in one message. Send 9.png in another."


async def test_refused_file_stores_nothing(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.jpg", tmp_path / "bad.png"
    good.write_bytes(JPEG_SIDEWAYS)
    bad.write_bytes(PNG[:50])
    store: Any = {"spec": CLAUDE, "owner": OWNER, "max_bytes": 10**7}
    with pytest.raises(InputError, match=r"^bad\.png is a PNG that is broken or cut off\.$"):
        await message_parts({"text": "See", "files": [str(good), str(bad)]}, **store)
    text, kept = await message_parts({"text": "See", "files": [str(good)]}, **store)
    assert text == "See"
    assert isinstance(kept, BinaryContent)
    assert Image.open(io.BytesIO(kept.data)).size == (1176, 1568)
    assert SECRET.encode() not in kept.data
    [sent] = await convert_messages([ModelRequest([Prompt([kept])])], CLAUDE)
    assert sent.parts[0].content[0] is kept  # type: ignore[union-attr, index]
