"""Pictures and sound as parts of a prompt: from bytes, files, Pillow and the web. Unreadable ones are refused."""

import asyncio
import io
import wave
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Pillow
from pydantic_ai.messages import AudioUrl, BinaryContent, ImageUrl, ModelRequest, TextContent, UserPromptPart

from agent import Agent, Audio, Chat, Endpoint, Image, InputError, connect
from agent.fetch import Guard
from agent.files.parts import AUDIO_FORMATS, extracted_text_of
from agent.messages.prompt import fetch_urls
from tests.support.models import QWEN3
from tests.support.scripted_server import Config, running
from tests.tiers import examples

pytestmark = pytest.mark.slow


def file(format_: str, mode: str = "RGB") -> bytes:
    out = io.BytesIO()
    Pillow.new(mode, (3, 2), 1).save(out, format=format_)
    return out.getvalue()


def wav() -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(16_000)
        sound.writeframes(b"\0\0" * 100)
    return out.getvalue()


@pytest.mark.parametrize(("format_", "kind"), [("PNG", "png"), ("JPEG", "jpeg"), ("WEBP", "webp"), ("GIF", "gif")])
def test_supported_picture_is_unchanged(format_: str, kind: str, tmp_path: Path) -> None:
    data = file(format_)
    (tmp_path / "misnamed.txt").write_bytes(data)
    for part in (
        Image.from_bytes(data),
        Image.from_path(tmp_path / "misnamed.txt"),
        Image.from_path(str(tmp_path / "misnamed.txt")),
    ):
        assert (part.data, part.media_type, part.is_image) == (data, f"image/{kind}", True)
    assert Image.from_url(part.data_uri) == part


@pytest.mark.parametrize("format_", ["BMP", "TIFF", "PPM"])
def test_other_picture_becomes_png(format_: str) -> None:
    part = Image.from_bytes(file(format_))
    assert part.media_type == "image/png"
    with Pillow.open(io.BytesIO(part.data)) as image:
        assert image.format == "PNG"


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "I", "F", "I;16", "La", "RGBa"]
)
def test_pillow_pictures_of_any_mode_work(mode: str) -> None:
    picture = Pillow.new(mode, (3, 2))
    assert picture.format is None
    part = Image.from_pillow(picture)
    with Pillow.open(io.BytesIO(part.data)) as image:
        assert (image.format, image.size) == ("PNG", (3, 2))


HEADS = {
    "wav": wav(),
    "mp3": b"ID3\x04" + bytes(20),
    "flac": b"fLaC" + bytes(20),
    "ogg": b"OggS" + bytes(20),
    "aiff": b"FORM\0\0\0\x20AIFF",
    "aac": b"\xff\xf1\x50\x80" + bytes(20),
    "m4a": b"\0\0\0\x20ftypM4A ",
    "webm": b"\x1a\x45\xdf\xa3" + bytes(20),
}


@pytest.mark.parametrize("name", HEADS)
def test_sounds_are_known_by_their_bytes(name: str, tmp_path: Path) -> None:
    (tmp_path / "sound").write_bytes(HEADS[name])
    for part in (
        Audio.from_bytes(HEADS[name]),
        Audio.from_bytes(HEADS[name], format=name.upper()),
        Audio.from_path(tmp_path / "sound"),
    ):
        assert (part.data, part.media_type, part.is_audio) == (HEADS[name], AUDIO_FORMATS[name], True)
    assert Audio.from_bytes(b"\xff\xfb\x90\x64" + bytes(20)).media_type == "audio/mpeg", "a frame without a tag"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda _: Image.from_bytes(b""), "no picture"),
        (lambda _: Image.from_bytes(b"GIF89a"), "no picture"),
        (lambda _: Image.from_bytes(wav()), "no picture"),
        (lambda _: Image.from_bytes(file("PNG")[:50]), "no picture"),
        (lambda folder: Image.from_path(folder / "none.png"), "none.png"),
        (lambda folder: Image.from_path(folder), "cannot be read"),
        (lambda _: Image.from_pillow(Pillow.new("RGB", (0, 0))), "cannot be read"),
        (lambda _: Image.from_url("ftp://example.com/a.png"), "begins with https"),
        (lambda _: Image.from_url("a.png"), "begins with https"),
        (lambda _: Image.from_url("data:image/png;base64,AAA"), "base64"),
        (lambda _: Image.from_url("data:image/png"), "data:"),
        (lambda _: Audio.from_bytes(b""), "no sound"),
        (lambda _: Audio.from_bytes(file("PNG"), format="wav"), "no sound"),
        (lambda _: Audio.from_bytes(wav(), format="mp3"), "is wav, not mp3"),
        (lambda _: Audio.from_bytes(wav(), format="tape"), "'tape'"),
        (lambda folder: Audio.from_path(folder / "none.wav"), "none.wav"),
    ],
)
def test_unreadable_input_is_refused(make: Callable[[Path], Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        make(tmp_path)


@settings(max_examples=examples(40))  # each example starts a process
@given(st.binary(max_size=60), st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"RIFF", b"BM"]))
def test_any_bytes_give_part_or_input_error(data: bytes, head: bytes) -> None:
    for make in (Image.from_bytes, Audio.from_bytes):
        with suppress(InputError):
            assert isinstance(make(head + data), BinaryContent)


# --- the web ----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def site() -> AsyncIterator[str]:
    """A web site on loopback: /a.png is a picture, /page a page, everything else is missing."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        status, kind, body = {
            "/a.png": ("200 OK", "image/png", file("PNG")),
            "/fake.png": ("200 OK", "image/png", b"<html>"),
            "/page": ("200 OK", "text/html", b"<html>"),
        }.get(path, ("404 Not Found", "text/plain", b""))
        head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_web_picture_is_sent_as_bytes(site: str) -> None:
    with running(Config(rate=0)) as server:
        able = connect(replace(QWEN3, image=True), Endpoint(server.base_url))
        async with Agent(able, guard=Guard(allow=(site,))) as agent:
            seen = {"type": "image_url", "image_url": {"url": f"http://{site}/a.png", "detail": "low"}}
            for prompt in (["!text Yes.", Image.from_url(f"http://{site}/a.png")], ["!text Yes.", seen]):
                result = await agent.ask(prompt)
                assert result.text == "Yes."
                picture = server.journal()[-1]["body"]["messages"][0]["content"][1]["image_url"]
                assert picture["url"] == Image.from_bytes(file("PNG")).data_uri
            assert picture["detail"] == "low"
            assert not any(isinstance(item, ImageUrl) for item in result.context.messages[0].parts[0].content)  # type: ignore[union-attr]


@pytest.mark.parametrize(("path", "words"), [("/none", "404"), ("/page", "text/html"), ("/fake.png", "no picture")])
async def test_failed_fetch_sends_no_request(site: str, path: str, words: str) -> None:
    with running(Config(rate=0)) as server:
        spec = replace(QWEN3, image=True)
        async with Agent(connect(spec, Endpoint(server.base_url)), guard=Guard(allow=(site,))) as agent:
            prompt = ["Look", Image.from_url(f"http://{site}{path}")]
            with pytest.raises(InputError, match=words):
                await agent.ask(prompt)
            async with Chat(agent, enforce_single_run=True) as chat:
                for _ in range(2):  # a refused prompt leaves no trace
                    with pytest.raises(InputError, match=words):
                        await chat.ask(prompt)
                assert chat.context.messages == ()
            assert server.journal() == []


async def test_default_guard_refuses_local_addresses(site: str) -> None:
    [message] = [ModelRequest([UserPromptPart(["Look", ImageUrl(f"http://{site}/a.png")])])]
    with pytest.raises(InputError):
        await fetch_urls([message])
    with pytest.raises(InputError, match="AudioUrl"):
        await fetch_urls([ModelRequest([UserPromptPart([AudioUrl("https://example.com/a.wav")])])])


READ = {"read": "a", "name": "b", "kind": "document"}


@pytest.mark.parametrize(
    "metadata", [None, "read", {"read": "a"}, {"read": "a", "name": 1, "kind": "image"}, {**READ, "kind": ["document"]}]
)
def test_odd_metadata_are_no_extracted_text(metadata: Any) -> None:
    assert extracted_text_of(TextContent("x", metadata=metadata)) is None


@pytest.mark.parametrize("count", ["", "x", "9" * 5000, "\N{ARABIC-INDIC DIGIT THREE}", 5, None, "-1"])
def test_odd_count_of_pages_is_none(count: Any) -> None:
    read = extracted_text_of(TextContent("x", metadata={**READ, "count": count, "more": 1}))
    assert read == {**READ, "count": "0"}
